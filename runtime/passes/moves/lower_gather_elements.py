"""Rewrites GatherElements and ScatterElements whose indices name whole slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from ...ir.dtypes import int64
from ...ir.graph import Graph, Node, Value
from ...ir.types import Shape
from ...ops.elementwise import Cast
from ...ops.gather import Gather, GatherElements, GatherND, ScatterElements, ScatterND
from ...ops.movement import Concat, Expand, Tile, Transpose
from ...ops.shape import Squeeze, Unsqueeze
from ...ops.shapes import normalize_axis
from ..driver import Context
from ..editing import Builder, drop, dtype_of, rank_of, shape_of, static_dims


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace GatherElements by GatherND or Gather, and ScatterElements by ScatterND.

    PyTorch's `gather` and `scatter` want an index for each element, so that programs expand those
    of rows: `x.gather(1, i[..., None].expand(-1, -1, d))` in detectors and for points, or
    `scatter_add` in networks of graphs. In a vector each element is a slice. Data that are
    expanded along an axis (the neighbours of every point) are read where they are. Slices of
    channels in front (RandLA-Net) are rows between transposes, which convolutions have anyway.
    """
    for node in list(graph.nodes):
        text = ""
        if isinstance(node.op, GatherElements):
            text = _gathered(graph, node)
        elif isinstance(node.op, ScatterElements):
            text = _scattered(graph, node)
        if text:
            yield text


def _gathered(graph: Graph, node: Node) -> str:
    """Rewrite a GatherElements; return a sentence about it."""
    given, indices, wanted = (*node.operands, shape_of(node.output))
    if not wanted or not isinstance(node.op, GatherElements):
        return ""
    axis = normalize_axis(node.op.axis, len(wanted))
    data, indices = _source(given), _source(indices)
    data = data if _has_axis_of(data, given, axis) else given
    found, places = shape_of(data), shape_of(indices)
    if found is None or places is None:
        return ""
    kinds = _kinds(found, places, wanted, axis)
    if kinds is None:
        return ""
    batch, index, own = kinds
    add = Builder(graph, node, node.name, (node,))
    drops = [each for each in index if each != axis]
    data = add(Squeeze(), data, add.integers(drops)) if drops else data
    front = [] if batch else [each for each in own if each < axis]
    behind = [each for each in own if each not in front]
    left = [each for each in range(len(wanted)) if each not in drops]
    order = (*range(batch), *front, axis, *behind)
    data = _transposed(add, data, [left.index(each) for each in order])
    if batch:
        last = own[-1] if own[-1] > index[-1] else None  # an axis for the only number of a place
        drops = [each for each in own if each != last]
        indices = add(Squeeze(), indices, add.integers(drops)) if drops else indices
        if last is None:
            indices = add(Unsqueeze(), indices, add.integers([-1]))
        taken = add(GatherND(batch_dims=batch), data, _wide(add, indices))
    else:
        places = add(Squeeze(), indices, add.integers(own))
        taken = add(Gather(axis=len(front)), data, places)
    order = (*range(batch), *front, *index, *behind)
    taken = _transposed(add, taken, [order.index(each) for each in range(len(wanted))])
    graph.redirect(node.output, taken)
    drop(graph, node)
    return f"GatherElements '{node.name}' takes whole slices"


def _transposed(add: Builder, value: Value, order: Sequence[int]) -> Value:
    known = tuple(order)
    return value if known == tuple(range(len(known))) else add(Transpose(perm=known), value)


def _scattered(graph: Graph, node: Node) -> str:
    """Rewrite a ScatterElements of whole slices; return a sentence about it.

    Along another axis than the first, slices are those of all places of the axes in front.
    """
    data, given, updates = node.operands
    indices = _source(given)
    found, places, wanted = (shape_of(v) for v in (data, indices, given))
    assert isinstance(node.op, ScatterElements)
    if found is None or places is None or not wanted or given.is_constant:
        return ""
    axis = normalize_axis(node.op.axis, len(wanted))
    if (len(wanted) > 1 or axis) and not _are_slices(found, places, wanted, axis):
        return ""
    outer, sizes = static_dims(wanted[: axis + 1]) if axis else None, static_dims(found)
    if axis and (outer is None or sizes is None or outer[:axis] != sizes[:axis]):
        return ""
    add = Builder(graph, node, node.name, (node,))
    behind = list(range(axis + 2, len(wanted)))
    vector = None if axis else _vector(indices)
    if vector is not None:  # of which all that scatter by it make the same column
        indices = add(Unsqueeze(), vector, add.integers([1]))
    elif behind:
        indices = add(Squeeze(), indices, add.integers(behind))
    elif len(wanted) == axis + 1:
        indices = add(Unsqueeze(), indices, add.integers([axis + 1]))
    indices = _wide(add, indices)
    if outer and sizes:
        count, rows = prod(outer[:axis]), outer[axis]
        updates = add.shaped(updates, [count * rows, *sizes[axis + 1 :]])
        data = add.shaped(data, [count, *sizes[axis:]] if count > 1 else sizes[axis:])
        indices = add.shaped(indices, [count * rows, 1])
        if count > 1:
            numbers = np.repeat(np.arange(count), rows)[:, None]
            indices = add(Concat(axis=1), add.constant(numbers, "places"), indices)
    written = add(ScatterND(reduction=node.op.reduction), data, indices, updates)
    if outer and sizes:
        written = add.shaped(written, sizes)
    graph.redirect(node.output, written)
    drop(graph, node)
    return f"ScatterElements '{node.name}' writes whole slices"


def _wide(add: Builder, indices: Value) -> Value:
    """Return indices as GatherND and ScatterND read them."""
    return indices if dtype_of(indices) == int64 else add(Cast(to=int64), indices)


def _source(value: Value) -> Value:
    """Return what is expanded to a value along axes of size 1, with as many axes."""
    node, shape = value.producer, shape_of(value)
    if node is None or shape is None or not isinstance(node.op, Expand | Tile):
        return value
    before = shape_of(node.operands[0])
    if before is None or len(before) != len(shape):
        return value
    grown = all(a in (1, b) for a, b in zip(before, shape, strict=True))
    return node.operands[0] if grown else value


def _has_axis_of(source: Value, expanded: Value, axis: int) -> bool:
    """Whether what is expanded to a value has all places along an axis that the value has."""
    before, after = (shape_of(value) or () for value in (source, expanded))
    return source is expanded or before[axis] == after[axis] is not None


def _vector(value: Value) -> Value | None:
    """Return the vector that a value is a view of, or None."""
    while rank_of(value) != 1:
        node = value.producer
        if node is None or not node.op.view:
            return None
        value = node.operands[0]
    return value


def _are_slices(data: Shape, indices: Shape, wanted: Shape, axis: int) -> bool:
    """Whether indices are the same for all elements behind an axis, of which all are wanted."""
    before, behind = slice(axis + 1), slice(axis + 1, None)
    if None in wanted or not wanted[behind] or indices[before] != wanted[before]:
        return False
    return wanted[behind] == data[behind] and all(size == 1 for size in indices[behind])


def _kinds(
    data: Shape, indices: Shape, wanted: Shape, axis: int
) -> tuple[int, list[int], list[int]] | None:
    """Return how many leading axes data and indices share, and what the other axes are of.

    Those of indices, whose places all have the same data but along `axis`; and those of slices, all
    of whose elements have the same indices. None if an axis is of both, or all are of indices.
    """
    batch = 0
    while batch < axis and data[batch] == indices[batch] != 1:
        batch += 1
    index, own = list[int](), list[int]()
    for each in range(batch, len(wanted)):
        is_index = data[each] == 1 and indices[each] == wanted[each]
        is_own = indices[each] == 1 and data[each] == wanted[each]
        if each == axis or (is_index and not (is_own and (each > axis or not batch))):
            index.append(each)
        elif is_own:
            own.append(each)
        else:
            return None
    same = (
        None not in wanted and indices[axis] == wanted[axis] and indices[:batch] == wanted[:batch]
    )
    are_slices = any(each > axis or wanted[each] != 1 for each in own)
    return (batch, index, own) if are_slices and same else None
