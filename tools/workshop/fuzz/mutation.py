"""A valid model that is changed a little and stays valid: sizes and constants follow.

Changes edit the model's nodes and constants (`mutations`); `Mutation.settle` then infers all types
anew, and where a node no longer fits, its constants take the shapes that it needs now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, defs, helper, numpy_helper
from onnx.checker import ValidationError
from onnx.shape_inference import InferenceError, infer_node_outputs

from ....runtime.ir.types import Array
from .sites import bodies_of

#: Elements of a tensor at most.
_LARGEST = 1 << 16
#: A size that is not known before the run.
UNKNOWN = -1
#: Attributes that count what sizes count.
COUNTING = ("group", "num_heads", "q_num_heads", "kv_num_heads", "num_outputs", "hidden_size")
Shape = tuple[int, ...]
Type = tuple[int, Shape]


@dataclass
class Mutation:
    """A model on its way to another one.

    Attributes:
        model: its nodes change in place; constants and inputs are below.
        feeds: the inputs' values.
        dice: what is changed, and how.
        constants: initializers by name.
        types: element type and shape of each tensor, as far as inference knows them.
    """

    model: ModelProto
    feeds: dict[str, Array]
    dice: Random
    constants: dict[str, Array] = field(default_factory=dict[str, Array])
    types: dict[str, Type] = field(default_factory=dict[str, Type])
    _count: int = 0

    @classmethod
    def of(cls, proto: ModelProto, feeds: Mapping[str, Array], dice: Random) -> Mutation:
        """Return a copy of a model, ready to be changed; Constant nodes are initializers."""
        model = ModelProto()
        model.CopyFrom(proto)
        found = cls(model, dict(feeds), dice)
        for tensor in model.graph.initializer:
            found.constants[tensor.name] = numpy_helper.to_array(tensor)
        del model.graph.initializer[:]
        kept = [node for node in model.graph.node if not found._is_constant(node)]
        del model.graph.node[:]
        model.graph.node.extend(kept)
        found.settle()
        return found

    def _is_constant(self, node: NodeProto) -> bool:
        """Whether a node is a constant, which is stored then."""
        if node.op_type != "Constant" or not node.attribute[0].HasField("t"):
            return False
        self.constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        return True

    def copy(self) -> Mutation:
        """Return what there is now, to be restored."""
        model = ModelProto()
        model.CopyFrom(self.model)
        own = dict(self.feeds), self.dice, dict(self.constants), dict(self.types)
        return Mutation(model, *own, self._count)

    def restore(self, before: Mutation) -> None:
        """Go back to a copy."""
        self.model, self.feeds = before.model, before.feeds
        self.constants, self.types = before.constants, before.types

    # ── what there is ────────────────────────────────────────────────────────────────────────

    @property
    def nodes(self) -> Any:
        """The nodes, in order."""
        return self.model.graph.node

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs."""
        return [output.name for output in self.model.graph.output]

    @property
    def computed(self) -> list[str]:
        """The tensors that nodes compute, of known shape."""
        return [n for node in self.nodes for n in node.output if self.is_known(n)]

    def is_known(self, name: str) -> bool:
        """Whether the shape of a tensor is known."""
        return name in self.types and UNKNOWN not in self.types[name][1]

    def is_float(self, name: str) -> bool:
        """Whether a tensor is float32, of known shape."""
        return self.is_known(name) and self.types[name][0] == TensorProto.FLOAT

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor; KeyError if not even its rank is known."""
        return self.types[name][1]

    def node(self, *kinds: str) -> int:
        """Draw a node, of one of these operators if any are given; IndexError if there is none."""
        return self.dice.choice(
            [i for i, node in enumerate(self.nodes) if not kinds or node.op_type in kinds]
        )

    def edge(self, *, floats: bool = True) -> tuple[int, int]:
        """Draw a node and one of its inputs that nodes or users compute."""
        return self.dice.choice(
            [
                (at, place)
                for at, node in enumerate(self.nodes)
                for place, name in enumerate(node.input)
                if name not in self.constants
                and (self.is_float(name) if floats else self.is_known(name))
            ]
        )

    def constant_edge(self, *, floats: bool | None = None) -> tuple[int, int]:
        """Draw a node and one of its inputs that is a constant."""
        return self.dice.choice(
            [
                (at, place)
                for at, node in enumerate(self.nodes)
                for place, name in enumerate(node.input)
                if name in self.constants
                and (floats is None or (self.constants[name].dtype.kind == "f") == floats)
            ]
        )

    # ── edits ────────────────────────────────────────────────────────────────────────────────

    def fresh(self, stem: str) -> str:
        """Return a name that nothing has."""
        self._count += 1
        return f"{stem}~{self._count}"

    def constant(self, data: Any, dtype: Any = None) -> str:
        """Add a constant."""
        name = self.fresh("k")
        self.constants[name] = np.asarray(data, dtype)
        self.types[name] = self._type_of(self.constants[name])
        return name

    def insert(
        self, at: int, kind: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any
    ) -> str:
        """Insert a node; return its first result."""
        names = [self.fresh(kind) for _ in range(outputs)]
        self.nodes.insert(at, helper.make_node(kind, inputs, names, names[0], **attributes))
        return names[0]

    def remove(self, at: int) -> None:
        """Remove a node."""
        del self.nodes[at]

    def replace(self, old: str, new: str, share: float = 1.0, *, after: int = 0) -> None:
        """Let readers read another tensor, all of them or some; outputs keep their names."""
        for node in self.nodes[after:]:
            for place, name in enumerate(node.input):
                if name == old and self.dice.random() < share:
                    node.input[place] = new

    def output(self, name: str) -> None:
        """Make a tensor an output."""
        if name not in self.outputs:
            self.model.graph.output.add(name=name)

    # ── types ────────────────────────────────────────────────────────────────────────────────

    def settle(self) -> None:
        """Infer all types anew, and repair nodes that no longer fit.

        Raises:
            ValueError: a node fits with no constants, or a tensor is too large.
        """
        before = self.types
        self.types = {
            n: self._type_of(x) for n, x in (*self.feeds.items(), *self.constants.items())
        }
        versions = {each.domain: each.version for each in self.model.opset_import}
        for node in self.nodes:
            schema, version = None, versions[node.domain]
            if defs.has(node.op_type, version, node.domain):
                if not any(bodies_of(node)):
                    schema = defs.get_schema(node.op_type, version, node.domain)
            elif not node.domain:
                raise ValueError(f"no {node.op_type} in opset {version}")
            if schema is None or not all(n in self.types for n in node.input if n):
                self.types.update({n: before[n] for n in node.output if n in before})
                continue
            found = self._inferred(schema, node)
            if found is None:
                found = self._repaired(schema, node)
            self.types.update(found)
            if any(prod(shape) > _LARGEST for _, shape in found.values()):
                raise ValueError(f"{node.op_type}: too large")

    @staticmethod
    def _type_of(data: Array) -> Type:
        return helper.np_dtype_to_tensor_dtype(data.dtype), data.shape

    def _inferred(self, schema: defs.OpSchema, node: NodeProto) -> dict[str, Type] | None:
        """Return the types of a node's results; None where it does not fit."""
        count = next((a.i for a in node.attribute if a.name == "num_outputs"), len(node.output))
        if count != len(node.output):
            return None  # ONNX's inference would end the process
        types = {n: self.types[n] for n in node.input if n}
        known = {
            name: helper.make_tensor_type_proto(
                kind, [None if size == UNKNOWN else size for size in shape]
            )
            for name, (kind, shape) in types.items()
        }
        data = {
            n: numpy_helper.from_array(self.constants[n]) for n in node.input if n in self.constants
        }
        try:
            found = infer_node_outputs(schema, node, known, data)
        except (InferenceError, ValidationError, RuntimeError):
            return None
        results: dict[str, Type] = {}
        for name, one in found.items():
            tensor = one.tensor_type
            if tensor.HasField("shape"):
                dims = (
                    d.dim_value if d.HasField("dim_value") else UNKNOWN for d in tensor.shape.dim
                )
                results[name] = tensor.elem_type, tuple(dims)
        return results if self._fits(node, results) else None

    def _fits(self, node: NodeProto, results: Mapping[str, Type]) -> bool:
        """Check what ONNX's inference does not: sizes of weights, and numbers of elements."""
        shapes: list[Shape] = [self.types[n][1] if n else () for n in node.input]
        if any(UNKNOWN in shape for shape in shapes):
            return True
        group = next((a.i for a in node.attribute if a.name == "group"), 1)
        match node.op_type:
            case "Reshape" if results:
                (_, shape), *_ = results.values()
                return UNKNOWN in shape or prod(shape) == prod(shapes[0])
            case "Conv":
                x, w, *bias = shapes
                same = len(x) == len(w) and x[1] == w[1] * group and w[0] % max(group, 1) == 0
                return same and all(each == w[:1] for each in bias)
            case "BatchNormalization" | "InstanceNormalization" | "GroupNormalization":
                return all(each == shapes[0][1:2] for each in shapes[1:])
            case _:
                return True

    def _repaired(self, schema: defs.OpSchema, node: NodeProto) -> dict[str, Type]:
        """Let a node's constants take shapes that it needs; return the types of its results."""
        names = list(node.input)
        for constants in self._candidates(node):
            for place, data in constants.items():
                node.input[place] = self.constant(data)
            found = self._inferred(schema, node)
            if found is not None:
                return found
            for place in constants:
                node.input[place] = names[place]
        raise ValueError(f"{node.op_type}: does not fit")

    def _candidates(self, node: NodeProto) -> Iterator[dict[int, Array]]:
        """Yield constants in the place of a node's own, by number of the input."""
        own = {i: self.constants[n] for i, n in enumerate(node.input) if n in self.constants}
        others = [self.types[n][1] for n in node.input if n and n not in self.constants]
        sizes = sorted({size for shape in others for size in shape if size != UNKNOWN})
        old = {size for data in own.values() for size in data.shape}
        old |= {int(v) for x in own.values() if x.dtype.kind == "i" and x.size < 9 for v in x.flat}
        for before in sorted(old):
            for after in sizes:
                if before != after:
                    yield {i: resized(data, before, after) for i, data in own.items()}
        if node.op_type == "Reshape" and 1 in own and own[1].ndim == 1 and others:
            for place in range(own[1].size):
                free = np.where(own[1] == -1, 1, own[1])
                free[place] = -1
                yield {1: free}
            yield {1: np.array([-1, others[0][-1] if others[0] else 1])}
        if node.op_type == "Split" and 1 in own and own[1].ndim == 1 and others:
            for size in sizes:
                parts = np.full(own[1].shape, size // max(own[1].size, 1), np.int64)
                parts[-1:] += size - parts.sum()
                yield {1: parts}

    # ── result ───────────────────────────────────────────────────────────────────────────────

    def finished(self) -> tuple[ModelProto, dict[str, Array]]:
        """Return the model and its inputs: without what nothing reads."""
        model = ModelProto()
        model.CopyFrom(self.model)
        graph = model.graph
        read = {name for node in graph.node for name in reads(node)} | set(self.outputs)
        feeds = {name: data for name, data in self.feeds.items() if name in read}
        del graph.input[:], graph.value_info[:], graph.output[:]
        for name, data in feeds.items():
            graph.input.append(helper.make_tensor_value_info(name, *self._type_of(data)))
        for name in self.outputs:
            kind, shape = self.types.get(name, (TensorProto.UNDEFINED, None))
            rank = None if shape is None else [None] * len(shape)
            if name in self.types:
                graph.output.append(helper.make_tensor_value_info(name, kind, rank))
            else:
                graph.output.extend(each for each in self.model.graph.output if each.name == name)
        kept = ((name, data) for name, data in self.constants.items() if name in read)
        graph.initializer.extend(numpy_helper.from_array(data, name) for name, data in kept)
        return model, feeds


def resized(data: Array, before: int, after: int) -> Array:
    """Return an array with axes, and sizes that it holds, of another length."""
    for axis, size in enumerate(data.shape):
        if size == before:
            shape = (*data.shape[:axis], after, *data.shape[axis + 1 :])
            if prod(shape) > _LARGEST:
                raise ValueError("too large a constant")
            some = np.arange(after) % max(size, 1)
            data = np.take(data, some, axis) if size else np.zeros(shape, data.dtype)
    fits = data.dtype.kind == "i" and after <= np.iinfo(data.dtype).max
    if fits and data.ndim < 2 and data.size < 9:
        data = np.where(data == before, data.dtype.type(after), data)
    return data


def reads(node: NodeProto) -> Iterator[str]:
    """Yield what a node and the bodies in it read."""
    yield from node.input
    for body in bodies_of(node):
        for inner in body.node:
            yield from reads(inner)
        yield from (output.name for output in body.output)


#: Edits a model; raises ValueError, KeyError or IndexError where it has nothing of the kind.
Change = Callable[[Mutation], None]
