"""Removes nodes whose output equals their input, or what another node can write itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...ir.constraints import takes
from ...ir.dtypes import INTEGERS, string
from ...ir.graph import Graph, Node, Value
from ...ir.grown import Grown
from ...ir.op import Op
from ...ir.types import Shape, TensorType
from ...ops.attention import Attention
from ...ops.cuts import reduced_axes
from ...ops.elementwise import (
    Abs,
    Add,
    And,
    Cast,
    Ceil,
    Floor,
    Max,
    Mean,
    Min,
    Mul,
    Or,
    Relu,
    Round,
    Sign,
    Sum,
    Where,
)
from ...ops.gather import Gather, GatherND, OneHot
from ...ops.movement import Concat, Expand, Pad, Slice, Split, Tile, Transpose
from ...ops.norm import Dropout
from ...ops.recurrent import GRU, LSTM, RNN
from ...ops.reduce import Reduce, ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum
from ...ops.resize import Resize
from ...ops.shape import RESHAPES, ConstantOfShape, Identity, Reshape, Squeeze, Unsqueeze
from ...ops.shapes import ints_of
from ..driver import Context
from ..editing import Builder, drop, shape_of, stand_in, static_dims
from ..pattern import pairs
from ..pointwise import broadcasts, by_place, inputs_with

#: Constants that leave the other operand as it is, or repeat it. Of floats, -0 + 0 is 0.
_NEUTRAL: Mapping[type[Op], int] = {And: True, Or: False, Mul: 1, Add: 0}
#: Maximum number of their elements that are looked at.
_LOOKED_AT = 1 << 16
#: Inputs of a recurrent layer that are its initial states, and operators that move elements of one
#: tensor.
_STATES, _MOVING = (5, 6), (*RESHAPES, Cast, Expand, Gather, Slice, Split, Tile, Transpose)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Redirect the readers of a node that changes nothing to its input.

    A view that only puts back the axes that a reduction drops is removed as well.
    """
    for node in list(graph.nodes):
        yield from _axes_kept(graph, node)
    for node in list(graph.nodes):
        same = _RULES.get(type(node.op))
        if same is None or any(map(graph.is_read, node.outputs[1:])):
            continue
        source = node.inputs[0] if node.inputs else None
        if source is None or not same(node):
            continue
        graph.redirect(node.output, source)
        graph.remove(node)
        yield f"{node.kind} '{node.name}' changes nothing"
    for node in list(graph.nodes):
        yield from _neutral(graph, node)
    for node in [node for node in graph.nodes if type(node.op) in _REWRITES]:
        yield from _REWRITES[type(node.op)](graph, node)
    repeating = [node for node in graph.nodes if isinstance(node.op, Expand)]
    while repeating:
        yield from broadcast(graph, repeating.pop(), repeating)


def _axes_kept(graph: Graph, view: Node) -> Iterator[str]:
    """Have a reduction keep the axes that a view behind it puts back.

    Elementwise nodes between the two, which read nothing else than numbers, keep them as well.
    """
    if not isinstance(view.op, Reshape | Unsqueeze):
        return
    value, nodes = view.operands[0], list[Node]()
    while (made := _of_one_tensor(graph, value)) is not None:
        nodes.insert(0, made)
        value = next(v for v in made.distinct_reads if not v.is_constant)
    node = value.producer
    if node is None or not isinstance(node.op, Reduce) or node.op.keepdims:
        return
    wanted, source = shape_of(view.output), shape_of(node.inputs[0])
    if graph.sole_consumer(value) is None or wanted is None or source is None:
        return
    kept, types = replace(node.op, keepdims=1), [each.type for each in node.operands]
    data, *axes = (type_ for type_ in types if isinstance(type_, TensorType))
    if 1 + len(axes) < len(types) or None in wanted or kept.infer(data, *axes).shape != wanted:
        return
    origins: list[tuple[Node, ...]] = [(each,) for each in (node, *nodes)]
    origins[-1] = (*origins[-1], view)
    new = [Builder(graph, view, origin=origins[0]).node(kept, *node.inputs)]
    for each, origin in zip(nodes, origins[1:], strict=True):
        inputs = (v if v is None or v.is_constant else new[-1].output for v in each.inputs)
        new.append(Builder(graph, view, origin=origin).node(each.op, *inputs))
    graph.redirect(view.output, new[-1].output)
    drop(graph, view)
    for old, each in zip((node, *nodes), new, strict=True):
        graph.rename(each, old.name)
    yield f"{node.kind} '{node.name}' keeps the axes that '{view.name}' puts back"


def _of_one_tensor(graph: Graph, value: Value) -> Node | None:
    """Return the elementwise node of a value that a single node reads, if it reads one tensor.

    Besides, it may read numbers, which do not add axes.
    """
    node = value.producer
    if node is None or graph.sole_consumer(value) is None or not broadcasts(node):
        return None
    tensors = [v for v in node.distinct_reads if not v.is_constant]
    if len(tensors) != 1:
        return None
    others = [v for v in node.distinct_reads if v.is_constant]
    numbers = all(v.data is not None and v.data.size == 1 for v in others)
    return node if numbers and shape_of(tensors[0]) == shape_of(value) else None


def _zero_states(graph: Graph, node: Node) -> Iterator[str]:
    """Have a recurrent layer begin with zeros of its own, of which exporters make tensors."""
    inputs = [
        None if i in _STATES and value is not None and _is_zero(value) else value
        for i, value in enumerate(node.inputs)
    ]
    if inputs != list(node.inputs):
        graph.set_inputs(node, inputs)
        yield f"{node.kind} '{node.name}' begins with zeros"


def _is_zero(value: Value) -> bool:
    """Whether a tensor is known to be all zero, whatever its sizes."""
    node = value.producer
    if value.data is not None or node is None:
        return value.data is not None and not value.data.any()
    if isinstance(node.op, ConstantOfShape):
        return not node.op.fill.any()
    if isinstance(node.op, Concat):
        return all(map(_is_zero, node.operands))
    return isinstance(node.op, _MOVING) and _is_zero(node.operands[0])


def _of_one(graph: Graph, node: Node) -> Iterator[str]:
    """Make a reduction along axes of one element a view: bags of one row (DLRM)."""
    shape, found = shape_of(node.inputs[0]), reduced_axes(node)
    if shape is None or not found or any(shape[axis] != 1 for axis in found):
        return
    assert isinstance(node.op, Reduce)
    if node.op.keepdims:
        graph.redirect(node.output, node.operands[0])
        graph.remove(node)
    else:
        dropped = graph.constant(np.array(found, np.int64), f"{node.name}.axes")
        stand_in(graph, [node], node, Squeeze(), [node.operands[0], dropped])
    yield f"{node.kind} '{node.name}' reduces single elements"


def _cast_values(graph: Graph, node: Node) -> Iterator[str]:
    """Have a OneHot choose between the numbers to which all its readers cast those of another type.

    Exporters write integers, which PyTorch's one_hot returns.
    """
    data, casts = node.operands[2].data, graph.in_order(node.output.consumers)
    types = {each.op.to if isinstance(each.op, Cast) else None for each in casts}
    to = types.pop() if len(types) == 1 else None
    if data is None or to is None or graph.is_output(node.output):
        return
    if not takes(OneHot, to) or string in (to, data.dtype):
        return
    values = data.astype(to)
    if np.array_equal(values.astype(data.dtype), data):
        add = Builder(graph, node, node.name, (node, *casts))
        new = add(node.op, *node.operands[:2], add.constant(values, "values"))
        for each in casts:
            graph.redirect(each.output, new)
            graph.remove(each)
        drop(graph, node)
        yield f"OneHot '{node.name}' writes {to.name}"


def _expanded(graph: Graph, node: Node) -> Iterator[str]:
    """Make a Tile an Expand, where it repeats axes of one element only."""
    shape, counts = shape_of(node.inputs[0]), node.operands[1].data
    if not shape or counts is None or counts.min() < 1 or not _can_expand(node):
        return
    if all(count == 1 or size == 1 for count, size in zip(counts.tolist(), shape, strict=True)):
        stand_in(graph, [node], node, Expand(), node.inputs)
        yield f"Tile '{node.name}' repeats axes of one element"


def _added(graph: Graph, node: Node) -> Iterator[str]:
    """Make a Sum of two tensors an Add, which patterns match (Caffe2's ResNets)."""
    if len(node.inputs) == 2:
        stand_in(graph, [node], node, Add(), node.inputs)
        yield f"Sum '{node.name}' has two operands"


def _neutral(graph: Graph, node: Node) -> Iterator[str]:
    """Replace an operation with a constant that changes no element of the other operand."""
    shape = shape_of(node.output)
    if shape is None:
        return
    for x in _unchanged(node):
        sizes = static_dims(shape)
        if x.type == node.output.type and all(isinstance(s, int | Grown) for s in shape):
            graph.redirect(node.output, x)
            graph.remove(node)
            yield f"{node.kind} '{node.name}' changes nothing"
        elif sizes is not None and shape_of(x) is not None:
            wanted = graph.constant(np.array(sizes, np.int64), f"{node.name}.shape")
            stand_in(graph, [node], node, Expand(), [x, wanted])
            yield f"{node.kind} '{node.name}' only repeats '{x.name}'"
        else:
            continue
        return


def _unchanged(node: Node) -> Iterator[Value]:
    """Yield operands whose elements are the result's, which may repeat them."""
    if isinstance(node.op, Where):
        condition, *branches = node.operands
        data = condition.data
        if data is not None and 0 < data.size <= _LOOKED_AT and data.all() == data.any():
            yield branches[0 if data.all() else 1]
    neutral = _NEUTRAL.get(type(node.op))
    if isinstance(node.op, Add) and node.output.tensor.dtype not in INTEGERS:
        return
    for x, by in () if neutral is None else pairs(node):
        if by.data is not None and by.data.size <= _LOOKED_AT and (by.data == neutral).all():
            yield x


def broadcast(graph: Graph, node: Node, further: list[Node]) -> Iterator[str]:
    """Have readers of an Expand broadcast its input themselves, or compute before they expand.

    Args:
        graph: the graph.
        node: the Expand.
        further: gets the Expands that are inserted.
    """
    source, repeated = node.inputs[0], node.output
    whole = shape_of(repeated)
    if source is None or whole is None or None in whole or len(shape_of(source) or ()) > len(whole):
        return
    if not _fits(node):
        return
    for reader in list(repeated.consumers):
        said = f"{reader.kind} '{reader.name}'"
        if _masks(reader, repeated, source):
            graph.set_inputs(reader, [source if v is repeated else v for v in reader.inputs])
            yield f"{said} broadcasts what {node.kind} '{node.name}' repeats"
            continue
        read, inputs = by_place(reader), inputs_with(reader, {repeated: source})
        if not broadcasts(reader) or repeated not in read:
            continue
        others = [value for value in read if value is not repeated]
        small = _broadcast_shape([source, *others])
        suffices = small is not None and small == shape_of(reader.output)
        if suffices or any(shape_of(value) == whole for value in others):
            graph.set_inputs(reader, inputs)
            yield f"{said} broadcasts what {node.kind} '{node.name}' repeats"
        elif small is not None and shape_of(reader.output) == whole and _can_expand(reader):
            further.append(_expanded_last(graph, reader, inputs, node.inputs[1]))
            yield f"{said} is computed before {node.kind} '{node.name}' repeats its input"
    drop(graph, node)


def _can_expand(node: Node) -> bool:
    """Whether ONNX lets an Expand read a node's result, which may be of four bits."""
    return takes(Expand, node.output.tensor.dtype)


def _masks(reader: Node, repeated: Value, source: Value) -> bool:
    """Whether an Attention reads an Expand only as its mask, and keys are not what is repeated."""
    inside, outside = shape_of(source) or (), shape_of(repeated) or ()
    return (
        isinstance(reader.op, Attention)
        and [i for i, value in enumerate(reader.inputs) if value is repeated] == [3]
        and len(inside) == len(outside)
        and inside[-1:] == outside[-1:]
    )


def _broadcast_shape(values: Sequence[Value]) -> Shape | None:
    """Return the shape that values are broadcast to; None if a size is unknown."""
    known: list[tuple[int, ...]] = []
    for value in values:
        shape = shape_of(value)
        dims = tuple(size for size in shape or () if isinstance(size, int))
        if shape is None or len(dims) < len(shape):
            return None
        known.append(dims)
    return np.broadcast_shapes(*known)


def _expanded_last(
    graph: Graph, reader: Node, inputs: Sequence[Value | None], shape: Value | None
) -> Node:
    """Replace an elementwise node by the same on smaller inputs, and an Expand of its result."""
    small = Builder(graph, reader, f"{reader.name}.small", (reader,))(reader.op, *inputs)
    return stand_in(graph, [reader], reader, Expand(), [small, shape])


def _always(node: Node) -> bool:
    return True


def _is_inference(node: Node) -> bool:
    training = node.inputs[2] if len(node.inputs) > 2 else None
    return training is None or (training.data is not None and not training.data.any())


def _is_repeated(node: Node) -> bool:
    """Whether a node does again what the one before has done: blocks that begin as a stem ends."""
    before = node.operands[0].producer
    return before is not None and type(before.op) is type(node.op)


def _is_single(node: Node) -> bool:
    return len(node.inputs) == 1


def _is_ranked(node: Node) -> bool:
    """Whether the rank is known, so that what counts axes has been checked against it."""
    return shape_of(node.inputs[0]) is not None


def _joins_one(node: Node) -> bool:
    return _is_single(node) and _is_ranked(node)


def _keeps_dtype(node: Node) -> bool:
    source = node.inputs[0]
    return (
        source is not None
        and isinstance(source.type, TensorType)
        and source.type.dtype == getattr(node.op, "to", None)
    )


def _keeps_order(node: Node) -> bool:
    perm = getattr(node.op, "perm", None)
    return perm is not None and _is_ranked(node) and list(perm) == list(range(len(perm)))


def _keeps_shape(node: Node) -> bool:
    """Whether input and output have equal known shapes, which suffices for these operators."""
    source, result = node.inputs[0], node.output
    shape = shape_of(source)
    if source is None or shape is None or not all(isinstance(s, int | Grown) for s in shape):
        return False
    return source.type == result.type


def _fits(expand: Node) -> bool:
    """Whether the shape that an Expand is given is known, so that it has been checked."""
    shape = expand.inputs[1]
    type_ = shape.type if shape is not None else None
    sizes = ints_of(type_, "shape") if isinstance(type_, TensorType) else None
    return sizes is not None and None not in sizes


def _repeats_nothing(node: Node) -> bool:
    return _fits(node) and _keeps_shape(node)


def _takes_all(node: Node) -> bool:
    """Whether a Slice of unchanged shape also keeps the order, without a negative step."""
    steps = node.inputs[4] if len(node.inputs) > 4 else None
    forward = steps is None or (steps.data is not None and bool((steps.data > 0).all()))
    return forward and _keeps_shape(node)


def _takes_only_row(node: Node) -> bool:
    """Whether a GatherND with known indices takes the only row of each entry."""
    indices = node.inputs[1]
    known = None if indices is None else indices.known
    is_row = getattr(node.op, "batch_dims", 0) == 1 and _keeps_shape(node)
    shape = shape_of(node.output) or ()
    return is_row and shape[1:2] == (1,) and known is not None and set(known.flat) <= {0, -1}


def _pads_nothing(node: Node) -> bool:
    pads = node.inputs[1]
    zero = pads is not None and pads.data is not None and not pads.data.any()
    return zero and _is_ranked(node)


def _keeps_pixels(node: Node) -> bool:
    """Whether a Resize to the size that an image has reads it pixel by pixel."""
    scales, sizes = (*node.inputs[2:], None, None)[:2]
    single = scales is None or shape_of(scales) == (0,)
    if single:
        single = sizes is not None
    elif scales is not None:
        single = scales.data is not None and bool((scales.data == 1).all())
    crops = getattr(node.op, "coordinate_transformation_mode", "") == "tf_crop_and_resize"
    return single and not crops and _keeps_shape(node)


_RULES: dict[type[Any], Callable[[Node], bool]] = {
    Identity: _always,
    Dropout: _is_inference,
    Cast: _keeps_dtype,
    Concat: _joins_one,
    Expand: _repeats_nothing,
    GatherND: _takes_only_row,
    Max: _is_single,
    Mean: _is_single,
    Min: _is_single,
    Pad: _pads_nothing,
    Reshape: _keeps_shape,
    Resize: _keeps_pixels,
    Slice: _takes_all,
    Sum: _is_single,
    Tile: _keeps_shape,
    Transpose: _keeps_order,
    **dict.fromkeys((Abs, Ceil, Floor, Relu, Round, Sign), _is_repeated),
}
#: What is written otherwise, by operator; reductions of one element give that element, and states
#: of recurrent layers are zeros at first unless they are given.
_REWRITES: dict[type[Any], Callable[[Graph, Node], Iterator[str]]] = {
    OneHot: _cast_values,
    Sum: _added,
    Tile: _expanded,
    ReduceMax: _of_one,
    ReduceMean: _of_one,
    ReduceMin: _of_one,
    ReduceProd: _of_one,
    ReduceSum: _of_one,
    **dict.fromkeys((GRU, LSTM, RNN), _zero_states),
}
