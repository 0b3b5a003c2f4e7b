"""Heads as columns of the rows that a layer gives, however they are cut out and ordered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ..ir.graph import Node, Value
from ..ir.types import Array, Dim
from ..ops.gather import Gather
from ..ops.movement import Slice, Split, Transpose
from ..ops.shape import Flatten, Reshape, Squeeze, Unsqueeze
from .editing import shape_of

_RESHAPES = (Reshape, Flatten, Squeeze, Unsqueeze)
_MOVES = (*_RESHAPES, Transpose, Slice, Split, Gather)
#: Most nodes between rows and heads.
_LENGTH = 8


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads [b, h, t, d] of which each element is one of a row [b, t, w].

    Attributes:
        source: the rows, counted by any axes; or an image [b, w, height, width], whose pixels
            are the rows.
        counts: b and t.
        width: how many elements a row has.
        columns: which element of a row each of a head is, int64 [h, d].
        nodes: from the rows to the heads.
        is_image: whether the source is an image.
    """

    source: Value
    counts: tuple[Dim, Dim]
    width: int
    columns: Array
    nodes: tuple[Node, ...]
    is_image: bool = False

    @property
    def first(self) -> int | None:
        """The first column, where all of them follow it in order; None where they do not."""
        flat = self.columns.reshape(-1)
        start = int(flat[0])
        return start if (flat == np.arange(start, start + flat.size)).all() else None


def heads_of(value: Value) -> Heads | None:
    """Return what rows the heads in a tensor of four axes are columns of; the nearest rows.

    Where a Transpose has brought heads in front that come from no rows, they are rows themselves.
    """
    path: list[tuple[Node, Value]] = []
    shape = shape_of(value)
    if shape is None or len(shape) != 4 or None in shape:
        return None
    counts = (shape[0], shape[2])
    while len(path) < _LENGTH:
        node = value.producer
        if node is None or not isinstance(node.op, _MOVES) or node.inputs[0] is None:
            break
        path.insert(0, (node, value))
        value = node.inputs[0]
        image = _pixels(value, counts)
        width = image[1] if image else _width(value, counts, node)
        if width is None:
            continue
        axes = ("batch", "", "high", "wide") if image else ("batch", "row", "")
        lies: _Lies | None = _Lies(axes, np.arange(width))
        given: Sequence[Dim] = image or (*counts, width)
        for each, result in path:
            lies = lies and _moved(lies, each, given, result)
            given = shape_of(result) or ()
        if lies is not None and lies.axes == ("batch", "", "row", "") and lies.columns.size:
            nodes = tuple(node for node, _ in path)
            return Heads(value, counts, width, lies.columns, nodes, image is not None)
    return _turned(path[-1][0], counts) if path else None


def _width(value: Value, counts: tuple[Dim, Dim], reader: Node) -> int | None:
    """Return how long so many rows are; None where a tensor is not known to be those."""
    *outer, width = shape_of(value) or (None,)
    if not isinstance(width, int):
        return None
    if tuple(outer) == counts:
        return width
    sizes = [size for size in (*outer, *counts) if isinstance(size, int)]
    if len(sizes) != len(outer) + 2 or not isinstance(reader.op, Reshape):
        return None
    return width if prod(sizes[:-2]) == prod(sizes[-2:]) else None


def _pixels(value: Value, counts: tuple[Dim, Dim]) -> tuple[int, ...] | None:
    """Return the sizes of an image of as many pixels as there are rows; None for anything else."""
    shape = shape_of(value) or ()
    sizes = tuple(size for size in shape if isinstance(size, int))
    if len(shape) != 4 or len(sizes) != 4 or (sizes[0], sizes[2] * sizes[3]) != counts:
        return None
    return sizes


def _turned(node: Node, counts: tuple[Dim, Dim]) -> Heads | None:
    """Return heads side by side that a Transpose brings in front."""
    source = node.inputs[0]
    shape = shape_of(source)
    if not isinstance(node.op, Transpose) or source is None or not shape or len(shape) != 4:
        return None
    heads, size = shape[2:]
    if node.op.order(4) != (0, 2, 1, 3) or not isinstance(heads, int) or not isinstance(size, int):
        return None
    columns = np.arange(heads * size).reshape(heads, size)
    return Heads(source, counts, heads * size, columns, (node,)) if columns.size else None


@dataclass(frozen=True, slots=True)
class _Lies:
    """Where the elements of rows are in a tensor.

    Attributes:
        axes: "batch" and "row", which count these, "high" and "wide", which count rows together;
            empty for those of columns.
        columns: the columns, by the axes that have no name.
    """

    axes: tuple[str, ...]
    columns: Array

    def place(self, axis: int) -> int | None:
        """Return which axis of `columns` one of the tensor is; None where it is no such one."""
        axis %= len(self.axes)
        return None if self.axes[axis] else self.axes[:axis].count("")


def _moved(lies: _Lies, node: Node, given: Sequence[Dim], result: Value) -> _Lies | None:
    op = node.op
    if isinstance(op, _RESHAPES):
        return _reshaped(lies, given, shape_of(result) or ())
    if isinstance(op, Transpose):
        order = op.order(len(lies.axes))
        places = [place for axis in order if (place := lies.place(axis)) is not None]
        axes = tuple(lies.axes[axis] for axis in order)
        return _Lies(axes, lies.columns.transpose(places))
    if isinstance(op, Gather):
        return _gathered(lies, op.axis, node.inputs[1])
    if isinstance(op, Split):
        return _cut(lies, op.axis, _part(node, result))
    return _sliced(lies, node)


def _reshaped(lies: _Lies, given: Sequence[Dim], wanted: Sequence[Dim]) -> _Lies | None:
    """Return the same in another shape, in which batches and rows are axes of their own."""
    if None in given or None in wanted:
        return None
    axes: list[str] = []
    sizes: list[int] = []
    left = list(wanted)

    def take() -> bool:
        """Make the next axis one of columns."""
        dim = left.pop(0)
        axes.append("")
        sizes.append(dim if isinstance(dim, int) else 0)
        return isinstance(dim, int)

    place = 0
    while place < len(given):
        name, dim = lies.axes[place], given[place]
        if name:
            while left and left[0] == 1 and dim != 1:
                take()
            pixels = _product(dim, given[place + 1]) if name == "high" else None
            if left and pixels is not None and left[0] == pixels:
                name, dim = "row", pixels
                place += 1
            if not left or left.pop(0) != dim:
                return None
            axes.append(name)
            place += 1
            continue
        end = place
        while end < len(given) and not lies.axes[end]:
            end += 1
        whole, found = prod(n for n in given[place:end] if isinstance(n, int)), 1
        while found < whole:
            if not left or not take():
                return None
            found *= sizes[-1]
        if found != whole:
            return None
        place = end
    while left:
        if left[0] != 1:
            return None
        take()
    return _Lies(tuple(axes), lies.columns.reshape(sizes))


def _product(one: Dim, other: Dim) -> int | None:
    return one * other if isinstance(one, int) and isinstance(other, int) else None


def _gathered(lies: _Lies, axis: int, index: Value | None) -> _Lies | None:
    place = lies.place(axis)
    if place is None or index is None or index.data is None or index.data.ndim > 1:
        return None
    columns = np.take(lies.columns, index.data.astype(np.int64), place)
    axes = list(lies.axes)
    if index.data.ndim == 0:
        del axes[axis % len(axes)]
    return _Lies(tuple(axes), columns)


def _part(node: Node, result: Value) -> slice | None:
    """Return what a Split cuts out as one of its results."""
    assert isinstance(node.op, Split)
    begin = 0
    for value in node.outputs:
        size = (shape_of(value) or (None,) * 8)[node.op.axis]
        if not isinstance(size, int):
            return None
        if value is result:
            return slice(begin, begin + size)
        begin += size
    return None


def _sliced(lies: _Lies, node: Node) -> _Lies | None:
    given = [None if value is None else value.data for value in node.inputs[1:]]
    starts, ends, axes, steps = (*given, None, None)[:4]
    if starts is None or ends is None or axes is None:
        return None
    many = np.ones_like(starts) if steps is None else steps
    found: _Lies | None = lies
    for start, end, axis, step in zip(starts, ends, axes, many, strict=True):
        if step <= 0:
            return None
        found = found and _cut(found, int(axis), slice(int(start), int(end), int(step)))
    return found


def _cut(lies: _Lies, axis: int, part: slice | None) -> _Lies | None:
    place = lies.place(axis)
    if place is None or part is None:
        return None
    return replace(lies, columns=lies.columns[(slice(None),) * place + (part,)])
