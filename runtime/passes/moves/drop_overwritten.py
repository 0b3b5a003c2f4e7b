"""Drops a ScatterND that overwrites its whole tensor."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ir.grown import Grown
from ...ir.types import Array, Shape
from ...ops.elementwise import Cast
from ...ops.gather import ScatterND
from ...ops.movement import Concat, Expand
from ...ops.shape import Identity, Range, Reshape, Unsqueeze
from ...ops.shapes import normalize_axis
from ..driver import Context
from ..editing import number, shape_of

#: Maximum size of constants compared with index ranges.
_ELEMENTS = 1 << 20
#: Maximum number of nodes between a column of indices and its numbers.
_DEPTH = 8


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Drop each ScatterND whose indices enumerate the whole tensor in order.

    An assignment to a slice (``mask[:, :, :, :n] = ...``) is traced as one: every column of its
    indices enumerates one axis.
    """
    for node in list(graph.nodes):
        updates = _all_written(node)
        if updates is not None:
            graph.replace(node, [updates])
            yield f"{node.kind} '{node.name}' overwrites everything"


def _all_written(node: Node) -> Value | None:
    """Return the updates of a ScatterND if they are all of its result."""
    if not isinstance(node.op, ScatterND) or node.op.reduction != "none":
        return None
    data, indices, updates = node.inputs
    shape, places = shape_of(data), shape_of(indices)
    if not shape or not places or shape != shape_of(updates) or not _is_exact(shape):
        return None
    depth = len(places) - 1
    if indices is None or places != (*shape[:depth], depth):
        return None
    columns = list(_columns(indices, depth))
    counts = len(columns) == depth and all(_counts(c, i, _DEPTH) for i, c in enumerate(columns))
    return updates if counts else None


def _is_exact(shape: Shape) -> bool:
    return all(isinstance(size, int | Grown) for size in shape)


def _columns(indices: Value, depth: int) -> Iterator[Value | Array | None]:
    """Yield the coordinates along each axis, with a last axis of 1."""
    made = indices.producer
    if indices.data is not None and depth:
        if indices.data.size <= _ELEMENTS:
            yield from np.split(indices.data, depth, -1)
    elif made and isinstance(made.op, Concat) and normalize_axis(made.op.axis, depth + 1) == depth:
        yield from made.inputs


def _counts(value: Value | Array | None, axis: int | None, reach: int) -> bool:
    """Whether elements equal their index along an axis; 0 if None."""
    data = value if isinstance(value, np.ndarray) else value and value.data
    if isinstance(data, np.ndarray):
        if axis is None:
            return not data.any()
        behind = data.ndim - axis - 1
        places: Array = np.arange(int(data.shape[axis]))
        places = places.reshape((-1,) + (1,) * behind)
        return data.size <= _ELEMENTS and bool((data == places).all())
    assert not isinstance(value, np.ndarray)
    shape, node = shape_of(value), value and value.producer
    if node is None or shape is None or reach == 0:
        return False
    if axis is not None and shape[axis] == 1:
        axis = None
    if isinstance(node.op, Range):
        return axis is not None and number(node.inputs[0]) == 0 and number(node.inputs[2]) == 1
    before = shape_of(node.inputs[0])
    if before is None or not isinstance(node.op, Cast | Identity | Expand | Reshape | Unsqueeze):
        return False
    if axis is not None:
        axis = _axis_before(node, before, shape, axis)
        if axis is None:
            return False
    return _counts(node.inputs[0], axis, reach - 1)


def _axis_before(node: Node, before: Shape, after: Shape, axis: int) -> int | None:
    """Return the axis of a node's input that becomes the given one of its result unchanged."""
    if isinstance(node.op, Cast | Identity):
        return axis
    if isinstance(node.op, Expand):
        place = axis - len(after) + len(before)
        return place if place >= 0 and before[place] == after[axis] else None
    wide = [[i for i, size in enumerate(shape) if size != 1] for shape in (before, after)]
    same = [before[i] for i in wide[0]] == [after[i] for i in wide[1]]
    return wide[0][wide[1].index(axis)] if same else None
