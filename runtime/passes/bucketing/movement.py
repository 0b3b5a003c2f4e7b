"""Data movement in buckets: a growing axis ends at its actual size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir.dtypes import int64
from ...ir.graph import Node, Value
from ...ir.grown import Grown
from ...ir.types import Array, Dim
from ...ops.elementwise import (
    Add,
    Cast,
    Clip,
    Less,
    Max,
    Min,
    Mul,
    Where,
)
from ...ops.gather import Gather, GatherElements, GatherND, ScatterND, TensorScatter
from ...ops.movement import Concat, Pad, Slice, grown_bound
from ...ops.shape import (
    Reshape,
    Unsqueeze,
)
from ...ops.shapes import normalize_axes, normalize_axis
from .registry import rule
from .writer import GraphWriter, operand


@rule(Slice)
def slice_(writer: GraphWriter, node: Node) -> None:
    """Along a growing axis, or with growing bounds, rows are gathered."""
    x = operand(node, 0)
    dims, wanted = writer.dims(x), writer.dims(node.output)
    starts, ends = writer.known(node.inputs[1]), writer.known(node.inputs[2])
    if starts is None or ends is None:
        raise writer.error("its bounds are not known")
    given = [*node.inputs[3:], None, None][:2]
    axes = tuple(range(len(starts))) if given[0] is None else writer.numbers(given[0])
    steps = (1,) * len(starts) if given[1] is None else writer.numbers(given[1])
    if axes is None or steps is None:
        raise writer.error("its axes or its steps are not known")
    plain: list[tuple[int, int, int, int]] = []
    value = writer.read(x)
    for axis, start, end, step in zip(
        normalize_axes(axes, len(dims)), starts, ends, steps, strict=True
    ):
        size = dims[axis]
        fixed = all(isinstance(each, int) for each in (size, start, end))
        if fixed and isinstance(start, int) and isinstance(end, int):
            plain.append((axis, start, end, step))
        elif size != wanted[axis] or step != 1:
            value = _window(writer, value, axis, (size, start, step), wanted[axis])
    if plain:
        value = writer.add(Slice(), value, *map(writer.constant, _slice_inputs(plain)))
    assert value is not None
    writer.replace(value)


def _slice_inputs(plain: list[tuple[int, int, int, int]]) -> list[list[int]]:
    axes, starts, ends, steps = (list(each) for each in zip(*plain, strict=True))
    return [starts, ends, axes, steps]


def _window(
    writer: GraphWriter, x: Value | None, axis: int, how: tuple[Dim, Dim, int], wanted: Dim
) -> Value:
    """Return the rows of a slice with growing bounds; padding repeats the last row."""
    size, start, step = how
    first = grown_bound(size, start)
    if step != 1 or first is None:
        raise writer.error("its start is not known")
    count, room = writer.fixed(wanted), writer.fixed(size)
    if isinstance(first, int) and first + count <= room:
        bounds = [[first], [first + count], [axis]]
        return writer.add(Slice(), x, *map(writer.constant, bounds))
    places: Value = writer.constant(np.arange(count))
    if isinstance(first, int):
        last: Array = np.minimum(np.arange(count) + first, room - 1)
        return writer.add(Gather(axis=axis), x, writer.constant(last))
    places = writer.add(Add(), writer.true_sizes((first,)), places)
    if isinstance(wanted, Grown):
        places = writer.add(Clip(), places, None, writer.constant(room - 1))
    return writer.add(Gather(axis=axis), x, places)


@rule(Concat)
def concat(writer: GraphWriter, node: Node) -> None:
    """Parts concatenated to a growing tensor are written at its end."""
    op = node.op
    assert isinstance(op, Concat)
    parts = [value for value in node.inputs if value is not None]
    axis = normalize_axis(op.axis, len(writer.dims(parts[0])))
    sizes = [writer.dims(part)[axis] for part in parts]
    wanted = writer.dims(node.output)[axis]
    read = [writer.read(part) for part in parts]
    if not isinstance(wanted, Grown):
        writer.set_inputs(read)
        return
    kept = [(part, size) for part, size in zip(read, sizes, strict=True) if size != 0]
    base, size = kept[0]
    assert base is not None
    if len(kept) > 1 and isinstance(size, Grown) and all(isinstance(s, int) for _, s in kept[1:]):
        new = kept[1][0]
        if len(kept) > 2:
            new = writer.add(Concat(axis=axis), *(part for part, _ in kept[1:]))
        writer.replace(appended(writer, base, new, axis, size))
        return
    if len(kept) == 1:
        writer.replace(base)
        return
    writer.replace(_joined(writer, kept, axis, wanted))


def appended(writer: GraphWriter, base: Value, new: Value | None, axis: int, end: Grown) -> Value:
    """Write rows after the end of a growing tensor."""
    if axis == 0:
        count = new.tensor.dims[0] if new else 0
        rows = writer.add(Add(), writer.true_sizes((end,)), writer.constant(np.arange(count)))
        rows = writer.add(Unsqueeze(), rows, writer.constant([1]))
        return writer.add(ScatterND(), base, rows, new)
    at = writer.vector(end, base.tensor.dims[0])
    return writer.add(TensorScatter(axis=axis), base, new, at)


def _joined(
    writer: GraphWriter, parts: Sequence[tuple[Value | None, Dim]], axis: int, wanted: Grown
) -> Value:
    """Gather the rows of several parts, each after the end of the previous one."""
    places = writer.constant(np.arange(writer.fixed(wanted)))
    index, end, room = places, None, 0
    for _, size in parts[:-1]:
        end = size if end is None else writer.added(end, size)
        room += writer.fixed(size)
        true = writer.true_sizes((end,))
        shift = writer.add(Add(), places, writer.add(Mul(), true, writer.constant([-1])))
        behind = writer.add(Add(), shift, writer.constant([room]))
        index = writer.add(Where(), writer.add(Less(), places, true), index, behind)
    rooms = sum(writer.fixed(size) for _, size in parts)
    index = writer.add(Clip(), index, None, writer.constant(rooms - 1))
    whole = writer.add(Concat(axis=axis), *(part for part, _ in parts))
    return writer.add(Gather(axis=axis), whole, index)


@rule(Pad)
def pad(writer: GraphWriter, node: Node) -> None:
    """Rows after the end of a growing axis replace its padding."""
    op, x = node.op, operand(node, 0)
    assert isinstance(op, Pad)
    dims, wanted = writer.dims(x), writer.dims(node.output)
    widths = writer.known(node.inputs[1])
    inputs = [*node.inputs, None, None]
    axes = normalize_axes(range(len(dims)), len(dims))
    if inputs[3] is not None:
        found = writer.numbers(inputs[3])
        axes = None if found is None else normalize_axes(found, len(dims))
    if widths is None or axes is None:
        raise writer.error("its widths are not known")
    before = dict(zip(axes, widths, strict=False))
    behind = dict(zip(axes, widths[len(axes) :], strict=True))
    value = writer.read(x)
    assert value is not None
    numbers: list[int] = []
    for axis, (size, given) in enumerate(zip(dims, wanted, strict=True)):
        if not isinstance(given, Grown):
            continue
        if before.get(axis, 0) != 0 or op.mode != "constant" or not isinstance(size, Grown):
            raise writer.error("it pads the front of an axis that grows")
        if behind.get(axis, 0) != 0 and not _is_written(writer, node.output, axis):
            fill = 0 if inputs[2] is None else inputs[2]
            value = _filled(writer, value, axis, (size, len(dims)), fill)
        behind[axis] = 0
    for each in (before, behind):
        numbers += [_number(writer, each.get(axis, 0)) for axis in range(len(dims))]
    if any(numbers):
        value = writer.add(Pad(mode=op.mode), value, writer.constant(numbers), inputs[2])
    writer.replace(value)


def _is_written(writer: GraphWriter, cache: Value, axis: int) -> bool:
    """Whether all readers of a padded cache, maybe in another dtype, first write its new rows."""

    def writes(reader: Node) -> bool:
        if isinstance(reader.op, Cast):
            return _is_written(writer, reader.output, axis)
        rank = len(writer.dims(cache))
        return (
            isinstance(reader.op, TensorScatter)
            and reader.inputs[0] is cache
            and normalize_axis(reader.op.axis, rank) == axis
        )

    return not writer.graph.is_output(cache) and all(map(writes, cache.consumers))


def _filled(
    writer: GraphWriter, x: Value, axis: int, size: tuple[Grown, int], fill: Value | int
) -> Value:
    there = writer.there(size[0], size[1], axis)
    if isinstance(fill, int):
        fill = writer.constant(fill, x.tensor.dtype)
    return writer.add(Where(), there, x, fill)


def _number(writer: GraphWriter, size: Dim) -> int:
    if not isinstance(size, int):
        raise writer.error("it pads by a size that grows")
    return size


@rule(Gather, GatherElements)
def gather(writer: GraphWriter, node: Node) -> None:
    """Indices are counted from the front."""
    op, x, places = node.op, operand(node, 0), operand(node, 1)
    assert isinstance(op, Gather | GatherElements)
    axis = normalize_axis(op.axis, len(writer.dims(x)))
    writer.set_inputs([writer.read(x), _fronts(writer, x, axis, places)])


def _fronts(writer: GraphWriter, x: Value, axis: int, places: Value) -> Value:
    """Return indices along an axis, counted from the front if that grows.

    Indices in padding may be anything; they are moved into the valid range. Others that are not
    within an axis that grows are not within its bucket either.
    """
    size = writer.dims(x)[axis]
    known, grows = writer.known(places), tuple(writer.grown(places))
    read = writer.read(places) or places
    if grows and writer.may_index(places, size):
        bounds = -writer.fixed(size), writer.fixed(size) - 1
        return writer.add(Clip(), read, *(writer.constant(b, read.tensor.dtype) for b in bounds))
    if grows:
        read = writer.hidden(places, grows, 0)
    if not isinstance(size, Grown):
        return read
    if known is not None:
        for each in known:
            writer.need_index(each, size)
        if not any(isinstance(each, int) and each < 0 for each in known):
            return read
    zero = writer.constant(0, read.tensor.dtype)
    end = writer.true_sizes((size,))
    if read.tensor.dtype != int64:
        end = writer.add(Cast(to=read.tensor.dtype), end)
    if not read.tensor.dims:
        end = writer.add(Reshape(), end, writer.constant(np.zeros(0)))
    behind = writer.add(Add(), read, end)
    found = writer.add(Where(), writer.add(Less(), read, zero), behind, read)
    if known is not None:
        return found
    nowhere = writer.constant(writer.fixed(size), read.tensor.dtype)
    found = writer.add(Where(), writer.add(Less(), found, zero), nowhere, found)
    return writer.add(Where(), writer.add(Less(), found, end), found, nowhere)


@rule(GatherND)
def gather_nd(writer: GraphWriter, node: Node) -> None:
    """See `gather`; the last axis of the indices holds coordinates along leading axes."""
    op, x, places = node.op, operand(node, 0), operand(node, 1)
    assert isinstance(op, GatherND)
    *_, depth = writer.dims(places)
    if not isinstance(depth, int):
        raise writer.error("the number of its coordinates grows")
    sizes = writer.dims(x)[op.batch_dims : op.batch_dims + depth]
    grows = tuple(writer.grown(places))
    read = writer.read(places) or places
    if grows and all(map(writer.may_index, _coordinates(places, depth), sizes)):
        rooms = np.array([writer.fixed(size) for size in sizes])
        read = writer.add(Max(), read, writer.constant(-rooms))
        writer.set_inputs([writer.read(x), writer.add(Min(), read, writer.constant(rooms - 1))])
        return
    if grows:
        read = writer.hidden(places, grows, 0)
    known = writer.known(places)
    for i, each in enumerate(known or ()):
        writer.need_index(each, sizes[i % depth])
    may_be_behind = known is None or any(isinstance(each, int) and each < 0 for each in known)
    if may_be_behind and any(isinstance(size, Grown) for size in sizes):
        behind = writer.add(Add(), read, writer.true_sizes(sizes))
        is_behind = writer.add(Less(), read, writer.constant(0))
        read = writer.add(Where(), is_behind, behind, read)
        if known is None:
            rooms = writer.constant([writer.fixed(size) for size in sizes])
            is_there = writer.add(Less(), read, writer.true_sizes(sizes))
            read = writer.add(Where(), is_there, read, rooms)
            is_before = writer.add(Less(), read, writer.constant(0))
            read = writer.add(Where(), is_before, rooms, read)
    writer.set_inputs([writer.read(x), read])


def _coordinates(places: Value, depth: int) -> Sequence[Value]:
    """Return what coordinates along each axis are part of."""
    node = places.producer
    if node is None or not isinstance(node.op, Concat) or len(node.inputs) != depth:
        return [places] * depth
    is_last = normalize_axis(node.op.axis, len(places.tensor.dims)) == len(places.tensor.dims) - 1
    return node.operands if is_last else [places] * depth


@rule(TensorScatter)
def tensor_scatter(writer: GraphWriter, node: Node) -> None:
    """Indices are counted from the front; a circular buffer cannot grow."""
    op, new = node.op, operand(node, 1)
    assert isinstance(op, TensorScatter)
    axis = normalize_axis(op.axis, len(writer.dims(new)))
    writer.need_closed(new, [axis])
    if op.mode != "linear":
        writer.need_closed(node.inputs[0], [axis])
    writer.read_inputs()
