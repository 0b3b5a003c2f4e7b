"""Neighbouring small steps of a plan become one, which their device starts at once.

A step of a few thousand elements takes less time than it takes to start it. A backend says which
of its steps can be one (`joining.Joining`). What they compute is stored as before, so that nothing
else of the plan changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..options import Options
from .backend import Backend
from .host import HOST
from .joining import Deferring, Joining, Part
from .rows import Layout, Row, Slot
from .streams import dependencies

#: How many groups a row may join.
MAX_OPEN = 4


def join(layout: Layout, backends: Sequence[Backend], options: Options) -> None:
    """Replace neighbouring rows by one where a backend can run them as one step."""
    able = {each.name: each for each in backends if isinstance(each, Joining)}
    if able:
        _replace(layout, _Joiner(layout, able, options).groups(), able)
    for row in layout.rows:
        if isinstance(row.step, Deferring):
            row.step.compile()


class _Joiner:
    """Finds groups of rows, which start where the first of each does.

    A row joins a group if it needs nothing of what comes between, and if that keeps nothing on
    other streams waiting: whatever reads what the group computes needs all that the group needs.
    """

    def __init__(self, layout: Layout, able: Mapping[str, Joining], options: Options) -> None:
        self._rows, self._able, self._options = layout.rows, able, options
        self._numbers = [i for i, row in enumerate(layout.rows) if row.kind != "view"]
        #: By row: the bits of those that it has to wait for, directly or not, and those that wait
        #: for it directly.
        self._behind: dict[int, int] = {}
        self._readers: dict[int, list[int]] = {}
        #: Bits of those that copy inputs to the device, which may come first.
        self._copies = 0
        direct = dependencies(layout.rows, self._numbers)
        for number in self._numbers:
            self._behind[number] = sum(1 << source for source in direct[number])
            for source in direct[number]:
                self._behind[number] |= self._behind[source]
                self._readers.setdefault(source, []).append(number)
            if self._rows[number].kind == "copy" and not self._behind[number]:
                self._copies |= 1 << number

    def groups(self) -> list[tuple[list[Row], list[Row]]]:
        """Return rows that should be one, each with the copies of inputs that it needs."""
        found, open_ = list[list[int]](), list[list[int]]()
        for number in self._numbers:
            if self._rows[number].device is HOST:
                open_.clear()
                continue
            group = next((each for each in reversed(open_) if self._joins(each, number)), None)
            if group is not None:
                group.append(number)
            elif self._can_be_one([number]):
                found.append([number])
                open_ = [*open_[1 - MAX_OPEN :], found[-1]]
        return [
            (self._of(group), self._of(self._copied(group)))
            for group in found
            if self._gain(self._of(group))
        ]

    def _copied(self, group: Sequence[int]) -> list[int]:
        """Return the copies of inputs that come after the first row of a group that needs them."""
        needed = 0
        for each in group:
            needed |= self._behind[each] & self._copies
        return [i for i in self._numbers if needed >> i & 1 and i > group[0]]

    def _of(self, numbers: Sequence[int]) -> list[Row]:
        return [self._rows[number] for number in numbers]

    def _gain(self, rows: Sequence[Row]) -> bool:
        steps = [row.step for row in rows if row.step is not None]
        return self._able[rows[0].backend].gains(steps)

    def _joins(self, group: Sequence[int], number: int) -> bool:
        own = sum(1 << each for each in group)
        between = (1 << number) - (1 << group[0]) & ~own & ~self._copies
        if self._behind[number] & between:
            return False
        members = (*group, number)
        inside = own | 1 << number | self._copies
        needed = 0
        for each in members:
            needed |= self._behind[each] & ~inside
        readers = {reader for each in members for reader in self._readers.get(each, ())}
        known = (self._behind[reader] for reader in readers.difference(members))
        if any(needed & ~each for each in known):
            return False
        return self._can_be_one(members)

    def _can_be_one(self, numbers: Sequence[int]) -> bool:
        rows = self._of(numbers)
        name = rows[0].backend
        steps = [row.step for row in rows if row.step is not None and row.backend == name]
        backend = self._able.get(name)
        if backend is None or len(steps) < len(rows):
            return False
        return backend.joins(steps, self._options)


def _replace(
    layout: Layout,
    groups: Sequence[tuple[Sequence[Row], Sequence[Row]]],
    able: Mapping[str, Joining],
) -> None:
    """Put one row in the place of the first of each group, and number all rows again."""
    wholes = {id(rows[0]): _joined(rows, able[rows[0].backend]) for rows, _ in groups}
    copied = {id(rows[0]): copies for rows, copies in groups}
    first_of = {id(row): rows[0] for rows, _ in groups for row in rows}
    kept, places = list[Row](), dict[int, int]()

    def keep(row: Row, instead: Row) -> None:
        if id(row) not in places:
            places[id(row)] = len(kept)
            kept.append(instead)

    for row in layout.rows:
        if first_of.get(id(row), row) is row:
            for copy in copied.get(id(row), ()):
                keep(copy, copy)
            keep(row, wholes.get(id(row), row))
    numbers = [places[id(first_of.get(id(row), row))] for row in layout.rows]
    _number(layout.slots, numbers, kept)
    layout.rows[:] = kept


def _number(slots: Sequence[Slot], numbers: Sequence[int], rows: Sequence[Row]) -> None:
    """Set the first and last rows of tensors: the last reader may be another one than before.

    Args:
        slots: all tensors.
        numbers: of the rows as they were, the places among those that are left.
        rows: those.
    """
    for slot in slots:
        stays = slot.last == len(numbers)  # a result
        slot.first = numbers[slot.first] if slot.first >= 0 else slot.first
        slot.last = len(rows) if stays else slot.first
    for number, row in enumerate(rows):
        for slot in row.inputs:
            slot.last = max(slot.last, number)


def _joined(rows: Sequence[Row], backend: Joining) -> Row:
    """Return the row that stands for several, which stores all that they store."""
    outputs = tuple(dict.fromkeys(slot for row in rows for slot in row.outputs))
    read = dict.fromkeys(slot for row in rows for slot in row.inputs)
    inputs = tuple(slot for slot in read if slot not in outputs)
    place = {slot: i for i, slot in enumerate((*inputs, *outputs))}
    sources, parts = dependencies(rows, range(len(rows))), list[Part]()
    for number, row in enumerate(rows):
        reads, writes = (tuple(place[s] for s in slots) for slots in (row.inputs, row.outputs))
        assert row.step is not None
        parts.append(Part(row.step, reads, writes, tuple(sorted(sources[number]))))
    step = backend.joined(parts)
    nodes = tuple(node for row in rows for node in row.nodes)
    first = rows[0]
    return Row("step", nodes, first.device, first.backend, step.kernel, inputs, outputs, step=step)
