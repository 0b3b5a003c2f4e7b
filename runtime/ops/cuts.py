"""Which places of its axes a node takes out of a tensor or writes, or which axes it reduces.

ONNX counts axes, indices and bounds from either end, and clamps bounds. What passes and backends
find here is counted from the front, and exists.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..ir.graph import Node, Value
from ..ir.types import Array, Dim, Shape, TensorType
from .gather import Gather, ScatterElements, ScatterND, counted
from .movement import Slice, Split, bounds_of_slice
from .reduce import Reduce
from .shapes import normalize_axes, normalize_axis


class Part(NamedTuple):
    """Adjacent places of one axis of a tensor."""

    source: Value
    axis: int
    places: range


class Update(NamedTuple):
    """What is written to places of one axis of a tensor, at all places of the others."""

    axis: int
    places: range
    value: Value


def indices_of(node: Node) -> Array | None:
    """Return the known indices of a Gather, counted from the front; None for another node."""
    shape = _shape(node.inputs[0]) if isinstance(node.op, Gather) else None
    indices = known(node.inputs[1]) if shape else None
    if not shape or indices is None or not isinstance(node.op, Gather):
        return None
    size = shape[normalize_axis(node.op.axis, len(shape))]
    return counted(indices, size) if isinstance(size, int) else None


def reduced_axes(node: Node, rank: int | None = None) -> tuple[int, ...] | None:
    """Return the axes that a reduction is along, in order; None of another node, or unless known.

    Args:
        node: the node.
        rank: of what it reads, if that has another one by now.
    """
    if not isinstance(node.op, Reduce):
        return None
    shape, (axes, *_) = _shape(node.inputs[0]), (*node.inputs[1:], None)
    rank = len(shape) if rank is None and shape is not None else rank
    if rank is None or (axes is not None and known(axes) is None):
        return None
    return tuple(sorted(node.op.axes(tuple(_list(axes)) or None, rank)))


def axes_of(node: Node) -> tuple[int, ...] | None:
    """Return the axes that a Slice names, all if it names none; None if they are not known."""
    shape = _shape(node.inputs[0])
    axes = (*node.inputs[3:], None)[0]
    if shape is None or axes is None:
        return None if shape is None else tuple(range(len(shape)))
    numbers = known(axes)
    return None if numbers is None else normalize_axes(numbers.reshape(-1).tolist(), len(shape))


def sliced_places(node: Node, shape: Shape | None = None) -> dict[int, range] | None:
    """Return the places that a Slice takes of each axis that it names.

    None for another node, and unless its constants and the sizes of these axes are known.

    Args:
        node: the node.
        shape: of which its bounds are, if its input has another one by now.
    """
    sizes = (shape or _shape(node.inputs[0])) if isinstance(node.op, Slice) else None
    axes = axes_of(node) if sizes else None
    given = [value for value in node.inputs[1:] if value is not None]
    if not sizes or axes is None or any(known(value) is None for value in given):
        return None
    starts, ends, _, steps = (*map(_list, node.inputs[1:]), [], [])[:4]
    found: dict[int, range] = {}
    for i, axis in enumerate(axes[: len(starts)]):
        start, end, step = starts[i], ends[i], steps[i] if steps else 1
        size = sizes[axis]
        if not isinstance(size, int):
            return None
        part = range(*bounds_of_slice(start, end, step, size), step)
        found[axis] = range(part[0], part[0] + 1) if len(part) == 1 else part
    return found


def part_of(value: Value) -> Part | None:
    """Return which adjacent places of the only axis of which it has not all a value has.

    It is the result of a Slice, a part of a Split, or one place that a Gather takes, with or
    without its axis; None for other values, and for parts without places.
    """
    node = value.producer
    source = node.inputs[0] if node is not None and node.inputs else None
    shape = _shape(source)
    if node is None or source is None or not shape:
        return None
    found = None
    if isinstance(node.op, Gather):
        indices = indices_of(node)
        if indices is not None and indices.size == 1 and indices.ndim < 2:
            place = int(indices.reshape(-1)[0])
            found = normalize_axis(node.op.axis, len(shape)), range(place, place + 1)
    elif isinstance(node.op, Slice):
        places = sliced_places(node) or {}
        cut = [each for each in places.items() if each[1] != _all(shape[each[0]])]
        found = (cut or [*places.items()])[0] if len(cut or places) == 1 else None
    elif isinstance(node.op, Split):
        axis = normalize_axis(node.op.axis, len(shape))
        parts = node.outputs[: node.outputs.index(value) + 1]
        sizes = [(_shape(each) or shape)[axis] for each in parts]
        *before, size = (size for size in (0, *sizes) if isinstance(size, int))
        if len(before) == len(sizes):
            found = axis, range(sum(before), sum(before) + size)
    if found is None or not len(found[1]) or found[1].step != 1:
        return None
    return Part(source, *found)


def update_of(node: Node) -> Update | None:
    """Return what a scatter writes, if that is to places of one axis; see `written_places`."""
    found = written_places(node) or {}
    return Update(*next(iter(found.items())), node.operands[2]) if len(found) == 1 else None


def written_places(node: Node) -> dict[int, range] | None:
    """Return the places to which a scatter writes, of each axis that its indices are of.

    None for another node or one that combines elements, and unless its indices are constant and
    these places a box: along each axis they ascend at equal distances.
    """
    if not isinstance(node.op, ScatterND | ScatterElements) or node.op.reduction != "none":
        return None
    shape, places = _shape(node.output), node.operands[1].data
    if places is None or not places.size:
        return None
    if isinstance(node.op, ScatterElements):
        if shape is None or len(shape) != places.ndim:
            return None
        axis = normalize_axis(node.op.axis, len(shape))
        if (*shape[:axis], *shape[axis + 1 :]) != (*places.shape[:axis], *places.shape[axis + 1 :]):
            return None
        line = _distances(np.moveaxis(places, axis, -1))
        return None if line is None else {axis: line}
    depth = places.shape[-1]
    if places.ndim != depth + 1:
        return None
    sizes = [size for size in (shape or ())[:depth] if isinstance(size, int)]
    counts = counted(places, *sizes) if len(sizes) == depth else places
    if counts is None:
        return None
    lines = [_distances(np.moveaxis(counts[..., axis], axis, -1)) for axis in range(depth)]
    found = {axis: line for axis, line in enumerate(lines) if line is not None}
    return found if len(found) == depth else None


def _distances(lines: Array) -> range | None:
    """Return the places that each line along the last axis has, if they are at equal distances."""
    size = int(lines.shape[-1])
    first = int(lines.flat[0])
    step = int(lines.flat[1]) - first if size > 1 else 1
    if first < 0 or step < 1 or (lines != first + step * np.arange(size)).any():
        return None
    return range(first, first + step * size, step)


def _all(size: Dim) -> range | None:
    return range(size) if isinstance(size, int) else None


def known(value: Value | None) -> Array | None:
    """Return the elements of a tensor, if they are constant or known to inference."""
    if value is None or value.data is not None or not isinstance(value.type, TensorType):
        return None if value is None else value.data
    return value.type.known


def _list(value: Value | None) -> list[int]:
    """Return known numbers; none of an omitted input, and one where a file has a scalar."""
    numbers = known(value)
    return [] if numbers is None else numbers.reshape(-1).tolist()


def _shape(value: Value | None) -> Shape | None:
    return value.type.shape if value is not None and isinstance(value.type, TensorType) else None
