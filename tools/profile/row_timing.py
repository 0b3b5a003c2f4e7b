"""Runs a model row by row and notes when each row begins and ends.

The model that is watched is made of the same graph and the same backends as the one that was
loaded, but for two things: its plans run one row at a time (`Options.check_each`), and every row
is called through a clock. On the host that is the host's clock. On a CUDA device each row becomes
a small graph with an event at either end, so that what is noted is the device's work and not the
time that it takes to launch it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, replace
from statistics import median
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
        begin: when it was called, in seconds of the host's clock.
        end: when it was done.
        seconds: how long it took, by the device's events where there are some.
    """

    key: int
    begin: float
    end: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Recording:
    """One run of the model.

    Attributes:
        begin: when it was called, in seconds of the host's clock.
        end: when the results were there.
        spans: the rows, in the order in which they ran.
    """

    begin: float
    end: float
    spans: tuple[Span, ...]

    @property
    def length(self) -> float:
        """Seconds of the whole run."""
        return self.end - self.begin

    @property
    def feed(self) -> float:
        """Seconds before the first row."""
        return self.spans[0].begin - self.begin if self.spans else 0.0

    @property
    def fetch(self) -> float:
        """Seconds after the last row."""
        return self.end - self.spans[-1].end if self.spans else 0.0

    @property
    def known(self) -> float:
        """Seconds of the rows, and of what is before the first and after the last."""
        return self.feed + sum(span.seconds for span in self.spans) + self.fetch


@dataclass(frozen=True, slots=True)
class ProfileFrame:
    """Something that a run does: a row of a plan, or a node that is in no plan.

    Attributes:
        key: what spans name it by.
        row: of a plan, or None.
        node: that runs by itself, or None.
        owner: the control-flow node whose body it belongs to; empty at the top.
    """

    key: int
    row: Row | None
    node: Node | None
    owner: str


class Probe:
    """Watches a model of its own, with the graph, the backends and the options of another one.

    Args:
        model: stays as it is; must outlive the probe.
    """

    def __init__(self, model: Model) -> None:
        self._spans: list[Span] = []
        self._rows: dict[int, Row] = {}
        self._timers: list[Callable[[], None]] = []
        #: Bytes that the nodes outside of plans read and wrote when they last ran.
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
        """Return the program that runs on such inputs."""
        shapes = {n: data.shape for n, data in inputs.items() if isinstance(data, np.ndarray)}
        return self._model.prepare(shapes)

    def run(self, inputs: Mapping[str, Any]) -> Recording:
        """Run the model once and return what happened.

        Raises:
            UnsupportedError: nothing that ran could be watched.
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
        return Recording(begin, end, tuple(self._spans))

    def _instrument(self, program: Program) -> bool:
        """Put a clock on every row that has none; return whether there were such rows."""
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
        recorded = row.step is None or row.step.capturable
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
        """Return what a pair of events measures with nothing between them; it is subtracted."""
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
            self._empty[device] = median(found)
        return self._empty[device]

    def close(self) -> None:
        """Give all memory back."""
        self._model.close()
        for close in self._timers:
            close()
        self._timers.clear()


class _Watched:
    """A backend whose steps are watched where they run; it claims as usual."""

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
    """Likewise, for one that also runs single nodes."""

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
    """Return whether a device is one of CUDA's, whose work events can time."""
    return device.name.startswith("cuda")


def _nbytes(values: Iterable[HostValue]) -> int:
    return sum(data.nbytes for data in values if isinstance(data, np.ndarray))


def sites_of(program: Program, owner: str = "") -> list[ProfileFrame]:
    """Return all that a run of a program does, in the order of execution, bodies in their place.

    Args:
        program: which has run.
        owner: the control-flow node whose body it is; empty for none.
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
