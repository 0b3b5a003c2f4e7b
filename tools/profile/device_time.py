"""Device time of a plan and of its rows, without copies from and to the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from statistics import median
from typing import Protocol, runtime_checkable

from ...runtime.control.program import Program
from ...runtime.plan.backend import Device, Run, Stream
from ...runtime.plan.host import HOST
from ...runtime.plan.plan import Plan
from ...runtime.plan.rows import Row, Slot
from ...runtime.plan.streams import is_capturable, segments
from ...runtime.session.model import Model
from ..common.measure import Timing

WARM_UP = 5
#: The most rows that are timed in their graph, as many graphs are recorded, and how often: for
#: about this many seconds.
MAX_ROWS, MIN_ROUNDS, MAX_ROUNDS, SECONDS = 500, 5, 25, 0.5


@runtime_checkable
class ClockedDevice(Device, Protocol):
    """A device that replays what it records, and times that by its own clock."""

    def record(self, run: Run) -> Run:
        """Return a run that replays `run`."""
        ...

    def time(self, run: Run, stream: Stream) -> float:
        """Return the seconds that what `run` enqueues takes."""
        ...


def device_times(model: Model, program: Program, runs: int = 200) -> Timing | None:
    """Return device times of a program's rows, on the data of its last run.

    Rows are recorded as graphs that are replayed between events; inputs are copied to the device
    again before each replay, outside the events. There is one graph, unless an input overwrites
    memory of earlier rows.

    Args:
        model: the program's model.
        program: has run before.
        runs: number of replays.

    Returns:
        The times in seconds; None where there is no such device, or some rows are elsewhere.
    """
    device = _device_of(model, program.rows) if program.is_plan else None
    if device is None:
        return None
    (plan,) = program.plans
    pieces = [
        (copies, device.record(plan.together(part, copies=False)))
        for segment in segments(plan.rows)
        for copies, part in _pieces(plan.rows, segment, device)
    ]
    stream = device.stream()

    def replay_once() -> float:
        total = 0.0
        for copies, graph in pieces:
            for copy in copies:
                copy(stream)
            total += device.time(graph, stream)
        return total

    for _ in range(WARM_UP):
        replay_once()
    return Timing(tuple(replay_once() for _ in range(runs)))


class RowClock:
    """Tells how many seconds longer a graph takes with each row than with those before it alone.

    So a row is timed between its neighbours: its kernel starts as the one before it ends, and finds
    in the caches what that one left. The time of an empty graph belongs to none.

    Args:
        device: the plan's.
        plan: can be recorded as one graph.
        timed: numbers of the rows that are timed.
    """

    def __init__(self, device: ClockedDevice, plan: Plan, timed: Sequence[int]) -> None:
        self._device, self._rows = device, [plan.rows[i] for i in timed]
        lengths = (0, *(i + 1 for i in timed))
        self._graphs = [device.record(plan.together(range(n), copies=False)) for n in lengths]
        self._stream, self._runs = device.stream(), list[float]()

    def tick(self) -> None:
        """Time a whole graph, in turns with runs of which `times` tell the parts.

        The clock of a device is slower while it works for long, as it does in `times`.
        """
        self._runs.append(self._device.time(self._graphs[-1], self._stream))

    def times(self) -> list[tuple[Row, float]]:
        """Return the rows with their times, as long together as a graph took at each tick."""
        device, graphs, stream = self._device, self._graphs, self._stream
        once = sum(device.time(graph, stream) for graph in graphs for _ in range(2)) / 2
        rounds = min(MAX_ROUNDS, max(MIN_ROUNDS, int(SECONDS / max(once, 1e-9))))
        samples = [[device.time(graph, stream) for graph in graphs] for _ in range(rounds)]
        ends = list(accumulate((median(times) for times in zip(*samples, strict=True)), max))
        faster = median(self._runs) / ends[-1] if self._runs and ends[-1] else 1.0
        taken = (faster * (end - begin) for begin, end in pairwise(ends))
        return list(zip(self._rows, taken, strict=True))


def row_clock(model: Model, plan: Plan) -> RowClock | None:
    """Return what times the rows of a plan within their graph.

    Args:
        model: the plan's model.
        plan: has run before, with inputs that are on the device, and is not used otherwise.

    Returns:
        None where there is no such device, some rows are elsewhere, or there are more than
        `MAX_ROWS`.
    """
    device = _device_of(model, plan.rows)
    timed = [i for i, row in enumerate(plan.rows) if _is_timed(row)]
    if device is None or len(timed) > MAX_ROWS:
        return None
    parts = chain.from_iterable(_pieces(plan.rows, each, device) for each in segments(plan.rows))
    return RowClock(device, plan, timed) if len(list(parts)) <= 1 else None


def _is_timed(row: Row) -> bool:
    return row.run is not None and row.kind != "copy"


def _device_of(model: Model, rows: Iterable[Row]) -> ClockedDevice | None:
    """Return the device on which all rows can be recorded; None if there is none."""
    own = model.backends[0].device
    rows = [row for row in rows if _is_timed(row)]
    if not isinstance(own, ClockedDevice):
        return None
    alone = all(row.device is own for row in rows)
    return own if alone and is_capturable(rows) else None


def _pieces(
    rows: Sequence[Row], segment: range, own: Device
) -> Iterator[tuple[tuple[Run, ...], range]]:
    """Yield parts of a segment, each with the input copies that may precede all of it.

    A part ends where an input overwrites bytes that its rows have accessed.
    """
    begin, copies = segment.start, list[Run]()
    touched = list[tuple[int, int]]()
    for number in segment:
        row = rows[number]
        comes = row.kind == "copy" and row.outputs[0].device is own and row.run is not None
        places = [place for slot in row.outputs if (place := _place(slot)) is not None]
        if comes and any(_meet(a, b) for a in places for b in touched):
            yield tuple(copies), range(begin, number)
            begin, copies, touched = number, [], []
        if comes and row.run is not None:
            copies.append(row.run)
        touched += places
        touched += [place for slot in row.inputs if (place := _place(slot)) is not None]
    yield tuple(copies), range(begin, segment.stop)


def _place(slot: Slot) -> tuple[int, int] | None:
    """Return start and end of a tensor in the arena; None on the host or in other memory."""
    block = slot.root.block
    if slot.device is HOST or block is None:
        return None
    return block.offset, block.offset + block.nbytes


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]
