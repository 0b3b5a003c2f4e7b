"""Which places of its axes a node takes out of a tensor or writes, or which axes it reduces.

ONNX counts axes, indices and bounds from either end, and clamps bounds. What passes and backends
find here is counted from the front, and exists.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def axis_of(node: Node) -> int | None:
    """Return the axis that a node's attribute names, of what it reads first; None if unknown."""
    axis: int | None = getattr(node.op, "axis", None)
    shape = _shape(node.inputs[0]) if node.inputs else None
    if axis is None or not shape or not -len(shape) <= axis < len(shape):
        return None
    return axis % len(shape)


def is_along_last(node: Node) -> bool:
    """Whether a node's attribute names the last axis of what it reads first."""
    axis = axis_of(node)
    return axis is not None and axis + 1 == len(_shape(node.inputs[0]) or ())


def indices_of(node: Node) -> Array | None:
    """Return the known indices of a Gather, counted from the front; None for another node."""
    shape = _shape(node.inputs[0]) if isinstance(node.op, Gather) else None
    indices = node.operands[1].known if shape else None
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
    if rank is None or (axes is not None and axes.known is None):
        return None
    return tuple(sorted(node.op.axes(tuple(_list(axes)) or None, rank)))


def axes_of(node: Node) -> tuple[int, ...] | None:
    """Return the axes that a node is along; None if they are not known.

    A Slice without axes is along all; that of another node is an attribute.
    """
    if not isinstance(node.op, Slice):
        axis = axis_of(node)
        return None if axis is None else (axis,)
    shape = _shape(node.inputs[0])
    axes = (*node.inputs[3:], None)[0]
    if shape is None or axes is None:
        return None if shape is None else tuple(range(len(shape)))
    numbers = axes.known
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
    if not sizes or axes is None or any(value.known is None for value in given):
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
    axis, places = axis_of(node), None
    if isinstance(node.op, Gather):
        indices = indices_of(node)
        if indices is not None and indices.size == 1 and indices.ndim < 2:
            place = int(indices.reshape(-1)[0])
            places = range(place, place + 1)
    elif isinstance(node.op, Slice):
        taken = sliced_places(node) or {}
        cut = {axis: each for axis, each in taken.items() if each != _all(shape[axis])} or taken
        axis, places = next(iter(cut.items())) if len(cut) == 1 else (None, None)
    elif isinstance(node.op, Split) and axis is not None:
        places = _places_of_split(node, value, axis)
    if axis is None or not places or places.step != 1:
        return None
    return Part(source, axis, places)


def joint_of(parts: Sequence[Part | None]) -> Part | None:
    """Return what equal parts of a tensor are together, if each is next to the one before."""
    first = parts[0]
    if first is None:
        return None
    source, axis, places = first
    starts = range(places.start, places.start + len(parts) * len(places), len(places))
    wanted = [Part(source, axis, range(start, start + len(places))) for start in starts]
    return Part(source, axis, range(starts.start, starts.stop)) if [*parts] == wanted else None


def place_of(node: Node) -> tuple[int, int] | None:
    """Return axis and place if a Gather or Slice takes one place of several of an axis.

    A Gather does so without the axis, and also of the only place; None for another node.
    """
    part = part_of(node.output) if isinstance(node.op, Gather | Slice) else None
    if part is None or len(part.places) != 1:
        return None
    if isinstance(node.op, Gather):
        is_place = _shape(node.operands[1]) == ()
    else:
        is_place = _size(part.source, part.axis) != 1
    return (part.axis, part.places.start) if is_place else None


def split_sizes(node: Node) -> tuple[int, tuple[int, ...]] | None:
    """Return the axis of a Split and the sizes of its parts; None unless all are known."""
    axis = axis_of(node) if isinstance(node.op, Split) else None
    if axis is None:
        return None
    sizes = [size for part in node.outputs if isinstance(size := _size(part, axis), int)]
    return (axis, tuple(sizes)) if len(sizes) == len(node.outputs) else None


def _places_of_split(split: Node, part: Value, axis: int) -> range | None:
    """Return the places that a part has, if its size and those of the parts before it are known."""
    place, given = split.outputs.index(part), (*split.inputs, None)[1]
    first, size = (_size(each, axis) for each in (split.outputs[0], part))
    begin: int | None = None
    if given is None and isinstance(first, int):
        begin = first * place  # only the last part may be smaller
    elif given is not None and isinstance(given.type, TensorType) and given.type.value is not None:
        before = given.type.value[:place]
        if before.dtype != object or all(isinstance(n, int) for n in before):
            begin = int(before.sum())
    return None if begin is None or not isinstance(size, int) else range(begin, begin + size)


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


def _list(value: Value | None) -> list[int]:
    """Return known numbers; none of an omitted input, and one where a file has a scalar."""
    numbers = None if value is None else value.known
    return [] if numbers is None else numbers.reshape(-1).tolist()


def _size(value: Value, axis: int) -> Dim:
    shape = _shape(value)
    return shape[axis] if shape else None


def _shape(value: Value | None) -> Shape | None:
    return value.type.shape if value is not None and isinstance(value.type, TensorType) else None
