"""The same computation in other words: what exporters choose, and rewrites must not depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, defs, helper, numpy_helper
from onnx.shape_inference import infer_shapes

from ....runtime.ir.types import Array

_COMMUTE = ("Add", "Mul", "Max", "Min", "And", "Or", "Xor", "Equal")
_BROADCAST = (*_COMMUTE, "Sub", "Div", "Pow", "Where", "Greater", "Less")
_END = 1 << 62


@dataclass
class Respelling:
    """A model whose nodes are replaced by others that compute the same.

    Attributes:
        model: changes in place.
        dice: what is changed, and how.
        constants: initializers by name.
        shapes: what inference finds; None for sizes without a number.
        types: as ONNX's schemas write them, such as ``tensor(float)``.
    """

    model: ModelProto
    dice: Random
    constants: dict[str, Array]
    shapes: Mapping[str, list[int | None]]
    types: Mapping[str, str]
    count: int = 0

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}/{self.count}"

    def constant(self, data: Array) -> str:
        name = self.fresh("k")
        self.constants[name] = data
        self.model.graph.initializer.append(numpy_helper.from_array(data, name))
        return name

    def rank(self, name: str) -> int:
        """Return the number of axes; raises KeyError if it is not known."""
        return self.constants[name].ndim if name in self.constants else len(self.shapes[name])

    def takes(self, kind: str, name: str) -> bool:
        """Whether the first input of an operator may be of a tensor's type, if that is known."""
        version = next(one.version for one in self.model.opset_import if not one.domain)
        schema = defs.get_schema(kind, version)
        kinds = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}
        return self.types.get(name) in (None, *kinds[schema.inputs[0].type_str])

    def insert(self, at: int, kind: str, inputs: list[str], **attributes: Any) -> str:
        """Insert a node; return its result."""
        name = self.fresh(kind)
        node = helper.make_node(kind, inputs, [name], name, **attributes)
        self.model.graph.node.insert(at, node)
        return name


def respelled(proto: ModelProto, dice: Random, share: float = 0.3) -> ModelProto:
    """Return a model that computes the same in other words.

    Args:
        proto: the model, of an opset of 13 or newer.
        dice: what is changed, and how.
        share: of the nodes that are changed.
    """
    model = ModelProto()
    model.CopyFrom(proto)
    types = infer_shapes(proto).graph
    tensors = {
        one.name: one.type.tensor_type
        for one in (*types.value_info, *types.input, *types.output)
        if one.type.tensor_type.HasField("shape")
    }
    shapes = {
        name: [d.dim_value if d.HasField("dim_value") else None for d in one.shape.dim]
        for name, one in tensors.items()
    }
    numbers = {name: one.elem_type for name, one in tensors.items()}
    numbers |= {one.name: one.data_type for one in proto.graph.initializer}
    kinds = {name: f"tensor({TensorProto.DataType.Name(n).lower()})" for name, n in numbers.items()}
    constants = {one.name: numpy_helper.to_array(one) for one in proto.graph.initializer}
    words = Respelling(model, dice, constants, shapes, kinds)
    for node in list(model.graph.node):
        if dice.random() < share:
            at = next(i for i, each in enumerate(model.graph.node) if each.output == node.output)
            try:
                dice.choice(_WAYS)(words, at)
            except KeyError:
                continue  # of unknown rank
    return model


def _swap(words: Respelling, at: int) -> None:
    node = words.model.graph.node[at]
    if node.op_type in _COMMUTE and len(node.input) == 2:
        node.input[0], node.input[1] = node.input[1], node.input[0]


def _axes_of_one(words: Respelling, at: int) -> None:
    """A constant gets axes of size 1 in front, or loses them."""
    node = words.model.graph.node[at]
    for i, name in enumerate(node.input):
        others = [each for each in node.input if each and each != name]
        data = words.constants.get(name)
        if node.op_type not in _BROADCAST or data is None or not others:
            continue
        most = max(words.rank(each) for each in others)
        kept = np.squeeze(data) if words.dice.random() < 0.5 and data.size == 1 else data
        if kept.ndim > most or kept.ndim < data.ndim == max(words.rank(n) for n in node.input):
            continue
        rank = words.dice.randrange(kept.ndim, most + 1)
        node.input[i] = words.constant(kept.reshape((1,) * (rank - kept.ndim) + kept.shape))


def _axis(words: Respelling, at: int) -> None:
    """An axis is counted from the other end: of the input, or of what OneHot adds one to."""
    node = words.model.graph.node[at]
    for attribute in node.attribute:
        if attribute.name == "axis" and node.op_type not in ("Flatten", "DequantizeLinear"):
            rank = words.rank(node.input[0]) + (node.op_type == "OneHot")
            attribute.i += rank if attribute.i < 0 else -rank


def _reduced(words: Respelling, at: int) -> None:
    """Axes of a reduction from the other end; an axis that is kept is added behind."""
    node = words.model.graph.node[at]
    axes = words.constants.get(node.input[1]) if len(node.input) > 1 else None
    if not node.op_type.startswith("Reduce") or axes is None:
        return
    rank = words.rank(node.input[0])
    if words.dice.random() < 0.5:
        node.input[1] = words.constant(np.where(axes >= 0, axes - rank, axes + rank))
    kept = [a for a in node.attribute if a.name == "keepdims"]
    if words.dice.random() < 0.5 and (not kept or kept[0].i):
        for attribute in kept:
            node.attribute.remove(attribute)
        node.attribute.append(helper.make_attribute("keepdims", 0))
        behind = words.constant(np.sort(axes % rank))
        _rename(words, node, words.fresh("r"), at, "Unsqueeze", behind)


def _rename(words: Respelling, node: NodeProto, name: str, at: int, kind: str, *more: str) -> None:
    """Let a node behind another one make what that made."""
    old, node.output[0] = node.output[0], name
    words.model.graph.node.insert(at + 1, helper.make_node(kind, [name, *more], [old], f"{name}/n"))


#: What they begin with.
_DETOURS = ("Identity", "Unsqueeze", "Transpose", "Reshape", "Slice", "Transpose")


def _detour(words: Respelling, at: int) -> None:
    """Something that changes nothing is between a node and an input."""
    node = words.model.graph.node[at]
    able = [
        i for i, n in enumerate(node.input) if n and (n in words.shapes or n in words.constants)
    ]
    if not able:
        return
    i = words.dice.choice(able)
    x, rank = node.input[i], words.rank(node.input[i])
    how = words.dice.randrange(6)
    if not words.takes(_DETOURS[how], x):
        return
    if how == 0:
        y = words.insert(at, "Identity", [x])
    elif how == 1:
        axis = words.constant(np.array([words.dice.randrange(rank + 1)]))
        y = words.insert(at, "Unsqueeze", [x, axis])
        y = words.insert(at + 1, "Squeeze", [y, axis])
    elif how == 2 and rank > 1:
        perm = words.dice.sample(range(rank), rank)
        y = words.insert(at, "Transpose", [x], perm=perm)
        y = words.insert(at + 1, "Transpose", [y], perm=np.argsort(perm).tolist())
    elif how == 3 and rank:
        sizes = [0] * rank
        sizes[words.dice.randrange(rank)] = -1
        y = words.insert(at, "Reshape", [x, words.constant(np.array(sizes))])
    elif how == 4 and rank:
        axis = words.dice.randrange(rank)
        given = (words.constant(np.array([v])) for v in (0, _END, axis))
        y = words.insert(at, "Slice", [x, *given])
    elif how == 5 and node.op_type == "MatMul" and i == 1 and rank == 2 and x in words.constants:
        transposed = words.constant(np.ascontiguousarray(words.constants[x].T))
        y = words.insert(at, "Transpose", [transposed], perm=[1, 0])
    else:
        return
    node = next(each for each in words.model.graph.node if each.output == node.output)
    node.input[i] = y


def _sizes(words: Respelling, at: int) -> None:
    """A size of a Reshape is that of the input, or what is left."""
    node = words.model.graph.node[at]
    data = words.constants.get(node.input[1]) if node.op_type == "Reshape" else None
    if data is None or not data.size or len(node.attribute):
        return
    sizes, shape = data.copy(), words.shapes[node.input[0]]
    for axis, size in enumerate(sizes):
        if axis < len(shape) and shape[axis] == size and words.dice.random() < 0.5:
            sizes[axis] = 0
    free = words.dice.randrange(len(sizes))
    if -1 not in sizes and 0 not in shape and words.dice.random() < 0.5:
        sizes[free] = -1
    node.input[1] = words.constant(sizes)


def _twice(words: Respelling, at: int) -> None:
    """A node is there twice, and its readers read either."""
    node = words.model.graph.node[at]
    if len(node.output) != 1 or node.op_type in ("Loop", "If", "Scan"):
        return
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.output[0] = copy.name = words.fresh("again")
    words.model.graph.node.insert(at, copy)
    for reader in words.model.graph.node:
        for i, name in enumerate(reader.input):
            if name == node.output[0] and words.dice.random() < 0.5:
                reader.input[i] = copy.output[0]


def _other_operator(words: Respelling, at: int) -> None:
    """A difference is a sum, and a quotient a product."""
    node = words.model.graph.node[at]
    data = words.constants.get(node.input[1]) if len(node.input) == 2 else None
    if data is None or data.dtype != np.float32:
        return
    if node.op_type == "Sub":
        node.op_type, node.input[1] = "Add", words.constant(-data)
    elif node.op_type == "Add":
        node.op_type, node.input[1] = "Sub", words.constant(-data)
    elif node.op_type == "Div" and np.all(data):
        node.op_type, node.input[1] = "Mul", words.constant(np.float32(1) / data)


def _omitted(words: Respelling, at: int) -> None:
    """Optional inputs that are not given are given as absent."""
    node = words.model.graph.node[at]
    versions = {one.domain: one.version for one in words.model.opset_import}
    if node.domain in versions and defs.has(node.op_type, node.domain):
        schema = defs.get_schema(node.op_type, versions[node.domain], node.domain)
        optional = defs.OpSchema.FormalParameterOption.Optional
        more = [each for each in schema.inputs[len(node.input) :] if each.option == optional]
        node.input.extend([""] * words.dice.randrange(len(more) + 1))


_WAYS: tuple[Callable[[Respelling, int], None], ...] = (
    _swap,
    _axes_of_one,
    _axes_of_one,
    _axis,
    _reduced,
    _detour,
    _detour,
    _detour,
    _sizes,
    _twice,
    _other_operator,
    _omitted,
)
