"""Tensors placed inside others, so that Concat, Split and Slice need no copy.

A slice may have no gaps, because all axes before the one that is cut have size 1 (an image of a
batch of one, cut along its channels in C order); every step can read and write it. Or its rows have
gaps: the channels of a channels-last image, the columns of a matrix, or parts of the rows of other
tensors. Those are for steps that declare it, see `Formats.pitched` and `Formats.rows`.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ..ops.cuts import part_of
from ..ops.movement import Concat, Slice, Split
from ..ops.shapes import normalize_axis
from .format import Format

if TYPE_CHECKING:
    from ..ir.graph import Node
    from .rows import Layout, Row, Slot

#: Alignment in bytes of slices and their rows, as kernels read whole words.
ALIGNMENT = 16


class _Cut(NamedTuple):
    """The memory layout of slices along an axis of a tensor.

    Attributes:
        step: bytes from one index of the axis to the next.
        pitch: see `Slot.pitch`.
    """

    step: int
    pitch: int


def _cut_of(slot: Slot, axis: int) -> _Cut | None:
    """Return how an axis of a slot is cut; None if the gaps would be unsupported."""
    dims, itemsize = slot.type.dims, slot.type.dtype.itemsize
    if not slot.nbytes:
        return None
    last = (slot.format is Format.CHANNELS_LAST or _is_pixel(dims)) and len(dims) > 2
    axes = (0, *range(2, len(dims)), 1) if last else tuple(range(len(dims)))
    place = axes.index(axis)
    row = slot.pitch or dims[axes[-1]]
    if place == len(axes) - 1:
        rows = prod(dims) // dims[axis]
        if rows > 1 and row * itemsize % ALIGNMENT:
            return None
        return _Cut(itemsize, row if rows > 1 else 0)
    if any(dims[a] != 1 for a in axes[:place]):
        return None
    return _Cut(prod(dims[a] for a in axes[place + 1 : -1]) * row * itemsize, slot.pitch)


class _Slices:
    """Finds slices in a layout whose steps are not yet built."""

    def __init__(self, layout: Layout, dense: Set[Node]) -> None:
        self.layout = layout
        self.dense = dense
        self.writers: dict[Slot, Row] = {}
        self.readers: dict[Slot, list[Row]] = {}
        for row in layout.rows:
            for slot in row.inputs:
                self.readers.setdefault(slot, []).append(row)
            for slot in row.outputs:
                self.writers[slot] = row
        self.views: dict[Slot, list[Slot]] = {}
        for slot in layout.slots:
            if slot.alias is not None:
                self.views.setdefault(slot.alias, []).append(slot)

    # ── what is joined ───────────────────────────────────────────────────────────────────────

    def join(self, row: Row, op: Concat) -> None:
        """Have the inputs of a Concat written directly into its output."""
        (whole,), parts = row.outputs, self._parts(row)
        axis = normalize_axis(op.axis, len(whole.type.dims))
        cut = _cut_of(whole, axis)
        if parts is None or cut is None:
            return
        starts = _starts(parts, axis, cut)
        if starts is None:
            return
        if self._lie_in_order(parts, starts, cut):
            if self._may_lie(whole, parts[0].pitch, row):
                self._place(whole, parts[0].root, parts[0].offset_in_root, parts[0].pitch)
                self._make_view(row)
            return
        apart = len({slot.root for slot in parts}) == len(parts)  # none is a view of another
        if apart and all(self._may_lie(slot, cut.pitch, row) for slot in parts):
            for slot, start in zip(parts, starts, strict=True):
                self._place(slot, whole, start, cut.pitch)
            self._make_view(row)

    def _parts(self, row: Row) -> tuple[Slot, ...] | None:
        """Return the slots of a Concat's inputs; None if some are constant or occur twice."""
        by_value = {slot.value: slot for slot in row.inputs}
        values = [value for value in row.nodes[0].inputs if value is not None]
        if len(by_value) != len(values) or any(value.is_constant for value in values):
            return None
        parts = tuple(by_value[value] for value in values)
        return parts if all(slot.nbytes for slot in parts) else None

    def _lie_in_order(self, parts: Sequence[Slot], starts: Sequence[int], cut: _Cut) -> bool:
        """Whether tensors are already adjacent, as in a Concat of more."""
        first = parts[0]
        return all(
            slot.alias is not None
            and slot.root is first.root
            and bool(slot.pitch) == bool(cut.pitch)
            and slot.pitch == first.pitch
            and slot.offset_in_root == first.offset_in_root + start
            for slot, start in zip(parts, starts, strict=True)
        )

    def rejoin(self, row: Row, op: Split) -> None:
        """Have the input of a Split written where its outputs are, if these are adjacent."""
        whole, parts = row.inputs[0], row.outputs
        axis = normalize_axis(op.axis, len(whole.type.dims))
        cut = _cut_of(whole, axis)
        if cut is None or len(parts) != len(row.nodes[0].outputs):
            return
        starts = _starts(parts, axis, cut)
        if starts is None or not self._lie_in_order(parts, starts, cut):
            return
        if self._may_lie(whole, parts[0].pitch, row):
            self._place(whole, parts[0].root, parts[0].offset_in_root, parts[0].pitch)
            self._make_view(row)

    # ── what is cut ──────────────────────────────────────────────────────────────────────────

    def cut(self, row: Row, axis: int, starts: Sequence[int]) -> None:
        """Have slices of a tensor read in place.

        Args:
            row: of a Split or Slice.
            axis: the axis that is cut.
            starts: start of each output along it.
        """
        whole = row.inputs[0]
        cut = _cut_of(whole, axis)
        if cut is None or any(start * cut.step % ALIGNMENT for start in starts):
            return
        if all(slot.nbytes and self._may_lie(slot, cut.pitch, row) for slot in row.outputs):
            for slot, start in zip(row.outputs, starts, strict=True):
                self._place(slot, whole, start * cut.step, cut.pitch)
            self._make_view(row)

    # ── who takes it ─────────────────────────────────────────────────────────────────────────

    def _may_lie(self, slot: Slot, pitch: int, without: Row) -> bool:
        """Whether a slot is not placed yet and all but one of its rows accept gaps.

        A view with the same rows is where the slot is that it shows, which other rows may read.
        """
        base = self._base(slot)
        if base.alias is not None or base in self.layout.lent:
            return False
        if not pitch:
            return True
        writer, group = self.writers.get(base), self._seen(base)
        if writer is None or group is None or group & {*self.layout.outputs.values()}:
            return False
        for own in group:
            for row in self.readers.get(own, ()):
                shows = row.kind == "view" and row.outputs[0] in group
                if row is not without and not shows and not self._takes(row, own):
                    return False
        return writer is without or self._takes(writer, base)

    def _base(self, slot: Slot) -> Slot:
        """Return the slot that a view with the same rows shows, or the slot itself."""
        while slot.alias is not None and not slot.offset and _has_rows_of(slot, slot.alias):
            slot = slot.alias
        return slot

    def _seen(self, base: Slot) -> set[Slot] | None:
        """Return a slot and the views of it; None if some have other rows."""
        found, todo = {base}, [base]
        while todo:
            for view in self.views.get(todo.pop(), ()):
                if view.offset or view.pitch or not _has_rows_of(view, base):
                    return None
                found.add(view)
                todo.append(view)
        return found

    def _place(self, slot: Slot, whole: Slot, offset: int, pitch: int) -> None:
        """Place a slot in another one, with the views of it."""
        base = self._base(slot)
        _lay(base, whole, offset, pitch)
        self.views.setdefault(whole, []).append(base)
        for view in self._seen(base) or ():
            view.pitch = pitch
            if pitch and _is_pixel(view.type.dims):
                view.format = Format.CHANNELS_LAST

    def _takes(self, row: Row, slot: Slot) -> bool:
        """Whether a row accepts gaps between the rows of a slot."""
        if row.claim is not None:
            formats = row.claim.formats
            if slot.format is not Format.CHANNELS_LAST and _is_pixel(slot.type.dims):
                return False  # its rows are of single elements for a step
            has_channels = slot.format is Format.CHANNELS_LAST or len(slot.type.dims) == 2
            able = formats.pitched if has_channels else formats.rows
            return slot.value in able and self.dense.isdisjoint(row.nodes)
        if row.kind == "reformat":
            return slot.format is Format.CHANNELS_LAST
        return row.kind == "view" and _is_cut(row.nodes[0])

    def _make_view(self, row: Row) -> None:
        row.kind, row.backend, row.kernel, row.claim = "view", "plan", "view", None


def _is_cut(node: Node) -> bool:
    return isinstance(node.op, Concat | Split | Slice)


def _starts(parts: Sequence[Slot], axis: int, cut: _Cut) -> list[int] | None:
    """Return the byte offset of each part; None if kernels could not read words there."""
    sizes = [slot.type.dims[axis] * cut.step for slot in parts]
    starts = list(accumulate(sizes, initial=0))[:-1]
    return None if any(start % ALIGNMENT for start in starts) else starts


def _is_pixel(dims: tuple[int, ...]) -> bool:
    """Whether images have one pixel: their bytes are the same in all formats, rows of channels."""
    return len(dims) > 2 and prod(dims[2:]) == 1


def _has_rows_of(slot: Slot, other: Slot) -> bool:
    """Whether the same bytes are rows of the same length, as one tensor and as another."""
    lengths = {_row_of(each) for each in (slot, other)}
    return slot.nbytes == other.nbytes > 0 and len(lengths) == 1 and lengths != {()}


def _row_of(slot: Slot) -> tuple[int, ...]:
    """Return the length of a slot's rows; none of a scalar."""
    dims = slot.type.dims
    return dims[1:2] if _is_pixel(dims) else slot.format.physical(dims)[-1:]


def _lay(slot: Slot, whole: Slot, offset: int, pitch: int) -> None:
    slot.alias, slot.offset, slot.pitch = whole, offset, pitch


def share_slices(layout: Layout, dense: Set[Node] = frozenset()) -> None:
    """Turn rows of Concat, Split and Slice into views where all their readers and writers allow it.

    Later Concats are handled first: the result of an earlier one is often the beginning of a later
    one.

    Args:
        layout: before its steps are built.
        dense: nodes whose tensors must have no gaps.
    """
    slices = _Slices(layout, dense)
    alone = [row for row in layout.rows if row.kind == "step" and len(row.nodes) == 1]
    for row in reversed(alone):
        op = row.nodes[0].op
        if isinstance(op, Concat):
            slices.join(row, op)
        elif isinstance(op, Split) and len(row.inputs) == 1:
            slices.rejoin(row, op)
    for row in alone:
        op = row.nodes[0].op
        if row.kind != "step" or not row.inputs:
            continue
        if isinstance(op, Split) and len(row.inputs) == 1:  # else a run checks the sizes
            axis = normalize_axis(op.axis, len(row.inputs[0].type.dims))
            sizes = accumulate((v.tensor.dims[axis] for v in row.nodes[0].outputs), initial=0)
            starts = dict(zip(row.nodes[0].outputs, sizes, strict=False))
            slices.cut(row, axis, [starts[slot.value] for slot in row.outputs])
        elif isinstance(op, Slice):
            part = part_of(row.nodes[0].output)
            if part is not None:
                slices.cut(row, part.axis, [part.places.start])
