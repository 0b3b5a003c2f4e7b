"""A random model written in other ways: nodes inside functions, sizes that have names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from ....runtime.ir.types import Array
from .growing import FEW_BITS, captured

DOMAIN = "random"
#: Operators that give a sequence, which no Loop stacks.
SEQUENCES = ("SequenceConstruct", "SequenceErase", "SequenceInsert", "SplitToSequence")


def with_functions(proto: ModelProto, dice: Random) -> ModelProto:
    """Return the model with some runs of nodes as calls of functions of the file."""
    model = ModelProto()
    model.CopyFrom(proto)
    for i in range(dice.randrange(1, 3)):
        nodes = list(model.graph.node)
        first = dice.randrange(len(nodes))
        last = min(len(nodes), first + dice.randrange(1, 6))
        inside, outside = nodes[first:last], [*nodes[:first], *nodes[last:]]
        made = [name for node in inside for name in node.output if name]
        read = [n for node in inside for n in (*node.input, *captured(node)) if n]
        bodies = {n for node in inside for n in _own(node.attribute)}
        inputs = [n for n in dict.fromkeys(read) if n not in made and n not in bodies]
        needed = {n for node in outside for n in (*node.input, *captured(node))}
        needed |= {output.name for output in model.graph.output}
        outputs = [n for n in made if n in needed]
        if not outputs:
            continue
        versions = list(model.opset_import)
        function = helper.make_function(DOMAIN, f"Part{i}", inputs, outputs, inside, versions)
        model.functions.append(function)
        call = helper.make_node(f"Part{i}", inputs, outputs, f"call{i}", domain=DOMAIN)
        del model.graph.node[:]
        model.graph.node.extend([*nodes[:first], call, *nodes[last:]])
        if not any(each.domain == DOMAIN for each in model.opset_import):
            model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return model


def with_bodies(proto: ModelProto, dice: Random) -> tuple[ModelProto, dict[str, Array]]:
    """Return the model with a run of nodes inside of an If or Loop, which reads what is outside.

    Returns:
        The model, and a value for the input that is new: the condition, or the number of rounds.
    """
    model = ModelProto()
    model.CopyFrom(proto)
    nodes = list(model.graph.node)
    first = dice.randrange(len(nodes))
    last = min(len(nodes), first + dice.randrange(1, 9))
    inside, outside = nodes[first:last], [*nodes[:first], *nodes[last:]]
    needed = {n for node in outside for n in (*node.input, *captured(node))}
    needed |= {output.name for output in model.graph.output}
    results = [n for node in inside for n in node.output if n in needed]
    if not results:
        return model, {}
    lists = {n for node in inside if node.op_type in SEQUENCES for n in node.output}
    stackable = lists.isdisjoint(results) and not any(map(_may_be_few_bits, inside))
    kind, stem = dice.choice(("If", "Loop")) if stackable else "If", "wrapped"
    given = f"{stem}.given"

    def body(prefix: str, inputs: Sequence[ValueInfoProto], extra: Sequence[str]) -> GraphProto:
        own = {n: f"{prefix}.{n}" for node in inside for n in node.output if n}
        graph = GraphProto(name=prefix, input=inputs)
        for node in inside:
            graph.node.append(node)
            _rename(graph.node[-1], own)
        if extra:
            graph.node.append(helper.make_node("Identity", [inputs[1].name], extra))
        graph.output.extend(ValueInfoProto(name=name) for name in (*extra, *map(own.get, results)))
        return graph

    if kind == "If":
        wrapped = [
            helper.make_node(
                "If",
                [given],
                results,
                stem,
                then_branch=body("then", (), ()),
                else_branch=body("else", (), ()),
            )
        ]
        feeds, type_ = {given: np.array(dice.random() < 0.5)}, TensorProto.BOOL
    else:
        stacked = [f"{stem}.{name}" for name in results]
        inputs = [
            helper.make_tensor_value_info(f"{stem}.i", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"{stem}.go", TensorProto.BOOL, []),
        ]
        loop = body("round", inputs, [f"{stem}.on"])
        wrapped = [helper.make_node("Loop", [given, ""], stacked, stem, body=loop)]
        last_ = helper.make_tensor("last", TensorProto.INT64, [], [-1])
        wrapped += [helper.make_node("Constant", [], [f"{stem}.last"], value=last_)]
        wrapped += [
            helper.make_node("Gather", [a, f"{stem}.last"], [b])
            for a, b in zip(stacked, results, strict=True)
        ]
        feeds, type_ = {given: np.array(dice.choice((1, 2)))}, TensorProto.INT64
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:first], *wrapped, *nodes[last:]])
    model.graph.input.append(helper.make_tensor_value_info(given, type_, []))
    return model, feeds


def _may_be_few_bits(node: NodeProto) -> bool:
    """Whether a result may have a format that ONNX lets few operators read."""
    types = (a.i for a in node.attribute if a.name in ("to", "output_dtype"))
    return node.op_type == "QuantizeLinear" or any(type_ in FEW_BITS for type_ in types)


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    """Replace names that a node reads or makes, in its bodies too."""
    for each in (node.input, node.output):
        each[:] = [names.get(name, name) for name in each]
    for attribute in node.attribute:
        for inner in attribute.g.node:
            _rename(inner, names)
        for output in attribute.g.output:
            output.name = names.get(output.name, output.name)


def with_outputs(proto: ModelProto, names: Iterable[str]) -> ModelProto:
    """Return the model with these tensors as outputs."""
    model = ModelProto()
    model.CopyFrom(proto)
    del model.graph.output[:]
    model.graph.output.extend(ValueInfoProto(name=name) for name in names)
    return model


def with_pieces(proto: ModelProto, dice: Random) -> ModelProto:
    """Return the model with nodes in another order, and with what nothing needs.

    Inputs, constants and results in the middle are outputs, too; nodes are there twice.
    """
    model = ModelProto()
    model.CopyFrom(proto)
    graph = model.graph
    wanted = {output.name for output in graph.output}
    for node in dice.sample(list(graph.node), min(2, len(graph.node))):
        if not node.op_type.startswith("Random"):
            graph.node.append(node)
            _rename(graph.node[-1], {name: f"twice.{name}" for name in node.output if name})
            graph.node[-1].name = f"twice.{node.name}"
    read = [one.name for one in (*graph.input, *graph.initializer) if one.name not in wanted]
    for name in dice.sample(read, min(2, len(read))):
        graph.output.append(ValueInfoProto(name=name))
    graph.initializer.append(numpy_helper.from_array(np.zeros((2, 0), np.float32), "unused"))
    ready = {one.name for one in (*graph.input, *graph.initializer)} | {""}
    waiting = list(graph.node)
    del graph.node[:]
    while waiting:
        made = {name for node in waiting for name in node.output}
        able = [
            node
            for node in waiting
            if not made.intersection((*node.input, *captured(node))) - ready
        ]
        node = dice.choice(able)
        waiting.remove(node)
        graph.node.append(node)
        ready.update(node.output)
    return model


def _own(attributes: Iterable[AttributeProto]) -> Iterator[str]:
    """Yield the names that bodies themselves define."""
    for attribute in attributes:
        graph = attribute.g
        yield from (one.name for one in (*graph.input, *graph.initializer))
        for node in graph.node:
            yield from node.output
            yield from _own(node.attribute)


def with_names(proto: ModelProto) -> ModelProto:
    """Return the model with a name of its own for each size of its inputs; outputs have none."""
    model = ModelProto()
    model.CopyFrom(proto)
    for given in model.graph.input:
        for axis, dim in enumerate(given.type.tensor_type.shape.dim):
            dim.dim_param = f"{given.name}_{axis}"
    return model


def with_unknown_sizes(proto: ModelProto, dice: Random) -> ModelProto:
    """Return the model with inputs of which sizes are unknown, or have names that others have."""
    model = ModelProto()
    model.CopyFrom(proto)
    for given in model.graph.input:
        for dim in given.type.tensor_type.shape.dim:
            dim.Clear()
            if dice.random() < 0.3:
                dim.dim_param = dice.choice("nm")
    return model


def resized(feeds: Mapping[str, Array], dice: Random, rng: np.random.Generator) -> dict[str, Array]:
    """Return inputs of which one size is another one, maybe 0, wherever it occurs, or once."""
    sizes = sorted({size for data in feeds.values() for size in data.shape})
    if not sizes:
        return dict(feeds)
    old, new = dice.choice(sizes), dice.choice((0, 1, 2, 3, 4, 5, 9, 12))
    at, only = dice.choice(("all", "first", "once")), dice.choice(list(feeds))
    places = [axis for axis, size in enumerate(feeds[only].shape) if size == old]
    once = dice.choice(places) if places else None
    found: dict[str, Array] = {}
    for name, data in feeds.items():
        shape = [
            new if size == old and _is_resized(at, axis, once if name == only else None) else size
            for axis, size in enumerate(data.shape)
        ]
        some = data.ravel() if data.size else np.zeros(1, data.dtype)
        found[name] = rng.choice(some, shape).astype(data.dtype)
    return found


def _is_resized(at: str, axis: int, once: int | None) -> bool:
    """Whether an axis of the old size gets the new one; see `resized`."""
    return axis == once if at == "once" else at == "all" or axis == 0


def in_dtype(
    proto: ModelProto, feeds: Mapping[str, Array], dtype: str
) -> tuple[ModelProto, dict[str, Array]]:
    """Return a model and its inputs with another type in the place of float32.

    Args:
        proto: the model.
        feeds: its inputs.
        dtype: ``float64``; ``float16``, as converters write it: numbers that it does not have are
            the nearest ones that it has, but never 0; or ``int32`` or ``int64``: multiples of 1/4
            are 1, and infinity is the greatest number.
    """
    model = ModelProto()
    model.CopyFrom(proto)
    convert = _CONVERTED[dtype]
    _convert(model.graph, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), convert)
    is_float = {name: data.dtype == np.float32 for name, data in feeds.items()}
    return model, {n: convert(x) if is_float[n] else x for n, x in feeds.items()}


def _halved(data: Array) -> Array:
    limits = np.finfo(np.float16)
    small = (data != 0) & (np.abs(data) < limits.smallest_subnormal)
    data = np.where(small, np.sign(data) * limits.smallest_subnormal, data)
    return np.clip(data, limits.min, limits.max).astype(np.float16)


def _whole(dtype: type[np.signedinteger[Any]]) -> Callable[[Array], Array]:
    largest = 2**30  # float32 has it

    def converted(data: Array) -> Array:
        return np.rint(np.clip(np.nan_to_num(4 * data), -largest, largest)).astype(dtype)

    return converted


_CONVERTED: dict[str, Callable[[Array], Array]] = {
    "float16": _halved,
    "float64": lambda data: data.astype(np.float64),
    "int32": _whole(np.int32),
    "int64": _whole(np.int64),
}


def _convert(graph: GraphProto, to: int, converted: Callable[[Array], Array]) -> None:
    """Replace float32 by another type, whose constants a function makes."""
    for one in (*graph.input, *graph.output, *graph.value_info):
        if one.type.tensor_type.elem_type == TensorProto.FLOAT:
            one.type.tensor_type.elem_type = to
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            data = converted(numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(data, tensor.name))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = to
            _convert(attribute.g, to, converted)
