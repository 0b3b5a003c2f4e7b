"""Parallel branches: which rows of a plan run concurrently, and what each waits for.

The rows between two host rows are a segment, which is recorded as one graph. Each row of a segment
is assigned to a stream, numbered from 0. A stream runs its rows in plan order; a row waits for rows
of other streams that touch the same bytes. Tensors of rows that may run concurrently must not share
memory: `StreamSchedule.begins` tells the arena from which row on a row may be running.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..base.record import record
from .backend import Filling, Forking, Run, Stream, knows
from .host import HOST

if TYPE_CHECKING:
    from .rows import Row, Slot

#: Estimates: microseconds of a launch and of waiting for another stream; bytes per microsecond.
LAUNCH, CROSSING, MEMORY = 2.0, 1.5, 2e6
#: A row whose `Filling.fill` exceeds this gains nothing from running concurrently with others.
MAX_FILL = 1.0
#: Bytes that a row touches: up to which it is small, and from which on it is to start early.
SMALL, LARGE = 4 << 10, 1 << 20


@record
class StreamSchedule:
    """The order in which the rows of a plan run.

    Attributes:
        waits: for each row, the numbers of the rows of other streams that it waits for.
        begins: for each row, the number of the first row that may still be running when it
            starts: all rows before that one have finished.
    """

    waits: tuple[tuple[int, ...], ...]
    begins: tuple[int, ...]


def segments(rows: Sequence[Row]) -> list[range]:
    """Return the ranges of consecutive device rows, without views, as row indices."""
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
    """Whether a segment may be recorded."""
    return all(row.step is None or row.step.capturable for row in rows)


def assign(rows: Sequence[Row], maximum: int) -> StreamSchedule:
    """Assign every row to a stream and return the schedule.

    Rows are assigned in plan order. A row that fills the device stays on stream 0: running it
    concurrently would only slow others down. Any other row goes to the stream on which it can start
    earliest by an estimate of durations; ties go to the stream of the dependency that ends last.

    Args:
        rows: all rows of a plan; `Row.stream` is set.
        maximum: the maximum number of streams in a segment.
    """
    waits: list[tuple[int, ...]] = [()] * len(rows)
    begins = list(range(len(rows)))
    for segment in segments(rows):
        numbers = [i for i in segment if rows[i].kind != "view"]
        if maximum > 1 and is_capturable([rows[i] for i in numbers]):
            sources = _dependencies(rows, numbers)
            _choose_streams(rows, numbers, sources, maximum)
            _bring_back(rows, numbers, sources)
            _order(rows, numbers, sources, waits, begins)
    return StreamSchedule(tuple(waits), tuple(begins))


def _order(
    rows: Sequence[Row],
    numbers: Sequence[int],
    sources: dict[int, set[int]],
    waits: list[tuple[int, ...]],
    begins: list[int],
) -> None:
    """Set `waits` and `begins` of a segment, without waits that others imply."""
    ended: dict[int, int] = {}  # by row: bit i is set if row i has ended by then
    last: dict[int, int] = {}  # by stream
    place = {number: i for i, number in enumerate(numbers)}
    for number in numbers:
        stream = rows[number].stream
        known = ended[last[stream]] if stream in last else 0
        needed: list[int] = []
        for source in sorted(sources[number], reverse=True):
            if not known >> place[source] & 1:
                known |= ended[source]
                needed.append(source)
        waits[number], last[stream] = tuple(needed), number
        ended[number] = known | 1 << place[number]
        first_unknown = (~known & (known + 1)).bit_length() - 1
        begins[number] = numbers[min(first_unknown, place[number])]


def _choose_streams(
    rows: Sequence[Row], numbers: Sequence[int], sources: dict[int, set[int]], maximum: int
) -> None:
    ends: dict[int, float] = {}
    free: list[float] = [0.0]  # when each stream becomes idle
    for number in numbers:
        row = rows[number]

        def start(stream: int, number: int = number) -> float:
            own = free[stream] if stream < len(free) else 0.0
            arrivals = (
                ends[source] + (0.0 if rows[source].stream == stream else CROSSING)
                for source in sources[number]
            )
            return max((own, *arrivals))

        if knows(row.step, Filling) and row.step.fill < MAX_FILL:
            latest = max(sources[number], key=ends.__getitem__, default=None)
            favourite = 0 if latest is None else rows[latest].stream
            choices = range(min(maximum, len(free) + 1))
            row.stream = min(
                choices, key=lambda stream: (start(stream), stream != favourite, stream)
            )
        begun = start(row.stream)
        if row.stream == len(free):
            free.append(0.0)
        ends[number] = free[row.stream] = begun + _microseconds(row)


def _bring_back(rows: Sequence[Row], numbers: Sequence[int], sources: dict[int, set[int]]) -> None:
    """Move small rows by themselves to the stream of a large one that waits for no other stream.

    They would be done in time, but the large one would wait for a second stream, and reads much
    while the row before it ends. On an H200, a step of Llama-3.2-1B with 4-bit weights takes 426 us
    then instead of 428 to 432, of 8 sequences 524 instead of 529; networks whose rows are all small
    take up to a tenth longer if these are brought back.
    """
    readers: dict[int, list[int]] = {}
    touched = {number: _touched(rows[number]) for number in numbers}
    for number in numbers:
        for source in sources[number]:
            readers.setdefault(source, []).append(number)
    for number in numbers:
        row, behind = rows[number], readers.get(number, [])
        near = (*sources[number], *behind)
        if row.stream == 0 or not behind or touched[number] > SMALL:
            continue
        if any(rows[other].stream == row.stream for other in near):
            continue
        reader = min(behind)
        if touched[reader] < LARGE:
            continue
        streams = {rows[source].stream for source in sources[reader] - {number}}
        if streams <= {rows[reader].stream}:
            row.stream = rows[reader].stream


def _touched(row: Row) -> int:
    """Return the bytes of the tensors that a row reads and writes."""
    return sum(slot.nbytes for slot in (*row.inputs, *row.outputs))


def _microseconds(row: Row) -> float:
    """Estimate the duration of a row: one launch, and one pass over its tensors."""
    return LAUNCH + _touched(row) / MEMORY


# ── dependencies ─────────────────────────────────────────────────────────────────────────────────


class _Touch(NamedTuple):
    """Bytes of a root slot that a row accesses: `width` bytes every `pitch`, from `first` on."""

    row: int
    writes: bool
    first: int
    end: int
    width: int
    pitch: int

    def meets(self, other: _Touch) -> bool:
        """Whether both access a common byte."""
        if self.end <= other.first or other.end <= self.first:
            return False
        if not self.pitch or self.pitch != other.pitch:
            return True
        mine, theirs = self.first % self.pitch, other.first % self.pitch
        return mine < theirs + other.width and theirs < mine + self.width

    def covers(self, other: _Touch) -> bool:
        """Whether it accesses every byte that the other one does."""
        if self.pitch and self[2:] != other[2:]:
            return False
        return self.first <= other.first and other.end <= self.end


def _touch(number: int, slot: Slot, *, writes: bool) -> _Touch:
    first, itemsize = slot.offset_in_root, slot.type.dtype.itemsize
    width = slot.format.physical(slot.type.dims)[-1] * itemsize if slot.pitch else 0
    return _Touch(number, writes, first, first + slot.extent, width, slot.pitch * itemsize)


def _dependencies(rows: Sequence[Row], numbers: Sequence[int]) -> dict[int, set[int]]:
    """Return for each row the earlier ones that access common bytes, with at least one write.

    Rows that one of these waits for, because it writes all bytes that they access, are left out:
    thousands of rows may compute in one place.
    """
    found: dict[int, set[int]] = {}
    written: dict[Slot, list[_Touch]] = {}
    read: dict[Slot, list[_Touch]] = {}
    for number in numbers:
        row, sources = rows[number], set[int]()
        own = [(slot.root, _touch(number, slot, writes=False)) for slot in row.inputs]
        own += [(slot.root, _touch(number, slot, writes=True)) for slot in row.outputs]
        for root, touch in own:
            for known in (written, read) if touch.writes else (written,):
                sources.update(other.row for other in known.get(root, ()) if touch.meets(other))
        for root, touch in own:
            if touch.writes:
                for known in (written, read):
                    kept = (each for each in known.get(root, ()) if not touch.covers(each))
                    known[root] = list(kept)
                written[root].append(touch)
            else:
                read.setdefault(root, []).append(touch)
        found[number] = sources
    return found


# ── running ──────────────────────────────────────────────────────────────────────────────────────


def side_by_side(
    rows: Sequence[Row], schedule: StreamSchedule, segment: range, *, copies: bool = True
) -> Run:
    """Return a function that runs a segment, or a part of one, on several streams of its device.

    What precedes a part has ended when it runs: all streams meet at the end of one.

    Args:
        rows: the rows of the plan.
        schedule: which row waits for which.
        segment: indices of the rows.
        copies: whether to run rows that move data between devices.
    """
    numbers = [i for i in segment if rows[i].kind != "view"]
    awaited = {source for i in numbers for source in schedule.waits[i]}
    device = rows[numbers[0]].device
    others = sorted({rows[i].stream for i in numbers} - {0})
    sides: dict[int, Stream] = {number: device.stream() for number in others}

    def run_all(stream: Stream) -> None:
        streams = {number: _forking(each) for number, each in {0: stream, **sides}.items()}
        first = streams[0]
        beginning = first.mark()
        for number in sides:
            streams[number].wait(beginning)
        events: dict[int, object] = {}
        for number in numbers:
            row = rows[number]
            own = streams[row.stream]
            for source in schedule.waits[number]:
                if source in events:
                    own.wait(events[source])
            if row.run is not None and not row.apart and (copies or row.kind != "copy"):
                row.run(own)
            if number in awaited:
                events[number] = own.mark()
        for number in sides:
            first.wait(streams[number].mark())

    return run_all


def _forking(stream: Stream) -> Forking:
    if not isinstance(stream, Forking):
        raise TypeError(f"{type(stream).__name__} cannot wait for other streams")
    return stream
