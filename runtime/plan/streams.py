"""Parallel branches: which rows of a plan run side by side, and which wait for which.

The rows between two rows of the host are a stretch, which is recorded as one graph. Each of its
rows belongs to a lane; a lane does its rows one after the other, in the order of the plan, and a
row waits for those of other lanes that touch the same bytes. What runs side by side may not share
memory for reasons of time alone: `Lanes.begins` tells the arena from when on a row may be running.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..ir.dtypes import uint8
from ..ir.types import TensorType
from .backend import Filling, Forking, Run, Stream, View
from .host import HOST

if TYPE_CHECKING:
    from .layout import Row, Slot

#: Estimated microseconds: of a launch, of waiting for another lane, and bytes a microsecond.
LAUNCH, CROSSING, MEMORY = 2.0, 1.5, 2e6
#: A row whose `Filling.fill` is more than this gains nothing by running beside others.
MAX_FILL = 1.0


@dataclass(frozen=True, slots=True)
class Lanes:
    """The order in which the rows of a plan run.

    Attributes:
        waits: for each row, those of other lanes that it waits for.
        begins: for each row, the first one that may run at the same time or later: all rows before
            that have ended when the row begins.
    """

    waits: tuple[tuple[int, ...], ...]
    begins: tuple[int, ...]


def stretches(rows: Sequence[Row]) -> list[range]:
    """Return the rows between those of the host, as ranges of their numbers; views do nothing."""
    found: list[range] = []
    first: int | None = None
    for number, row in enumerate(rows):
        if row.device is HOST and row.kind != "view":
            if first is not None:
                found.append(range(first, number))
            first = None
        elif first is None and row.kind != "view":
            first = number
    if first is not None:
        found.append(range(first, len(rows)))
    return found


def is_capturable(rows: Sequence[Row]) -> bool:
    """Whether a stretch may be recorded."""
    return all(row.step is None or row.step.capturable for row in rows)


def assign(rows: Sequence[Row], maximum: int) -> Lanes:
    """Give every row its lane.

    Rows are taken in order. One that fills the device stays in the first lane: it would take from
    others what it gains. Any other goes where it can begin earliest, by an estimate of what rows
    take; where that is the same, behind the row that it waits for longest.

    Args:
        rows: of a plan, all of them; `Row.lane` is set.
        maximum: lanes of a stretch.
    """
    waits: list[tuple[int, ...]] = [()] * len(rows)
    begins = list(range(len(rows)))
    for stretch in stretches(rows):
        numbers = [i for i in stretch if rows[i].kind != "view"]
        if maximum > 1 and is_capturable([rows[i] for i in numbers]):
            sources = _dependencies(rows, numbers)
            _choose_lanes(rows, numbers, sources, maximum)
            _order(rows, numbers, sources, waits, begins)
    return Lanes(tuple(waits), tuple(begins))


def _order(
    rows: Sequence[Row],
    numbers: Sequence[int],
    sources: dict[int, set[int]],
    waits: list[tuple[int, ...]],
    begins: list[int],
) -> None:
    """Fill in the waits of a stretch, without those that others imply, and what they amount to."""
    ended: dict[int, int] = {}  # by row: bit i says that the i-th row has ended when this one has
    last: dict[int, int] = {}  # by lane
    place = {number: i for i, number in enumerate(numbers)}
    for number in numbers:
        lane = rows[number].lane
        known = ended[last[lane]] if lane in last else 0
        needed: list[int] = []
        for source in sorted(sources[number], reverse=True):
            if not known >> place[source] & 1:
                known |= ended[source]
                needed.append(source)
        waits[number], last[lane] = tuple(needed), number
        ended[number] = known | 1 << place[number]
        first_unknown = (~known & (known + 1)).bit_length() - 1
        begins[number] = numbers[min(first_unknown, place[number])]


def _choose_lanes(
    rows: Sequence[Row], numbers: Sequence[int], sources: dict[int, set[int]], maximum: int
) -> None:
    ends: dict[int, float] = {}
    free: list[float] = [0.0]  # when each lane has done what it has
    for number in numbers:
        row = rows[number]

        def start(lane: int, number: int = number) -> float:
            own = free[lane] if lane < len(free) else 0.0
            arrivals = (
                ends[source] + (0.0 if rows[source].lane == lane else CROSSING)
                for source in sources[number]
            )
            return max((own, *arrivals))

        if isinstance(row.step, Filling) and row.step.fill < MAX_FILL:
            latest = max(sources[number], key=ends.__getitem__, default=None)
            favourite = 0 if latest is None else rows[latest].lane
            choices = range(min(maximum, len(free) + 1))
            row.lane = min(choices, key=lambda lane: (start(lane), lane != favourite, lane))
        begun = start(row.lane)
        if row.lane == len(free):
            free.append(0.0)
        ends[number] = free[row.lane] = begun + _microseconds(row)


def _microseconds(row: Row) -> float:
    """Return about what a row takes: a launch, and its tensors once through the memory."""
    nbytes = sum(slot.nbytes for slot in (*row.inputs, *row.outputs))
    return LAUNCH + nbytes / MEMORY


# ── who touches what ─────────────────────────────────────────────────────────────────────────────


class _Touch(NamedTuple):
    """Bytes of a root that a row reads or writes: from `first` on `width` every `pitch`."""

    row: int
    writes: bool
    first: int
    end: int
    width: int
    pitch: int

    def meets(self, other: _Touch) -> bool:
        """Whether both touch some byte."""
        if self.end <= other.first or other.end <= self.first:
            return False
        if not self.pitch or self.pitch != other.pitch:
            return True
        mine, theirs = self.first % self.pitch, other.first % self.pitch
        return mine < theirs + other.width and theirs < mine + self.width


def _touch(number: int, slot: Slot, *, writes: bool) -> _Touch:
    first, itemsize = slot.offset_in_root, slot.type.dtype.itemsize
    width = slot.format.physical(slot.type.dims)[-1] * itemsize if slot.pitch else 0
    return _Touch(number, writes, first, first + slot.extent, width, slot.pitch * itemsize)


def _dependencies(rows: Sequence[Row], numbers: Sequence[int]) -> dict[int, set[int]]:
    """Return for each row those before it with which it shares bytes that one of them writes."""
    found: dict[int, set[int]] = {}
    touched: dict[Slot, list[_Touch]] = {}
    for number in numbers:
        row, sources = rows[number], set[int]()
        own = [(slot.root, _touch(number, slot, writes=False)) for slot in row.inputs]
        own += [(slot.root, _touch(number, slot, writes=True)) for slot in row.outputs]
        for root, touch in own:
            for other in touched.get(root, ()):
                if (touch.writes or other.writes) and touch.meets(other):
                    sources.add(other.row)
        for root, touch in own:
            touched.setdefault(root, []).append(touch)
        found[number] = sources
    return found


# ── running ──────────────────────────────────────────────────────────────────────────────────────


def bound(
    row: Row, view: Callable[[Slot], View], workspace: Callable[[TensorType], View]
) -> Run | None:
    """Return what runs a row on its addresses; None for views.

    Args:
        row: of a plan or a body.
        view: where a tensor lies.
        workspace: gives the scratch memory of the row's lane.
    """
    if row.kind == "view":
        return None
    inputs, outputs = tuple(map(view, row.inputs)), tuple(map(view, row.outputs))
    if row.step is None:
        return row.device.copier(outputs[0], inputs[0])
    nbytes = row.step.scratch
    scratch = workspace(TensorType(uint8, (nbytes,))) if nbytes else None
    return row.step.bind(inputs, outputs, scratch)


def sequence(runs: Sequence[Run]) -> Run:
    """Return what gives several things to a stream, one after the other."""

    def run(stream: Stream) -> None:
        for one in runs:
            one(stream)

    return run


def side_by_side(rows: Sequence[Row], lanes: Lanes, stretch: range, *, copies: bool = True) -> Run:
    """Return what runs a stretch on as many streams as it has lanes.

    Args:
        rows: of the plan.
        lanes: what waits for what.
        stretch: numbers of the rows.
        copies: whether to run those that move data between devices.
    """
    numbers = [i for i in stretch if rows[i].kind != "view"]
    awaited = {source for i in numbers for source in lanes.waits[i]}
    others = {rows[i].lane for i in numbers} - {0}
    device = rows[numbers[0]].device
    sides: dict[int, Stream] = {lane: device.stream() for lane in sorted(others)}

    def run_all(stream: Stream) -> None:
        streams = {lane: _forking(side) for lane, side in {0: stream, **sides}.items()}
        first = streams[0]
        beginning = first.mark()
        for lane in sides:
            streams[lane].wait(beginning)
        moments: dict[int, object] = {}
        for number in numbers:
            row = rows[number]
            own = streams[row.lane]
            for source in lanes.waits[number]:
                own.wait(moments[source])
            if row.run is not None and (copies or row.kind != "copy"):
                row.run(own)
            if number in awaited:
                moments[number] = own.mark()
        for lane in sides:
            first.wait(streams[lane].mark())

    return run_all


def _forking(stream: Stream) -> Forking:
    if not isinstance(stream, Forking):
        raise TypeError(f"{type(stream).__name__} cannot wait for other streams")
    return stream
