"""Neighbouring small steps of a plan become one, which their device starts at once.

A step of a few thousand elements takes less time than it takes to start it. A backend says which of
its steps can be one (`backend.Joining`). What they compute is stored as before, so that nothing else
of the plan changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..options import Options
from .backend import Backend, Deferring, Joining, Part
from .rows import Layout, Row, Slot


@dataclass(slots=True, eq=False)
class _Group:
    """Rows that become one.

    Attributes:
        rows: in order, without views.
        sources: bit i is set if what row i of the layout computes has to be there before.
        own: bits of the rows.
    """

    rows: list[Row]
    sources: int
    own: int


def join(layout: Layout, backends: Sequence[Backend], options: Options) -> None:
    """Replace neighbouring rows by one where a backend can run them as one step."""
    able = {each.name: each for each in backends if isinstance(each, Joining)}
    if able:
        groups = _Joiner(layout, able, options).groups()
        _replace(layout, [group.rows for group in groups], able)
    for row in layout.rows:
        if isinstance(row.step, Deferring):
            row.step.compile()


class _Joiner:
    """Finds groups of neighbouring rows.

    A row joins the one before it if that delays nothing on another stream: what it reads is computed
    in the group, or has to be there before the group anyway; or nothing but the row reads what the
    group has computed so far.
    """

    def __init__(self, layout: Layout, able: Mapping[str, Joining], options: Options) -> None:
        self._layout, self._able, self._options = layout, able, options
        self._writers: dict[Slot, int] = {}  # by root: bits of the rows that have written it
        self._behind: list[int] = []  # by row: bits of all that it depends on
        self._readers = _readers_of(layout)

    def groups(self) -> list[_Group]:
        """Return the groups of at least two rows."""
        found, last = list[_Group](), None
        for number, row in enumerate(self._layout.rows):
            if row.kind == "view":
                self._behind.append(0)
                continue
            sources, bit = self._sources(row), 1 << number
            self._behind.append(sources)
            for slot in row.outputs:
                self._writers[slot.root] = self._writers.get(slot.root, 0) | bit
            if last is not None and self._may_join(last, row, sources):
                last.rows.append(row)
                last.own |= bit
                last.sources |= sources & ~last.own
                continue
            last = None
            if row.step is not None and self._can_be_one([row]):
                last = _Group([row], sources, bit)
                found.append(last)
        return [group for group in found if len(group.rows) > 1]

    def _sources(self, row: Row) -> int:
        """Return the rows on whose results a row depends, directly or not, as bits."""
        direct = 0
        for slot in (*row.inputs, *row.outputs):
            direct |= self._writers.get(slot.root, 0)
        found, left = direct, direct
        while left:
            found |= self._behind[(left & -left).bit_length() - 1]
            left &= left - 1
        return found

    def _may_join(self, group: _Group, row: Row, sources: int) -> bool:
        if row.step is None or row.backend != group.rows[0].backend:
            return False
        new = sources & ~(group.own | group.sources)
        if new and not self._is_only_reader(group, row):
            return False
        return self._can_be_one([*group.rows, row])

    def _is_only_reader(self, group: _Group, row: Row) -> bool:
        inside = {id(each) for each in (*group.rows, row)}
        roots = {slot.root for each in group.rows for slot in each.outputs}
        return all(self._readers.get(root, set()) <= inside for root in roots)

    def _can_be_one(self, rows: Sequence[Row]) -> bool:
        steps = [row.step for row in rows if row.step is not None]
        backend = self._able.get(rows[0].backend)
        return backend is not None and backend.joins(steps, self._options)


def _readers_of(layout: Layout) -> dict[Slot, set[int]]:
    """Return the identities of the rows that read a root; results of the graph have the layout's."""
    found: dict[Slot, set[int]] = {}
    for row in layout.rows:
        for slot in row.inputs if row.kind != "view" else ():
            found.setdefault(slot.root, set()).add(id(row))
    for slot in layout.outputs.values():
        found.setdefault(slot.root, set()).add(id(layout))
    return found


def _replace(
    layout: Layout, groups: Sequence[Sequence[Row]], able: Mapping[str, Joining]
) -> None:
    """Put one row in the place of the first of each group, and number all rows again."""
    wholes = {id(rows[0]): _joined(rows, able[rows[0].backend]) for rows in groups}
    first_of = {id(row): rows[0] for rows in groups for row in rows}
    kept, places = list[Row](), dict[int, int]()
    for row in layout.rows:
        first = first_of.get(id(row), row)
        if first is row:
            places[id(row)] = len(kept)
            kept.append(wholes.get(id(row), row))
    numbers = [places[id(first_of.get(id(row), row))] for row in layout.rows]
    numbers.append(len(kept))
    for slot in layout.slots:
        slot.first = numbers[slot.first] if slot.first >= 0 else slot.first
        slot.last = numbers[slot.last] if slot.last >= 0 else slot.last
    layout.rows[:] = kept


def _joined(rows: Sequence[Row], backend: Joining) -> Row:
    """Return the row that stands for several, which stores all that they store."""
    outputs = tuple(dict.fromkeys(slot for row in rows for slot in row.outputs))
    read = dict.fromkeys(slot for row in rows for slot in row.inputs)
    inputs = tuple(slot for slot in read if slot not in outputs)
    place = {slot: i for i, slot in enumerate((*inputs, *outputs))}
    parts = [
        Part(
            row.step,
            tuple(place[slot] for slot in row.inputs),
            tuple(place[slot] for slot in row.outputs),
        )
        for row in rows
        if row.step is not None
    ]
    step = backend.joined(parts)
    nodes = tuple(node for row in rows for node in row.nodes)
    first = rows[0]
    return Row(
        "step", nodes, first.device, first.backend, step.kernel, inputs, outputs, step=step
    )
