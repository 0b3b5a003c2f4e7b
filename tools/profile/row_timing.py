"""Instrumented runs: when each row starts and ends.

The instrumented model has the same graph and backends as the loaded one, with two differences: its
plans run one row at a time (`Options.check_each`), and every row is timed. On the host that uses
the host's clock. On a CUDA device each row becomes a small graph between two events, so that device
time is measured without launches. Copies of large inputs and results (`runtime.plan.transfers`) are
between two events, too, as they are in an uninstrumented run: with the host's share of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ...backends.numpy import evaluate
from ...runtime.control.program import Program
from ...runtime.errors import UnsupportedError
from ...runtime.ir.graph import Graph, Node
from ...runtime.ir.types import HostValue
from ...runtime.options import Options
from ...runtime.plan.backend import (
    Backend,
    Claim,
    Decline,
    Device,
    Interpreter,
    Run,
    Stream,
    Weights,
    measured,
)
from ...runtime.plan.host import HOST
from ...runtime.plan.rows import Row
from ...runtime.session.model import Model

if TYPE_CHECKING:
    from ...backends.cuda.device import CudaDevice

CALIBRATIONS = 20


@dataclass(frozen=True, slots=True)
class Span:
    """One call of one row.

    Attributes:
        key: of the row; see `ProfileFrame`.
        begin: start in seconds of the host's clock.
        end: end in seconds of the host's clock.
        seconds: duration, by device events if available.
    """

    key: int
    begin: float
    end: float
    seconds: float


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One instrumented run.

    Attributes:
        begin: start in seconds of the host's clock.
        end: when the results were available.
        spans: the rows in execution order.
    """

    begin: float
    end: float
    spans: tuple[Span, ...]

    @property
    def length(self) -> float:
        """Duration of the whole run in seconds."""
        return self.end - self.begin

    @property
    def feed(self) -> float:
        """Seconds before the first row."""
        return self.spans[0].begin - self.begin if self.spans else 0.0

    @property
    def fetch(self) -> float:
        """Seconds after the last row."""
        return self.end - self.spans[-1].end if self.spans else 0.0

    def known(self, within: Mapping[int, float]) -> float:
        """Return the seconds of the rows, and before the first and after the last.

        Args:
            within: by key, seconds of rows in their graph, where they overlap.
        """
        rows = sum(within.get(span.key, span.seconds) for span in self.spans)
        return self.feed + rows + self.fetch


@dataclass(frozen=True, slots=True)
class ProfileFrame:
    """An operation of a run: a row of a plan, or a node outside plans.

    Attributes:
        key: its name in spans.
        row: the row of a plan, or None.
        node: the node that runs on its own, or None.
        owner: the control-flow node that contains it; empty at the top level.
    """

    key: int
    row: Row | None
    node: Node | None
    owner: str


class Probe:
    """Instruments a copy of a model, with the same graph, backends and options.

    Args:
        model: not modified; must outlive the probe.
    """

    def __init__(self, model: Model) -> None:
        self._spans: list[Span] = []
        self._rows: dict[int, Row] = {}
        self._timers: list[Callable[[], None]] = []
        #: Bytes read and written by nodes outside plans in their last run.
        self.touched: dict[int, tuple[int, int]] = {}
        self._empty: dict[Device, float] = {}
        backends = [self._watched(backend) for backend in model.backends]
        options = replace(model.options, check_each=True)
        self._model = Model(model.imported, backends, options, evaluate, model.source)

    def _watched(self, backend: Backend) -> Backend:
        if isinstance(backend, Interpreter):
            return _WatchedInterpreter(backend, backend, self._note_node)
        return _Watched(backend)

    def _note_node(self, node: Node, begin: float, end: float, nbytes: tuple[int, int]) -> None:
        self._spans.append(Span(id(node), begin, end, end - begin))
        self.touched[id(node)] = nbytes

    # ── running ──────────────────────────────────────────────────────────────────────────────

    def program(self, inputs: Mapping[str, Any]) -> Program:
        """Return the program for these inputs."""
        shapes = {n: data.shape for n, data in inputs.items() if isinstance(data, np.ndarray)}
        return self._model.prepare(shapes)

    def run(self, inputs: Mapping[str, Any]) -> TimedRun:
        """Run the model once and return the timing.

        Raises:
            UnsupportedError: nothing could be instrumented.
        """
        program = self.program(inputs)
        self._instrument(program)
        self._spans.clear()
        begin = perf_counter()
        self._model.run(inputs)
        end = perf_counter()
        fresh = self._instrument(program)
        if not fresh and not self._spans and any(row.run for row in program.rows):
            raise UnsupportedError("a model with optional inputs is profiled without them only")
        return TimedRun(begin, end, tuple(self._spans))

    def _instrument(self, program: Program) -> bool:
        """Instrument every row that is not yet; return whether there were any."""
        fresh = False
        for part in program.walk():
            for row in part.rows:
                if row.run is not None and id(row) not in self._rows:
                    self._rows[id(row)] = row
                    row.run = self._clocked(row, row.run)
                    fresh = True
        return fresh

    def _clocked(self, row: Row, run: Run) -> Run:
        if _has_events(row.device):
            return self._by_events(row, run)
        key, spans, on_host = id(row), self._spans, row.device is HOST

        def clocked(stream: Stream) -> None:
            begin = perf_counter()
            run(stream)
            if not on_host:
                stream.synchronize()
            end = perf_counter()
            spans.append(Span(key, begin, end, end - begin))

        return clocked

    def _by_events(self, row: Row, run: Run) -> Run:
        from ...backends.cuda.driver.events import Stopwatch

        device: CudaDevice = row.device  # type: ignore[assignment]  # only CUDA's has that name
        watch = Stopwatch(device)
        self._timers.append(watch.close)
        recorded = not row.apart and (row.step is None or row.step.capturable)
        timed = watch.around(run, recorded=recorded)
        empty = self._empty_seconds(device) if recorded else 0.0
        key, spans = id(row), self._spans

        def clocked(stream: Any) -> None:
            begin = perf_counter()
            timed(stream)
            stream.synchronize()
            end = perf_counter()
            spans.append(Span(key, begin, end, max(0.0, watch.seconds() - empty)))

        return clocked

    def _empty_seconds(self, device: CudaDevice) -> float:
        """Return the shortest time between two adjacent events, which no row is charged with."""
        from ...backends.cuda.driver.events import Stopwatch

        if device not in self._empty:
            watch, stream = Stopwatch(device), device.stream()
            nothing = watch.around(lambda stream: None, recorded=True)
            found: list[float] = []
            for _ in range(CALIBRATIONS):
                nothing(stream)
                stream.synchronize()
                found.append(watch.seconds())
            watch.close()
            self._empty[device] = min(found)
        return self._empty[device]

    def close(self) -> None:
        """Release all memory."""
        self._model.close()
        for close in self._timers:
            close()
        self._timers.clear()


class _Watched:
    """A backend whose steps are instrumented; it claims as usual."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def device(self) -> Device:
        return self._inner.device

    def prepare(self, graph: Graph, free: Set[Node], options: Options) -> Backend:
        found = copy(self)
        found._inner = measured(self._inner, graph, free, options)
        return found

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterable[Claim | Decline]:
        return self._inner.claim(graph, free, options)


class _WatchedInterpreter(_Watched):
    """The same, for a backend that also runs single nodes."""

    def __init__(
        self,
        inner: Backend,
        interpreter: Interpreter,
        note: Callable[[Node, float, float, tuple[int, int]], None],
    ) -> None:
        super().__init__(inner)
        self._interpreter = interpreter
        self._note = note

    def evaluate(
        self, node: Node, values: Sequence[HostValue], weights: Weights
    ) -> Sequence[HostValue]:
        begin = perf_counter()
        found = self._interpreter.evaluate(node, values, weights)
        end = perf_counter()
        self._note(node, begin, end, (_nbytes(values), _nbytes(found)))
        return found


def _has_events(device: Device) -> bool:
    """Return whether a device is a CUDA device, whose events can time work."""
    return device.name.startswith("cuda")


def _nbytes(values: Iterable[HostValue]) -> int:
    return sum(data.nbytes for data in values if isinstance(data, np.ndarray))


def sites_of(program: Program, owner: str = "") -> list[ProfileFrame]:
    """Return all operations of a program's run in execution order, bodies included.

    Args:
        program: has run before.
        owner: the control-flow node that contains it; empty for none.
    """
    found: list[ProfileFrame] = []
    for stage in program.stages:
        if stage.plan is not None:
            found += [ProfileFrame(id(row), row, None, owner) for row in stage.plan.rows]
        for node in stage.nodes:
            plan = program.plan_of(node)
            if plan is not None:
                found += [ProfileFrame(id(row), row, None, owner) for row in plan.rows]
                continue
            found.append(ProfileFrame(id(node), None, node, owner))
            for body in program.bodies_of(node):
                found += sites_of(body, node.name)
    if program.tail is not None:
        for tail in program.tail:
            found += sites_of(tail, owner)
    return found
