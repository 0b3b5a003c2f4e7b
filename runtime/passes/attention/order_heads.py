"""Orders joined heads as layers produce them: one head after the other, in rows as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.types import Shape
from ...ops.attention import Attention
from ...ops.conv import Conv
from ...ops.matmul import MatMul
from ...ops.movement import Transpose
from ...ops.shape import Reshape
from ..driver import Context
from ..editing import Builder, shape_of, size_of

#: Minimum number of places. Fewer are as channels that attend to one another, whose kernel reads
#: them wherever they are; of joined heads that takes longer than copies of them (TimeSformer in
#: float16, H200: 8 frames, 437 µs instead of 318).
_PLACES = 16


@record
class _Order:
    """How heads [b, h, t, d] become channels of which those of an element are adjacent.

    Attributes:
        perm: to what is joined.
        channels: the axis of the channels, counted from the last one if negative.
        wanted: the permutation with which those of a head are adjacent.
    """

    perm: tuple[int, ...]
    channels: int
    wanted: tuple[int, ...]


#: Of an image or a sound, and of rows.
_ORDERS = (_Order((0, 3, 1, 2), 1, (0, 1, 3, 2)), _Order((0, 2, 3, 1), -1, (0, 2, 1, 3)))


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Permute the weights of a layer that reads heads whose elements take turns (SuperGlue).

    ``view(b, d, h, t)`` of a layer's channels cuts every h-th one as a head, and so does the view
    back, behind an Attention. Its queries, keys and values are columns of layers in any order; see
    `join_heads`. Rows of heads that are joined in another order (attention over time, TimeSformer)
    are joined first, and then moved as a whole.
    """
    for node in list(graph.nodes):
        is_long = isinstance(node.op, Attention) and not _is_short(node)
        if is_long and _reorder(graph, node):
            yield f"the layer behind {node.kind} '{node.name}' reads one head after the other"
    yield from run_bound(graph, context)


def run_bound(graph: Graph, context: Context) -> Iterator[str]:
    """As `run`, for known sizes and without creating weights."""
    for node in list(graph.nodes):
        if not isinstance(node.op, Attention) or _is_short(node):
            continue
        if _join_first(graph, node):
            yield f"rows behind {node.kind} '{node.name}' are joined before they are moved"
            if _move_first(graph, node):
                yield f"rows in front of {node.kind} '{node.name}' are moved before heads are cut"


def _is_short(attention: Node) -> bool:
    """Whether queries or keys are known to be few."""
    lengths = [size_of(value, -2) for value in attention.operands[:2]]
    return any(isinstance(length, int) and length < _PLACES for length in lengths)


def _reorder(graph: Graph, attention: Node) -> bool:
    transpose = graph.sole_consumer(attention.outputs[0])
    heads = shape_of(attention.outputs[0])
    if transpose is None or not isinstance(transpose.op, Transpose) or len(heads or ()) != 4:
        return False
    order = next((each for each in _ORDERS if each.perm == transpose.op.order(4)), None)
    join = graph.sole_consumer(transpose.output)
    if order is None or heads is None or join is None or not isinstance(join.op, Reshape):
        return False
    _, number, _, size = heads
    joined, layer = shape_of(join.output), graph.sole_consumer(join.output)
    if not isinstance(number, int) or not isinstance(size, int) or not joined or layer is None:
        return False
    axis = _axis_of_terms(layer, join.output)
    if axis is None or isinstance(layer.op, Conv) != (order.channels == 1):
        return False
    if len(joined) < 2 or joined[order.channels] != number * size:
        return False
    if not _may_view(tuple(heads[axis] for axis in order.wanted), joined):
        return False
    add = Builder(graph, transpose, transpose.name, (transpose,))
    straight = add(replace(transpose.op, perm=order.wanted), attention.outputs[0])
    view = Builder(graph, join, join.name, (join,)).view(straight, joined)
    places = np.arange(number * size).reshape(size, number).T.reshape(-1)
    weights = layer.operands[1]
    assert weights.data is not None
    permuted = np.ascontiguousarray(weights.data.take(places, axis))
    moved = graph.constant(permuted, f"{weights.name}.heads")
    graph.set_inputs(layer, (view, moved, *layer.inputs[2:]))
    for each in (join, transpose):
        graph.remove(each)
    return True


def _axis_of_terms(layer: Node, value: Value) -> int | None:
    """Return the axis of a layer's constant weights along which its input's channels are summed."""
    if not isinstance(layer.op, Conv | MatMul) or layer.operands[0] is not value:
        return None
    weights = layer.operands[1].data
    if weights is None:
        return None
    if isinstance(layer.op, Conv):
        return 1 if layer.op.group == 1 else None
    return 0 if weights.ndim == 2 else None


def _may_view(own: Shape, shape: Shape) -> bool:
    """Whether a Reshape can say a shape: at most one size is neither known nor kept in place."""
    kept = (*own, *(None,) * len(shape))
    return sum(not isinstance(d, int) and d != k for d, k in zip(shape, kept, strict=False)) <= 1


def _join_first(graph: Graph, attention: Node) -> bool:
    """Join heads to rows in front of the Transpose that moves these rows, if there is one."""
    heads = shape_of(attention.outputs[0])
    node = graph.sole_consumer(attention.outputs[0])
    if node is None or heads is None or len(heads) != 4 or None in heads:
        return False
    parts, outer = [node], heads[:1]
    if isinstance(node.op, Reshape):
        outer = (shape_of(node.output) or ())[:-3]
        if (shape_of(node.output) or ())[-3:] != heads[1:] or not outer or None in outer:
            return False
        node = graph.sole_consumer(node.output)
        parts = [*parts, node] if node is not None else parts
    if node is None or not isinstance(node.op, Transpose):
        return False
    count, join = len(outer), graph.sole_consumer(node.output)
    *order, before, last = node.op.order(count + 3)
    joins = before == count and last == count + 2 and order != [*range(count), count + 1]
    if join is None or not isinstance(join.op, Reshape) or not joins:
        return False
    _, number, length, size = heads
    if not isinstance(number, int) or not isinstance(size, int):
        return False
    width, result = number * size, shape_of(join.output)
    if not result or None in result or result[-1] != width:
        return False
    places = {axis: axis for axis in range(count)} | {count + 1: count}
    split = (*outer, length, width)
    moves = (*(places[axis] for axis in order), count + 1)
    moved = tuple(split[axis] for axis in moves)
    if not _may_view((heads[0], length, width), split) or not _may_view(moved, result):
        return False
    add = Builder(graph, join, join.name, (*parts, join))
    rows = add(Transpose(perm=(0, 2, 1, 3)), attention.outputs[0])
    rows = add.view(add.view(rows, (heads[0], length, width)), split)
    graph.replace(join, (add.view(add(Transpose(perm=moves), rows), result),))
    for each in reversed(parts):
        graph.remove(each)
    return True


def _move_first(graph: Graph, attention: Node) -> bool:
    """Bring batches in front of places before heads are cut out of rows [t, b, w]."""
    found: list[tuple[Node, Value, Shape]] = []
    for value in attention.operands[:3]:
        node, dims = value.producer, shape_of(value) or ()
        cut = node.operands[0].producer if node is not None else None
        if node is None or cut is None or not isinstance(node.op, Transpose):
            return False
        rows = cut.operands[0] if isinstance(cut.op, Reshape) else None
        if rows is None or len(dims) != 4 or node.op.order(4) != (1, 2, 0, 3) or None in dims:
            return False
        batch, number, length, size = dims
        if not isinstance(number, int) or not isinstance(size, int):
            return False
        if shape_of(rows) != (length, batch, number * size):
            return False
        found.append((node, rows, (batch, length, number, size)))
    for made, rows, shape in found:
        add = Builder(graph, made, made.name, (made,))
        heads = add.view(add(Transpose(perm=(1, 0, 2)), rows), shape)
        graph.replace(made, (add(Transpose(perm=(0, 2, 1, 3)), heads),))
    return True
