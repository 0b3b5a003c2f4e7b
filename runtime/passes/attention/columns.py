"""Heads as columns of a layer's rows, however they are split and ordered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from ...base.record import record
from ...ir.graph import Node, Value
from ...ir.types import Array, Dim
from ...ops.cuts import is_along_last, part_of, sliced_places
from ...ops.gather import Gather
from ...ops.movement import Slice, Split, Tile, Transpose
from ...ops.shape import RESHAPES, Reshape
from ..editing import shape_of, size_of, static_size

#: Names of axes that count batches and rows.
_COUNTS = ("batch", "row")
_MOVES = (*RESHAPES, Transpose, Slice, Split, Tile, Gather)
#: Maximum number of nodes between rows and heads.
_LENGTH = 8
#: How often columns may be repeated: each time is one more for the product that computes them.
_REPEATED = 2


@record
class HeadColumns:
    """Heads [b, h, t, d] whose elements are elements of rows [b, t, w].

    Attributes:
        source: the rows, with any leading axes; or an image [b, w, height, width] or [b, w, t],
            whose pixels are the rows.
        counts: b and t.
        width: number of elements of a row.
        columns: column of each element of a head, int64 [h, d].
        nodes: the nodes from the rows to the heads.
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
        """The first column, if all follow it in order; else None."""
        flat = self.columns.reshape(-1)
        start = int(flat[0])
        return start if (flat == np.arange(start, start + flat.size)).all() else None


def heads_of(value: Value, *, shared: bool = False) -> HeadColumns | None:
    """Return the nearest rows whose columns are the heads in a 4-D tensor.

    Rows that are only moved or cut, other than by a Split, are traced further. Heads moved to the
    front by a Transpose are rows themselves if they come from none, and so is a single head that
    several ones share.
    """
    path: list[tuple[Node, Value]] = []
    nearest: HeadColumns | None = None
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
        found = _found(value, counts, path)
        if found is not None:
            nearest = found
            maker = nearest.source.producer
            if maker is None or not isinstance(maker.op, _MOVES) or isinstance(maker.op, Split):
                return nearest
    if nearest is not None:
        return nearest
    if path:
        return _transposed(path[-1][0], counts)
    return _single(value, counts) if shared else None


def _single(value: Value, counts: tuple[Dim, Dim]) -> HeadColumns | None:
    """Return the only head, which all queries share (Gemma, Falcon), as rows."""
    _, number, rows, width = shape_of(value) or (None,) * 4
    if number != 1 or not isinstance(rows, int) or not isinstance(width, int):
        return None
    return HeadColumns(value, counts, width, np.arange(width)[None], ())


def _found(
    value: Value, counts: tuple[Dim, Dim], path: Sequence[tuple[Node, Value]]
) -> HeadColumns | None:
    """Return the heads that a path makes of an image or of rows; None if these are not both."""
    image, width = _pixels(value, counts), _width(value, counts, path[0][0])
    ways: list[tuple[tuple[str, ...], Sequence[Dim], int]] = []
    if image is not None:
        axes = ("batch", "", "high", "wide") if len(image) == 4 else ("batch", "", "row")
        ways.append((axes, image, image[1]))
    if width is not None:
        ways.append((("batch", "row", ""), (*counts, width), width))
    for axes, given, size in ways:
        layout: _Layout | None = _Layout(axes, np.arange(size))
        for each, result in path:
            layout = layout and _moved(layout, each, given, result)
            given = shape_of(result) or ()
        if layout is not None and layout.axes == ("batch", "", "row", "") and layout.columns.size:
            nodes = tuple(node for node, _ in path)
            is_image = axes[1] == ""
            found = HeadColumns(value, counts, size, layout.columns, nodes, is_image)
            return found if is_image else _whole(found)
    return None


def _whole(heads: HeadColumns) -> HeadColumns:
    """Return heads of reshaped rows as columns of the tensor that the rows are a part of.

    Reshaping the whole tensor before the cut leaves its parts in place.
    """
    node = heads.source.producer
    shape = shape_of(heads.source) or ()
    if node is None or not isinstance(node.op, Split) or shape[:-1] == heads.counts:
        return heads
    whole, sizes = node.inputs[0], {size_of(value, -1) for value in node.outputs}
    part = part_of(heads.source) if is_along_last(node) and len(sizes) == 1 else None
    if whole is None or part is None:
        return heads
    columns = heads.columns + part.places.start
    width = heads.width * len(node.outputs)
    return replace(heads, source=whole, width=width, columns=columns, nodes=(node, *heads.nodes))


def _width(value: Value, counts: tuple[Dim, Dim], reader: Node) -> int | None:
    """Return the length of a row if the tensor has these counts of rows; else None."""
    *outer, width = shape_of(value) or (None,)
    if not isinstance(width, int):
        return None
    if tuple(outer) == counts:
        return width
    size = static_size(outer)
    if size is None or size != static_size(counts) or not isinstance(reader.op, Reshape):
        return None
    return width


def _pixels(value: Value, counts: tuple[Dim, Dim]) -> tuple[int, ...] | None:
    """Return the sizes of an image with one pixel per row; None for anything else."""
    shape = shape_of(value) or ()
    sizes = tuple(size for size in shape if isinstance(size, int))
    if len(shape) not in (3, 4) or len(sizes) != len(shape):
        return None
    return sizes if (sizes[0], prod(sizes[2:])) == counts else None


def _transposed(node: Node, counts: tuple[Dim, Dim]) -> HeadColumns | None:
    """Return adjacent heads that a Transpose moves to the front."""
    source = node.inputs[0]
    shape = shape_of(source)
    if not isinstance(node.op, Transpose) or source is None or not shape or len(shape) != 4:
        return None
    heads, size = shape[2:]
    if node.op.order(4) != (0, 2, 1, 3) or not isinstance(heads, int) or not isinstance(size, int):
        return None
    columns = np.arange(heads * size).reshape(heads, size)
    return HeadColumns(source, counts, heads * size, columns, (node,)) if columns.size else None


@record
class _Layout:
    """How the elements of rows are arranged in a tensor.

    Attributes:
        axes: names "batch" and "row" for the axes that count these, "high" and "wide" for those
            that count rows together; empty for axes of columns.
        columns: the columns, over the axes without a name.
    """

    axes: tuple[str, ...]
    columns: Array

    def place(self, axis: int) -> int | None:
        """Return the axis of `columns` for one of the tensor; None if it has a name."""
        axis %= len(self.axes)
        return None if self.axes[axis] else self.axes[:axis].count("")


def _moved(layout: _Layout, node: Node, given: Sequence[Dim], result: Value) -> _Layout | None:
    op = node.op
    if isinstance(op, RESHAPES):
        return _reshaped(layout, given, shape_of(result) or ())
    if isinstance(op, Transpose):
        order = op.order(len(layout.axes))
        places = [place for axis in order if (place := layout.place(axis)) is not None]
        axes = tuple(layout.axes[axis] for axis in order)
        return _Layout(axes, layout.columns.transpose(places))
    if isinstance(op, Gather):
        return _gathered(layout, op.axis, node.inputs[1])
    if isinstance(op, Split):
        part = part_of(result)
        return None if part is None else _cut(layout, part.axis, part.places)
    return _tiled(layout, node) if isinstance(op, Tile) else _sliced(layout, node)


def _reshaped(layout: _Layout, given: Sequence[Dim], wanted: Sequence[Dim]) -> _Layout | None:
    """Return the arrangement for another shape, with batches and rows as separate axes."""
    if None in given or None in wanted:
        return None
    axes: list[str] = []
    sizes: list[int] = []
    left = list(wanted)

    def take() -> bool:
        """Make the next axis one of columns, or of a single batch or row."""
        dim = left.pop(0)
        if dim == 1 and single:
            axes.append(single.pop(0))
            return True
        axes.append("")
        sizes.append(dim if isinstance(dim, int) else 0)
        return isinstance(dim, int)

    #: Axes of size 1, which may be anywhere.
    single = [n for n, dim in zip(layout.axes, given, strict=True) if dim == 1 and n in _COUNTS]
    place = 0
    while place < len(given):
        name, dim = layout.axes[place], given[place]
        if name and dim == 1 and name in _COUNTS:
            if name in single and left and left[0] == 1:
                single.remove(name)
                axes.append(name)
                left.pop(0)
            place += 1
            continue
        if name:
            while left and left[0] == 1 and dim != 1:
                take()
            in_order = layout.axes[place : place + 2] == ("high", "wide")
            pixels = static_size((dim, given[place + 1])) if in_order else None
            if left and pixels is not None and left[0] == pixels:
                name, dim = "row", pixels
                place += 1
            if not left or left.pop(0) != dim:
                return None
            axes.append(name)
            place += 1
            continue
        end = place
        while end < len(given) and not layout.axes[end]:
            end += 1
        whole, found = prod(n for n in given[place:end] if isinstance(n, int)), 1
        while found < whole:
            if not left or not take():
                return None
            found *= 1 if axes[-1] else sizes[-1]
        if found != whole:
            return None
        place = end
    while left:
        if left[0] != 1:
            return None
        take()
    if single:
        return None
    return _Layout(tuple(axes), layout.columns.reshape(sizes))


def _gathered(layout: _Layout, axis: int, index: Value | None) -> _Layout | None:
    place = layout.place(axis)
    if place is None or index is None or index.data is None or index.data.ndim > 1:
        return None
    columns = np.take(layout.columns, index.data.astype(np.int64), place)
    axes = list(layout.axes)
    if index.data.ndim == 0:
        del axes[axis % len(axes)]
    return _Layout(tuple(axes), columns)


def _tiled(layout: _Layout, node: Node) -> _Layout | None:
    """Return the arrangement of columns that are repeated (heads of DiffLlama)."""
    counts = node.operands[1].data
    if counts is None or not 1 <= prod(map(int, counts)) <= _REPEATED:
        return None
    repeats = [int(n) for name, n in zip(layout.axes, counts, strict=True) if not name]
    named = all(int(n) == 1 for name, n in zip(layout.axes, counts, strict=True) if name)
    return replace(layout, columns=np.tile(layout.columns, repeats)) if named else None


def _sliced(layout: _Layout, node: Node) -> _Layout | None:
    places = sliced_places(node)
    if places is None:
        return None
    found: _Layout | None = layout
    for axis, part in places.items():
        if part.step <= 0:
            return None
        found = found and _cut(found, axis, part)
    return found


def _cut(layout: _Layout, axis: int, places: range) -> _Layout | None:
    place = layout.place(axis)
    if place is None:
        return None
    window = slice(places.start, places.stop, places.step)
    return replace(layout, columns=layout.columns[(slice(None),) * place + (window,)])
