"""Networks on the GPU as the tuner sees them: planned once, then timed with some steps replaced."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from hashlib import sha256
from statistics import median
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ....runtime.base.record import record
from ....runtime.errors import DeviceOutOfMemory, LimitError, UnsupportedError
from ....runtime.ir.dtypes import FLOATS, INTEGERS
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ir.infer import infer
from ....runtime.ir.types import Array
from ....runtime.options import Options
from ....runtime.plan.backend import Backend, Claim, Device, Run, View
from ....runtime.plan.bind import sequence
from ....runtime.plan.format import Format
from ....runtime.plan.host import HOST
from ....runtime.plan.partition import reads_of, results_of
from ....runtime.plan.plan import Plan
from ....runtime.plan.rows import Row
from ....runtime.plan.streams import is_capturable, segments
from ....runtime.plan.weights import WeightStore
from ..algorithms.registry import Setting
from ..algorithms.selection import Candidate, TuningTask, key_of
from ..driver.step import KernelStep, launches_for
from ..recipe.arguments import as_reason
from ..recipe.launch import launches_of
from .judge import relative_difference
from .records import Records
from .tuner import NetworkResult, Say, StepGroup, Tuner, digest, works_of

if TYPE_CHECKING:
    from ..driver.device import DriverDevice
    from ..driver.memory import CudaBuffer

#: Microseconds that a network is replayed for, before a candidate and with it.
REPLAYED = 1500.0
#: Maximum number of replays.
MAX_REPLAYS = 16


class GpuBackend(Backend, Protocol):
    """A backend whose steps run on a GPU."""

    @property
    def device(self) -> DriverDevice:
        """The GPU."""
        ...


def tuned(
    backend: GpuBackend,
    graph: Graph,
    free: Set[Node],
    options: Options,
    say: Say,
    *,
    again: bool = False,
) -> NetworkResult | None:
    """Return what is fastest for the nodes of a graph, measured unless it is known.

    Args:
        backend: plans by estimates.
        graph: all shapes static.
        free: the nodes that the backend may run.
        options: the user's choices.
        say: called with progress messages.
        again: whether to measure what is known.

    Returns:
        None if nothing can be measured: no node has a choice, or there is too little memory.
    """
    tuner = Tuner(Records(options.cache / "tuned"), _key(backend, graph, options))
    known = None if again else tuner.known()
    if known is not None:
        return known
    plain = replace(options, tune=False, check_each=False)
    part = _part(backend, graph, free, plain)
    if part is None:
        return None
    devices: tuple[Device, ...] = (HOST, backend.device)
    stores: dict[Device, WeightStore] = {device: WeightStore(device) for device in devices}
    try:
        plan = Plan(part, [backend], plain, stores)
        try:
            with ReplacedSteps(plan, backend) as network:
                return tuner.search(network, say, again=again) if network.groups else None
        finally:
            plan.close()
    except (UnsupportedError, LimitError, DeviceOutOfMemory):
        return None  # no memory left next to a model that fills the GPU
    finally:
        for store in stores.values():
            store.close()


def _part(backend: GpuBackend, graph: Graph, free: Set[Node], options: Options) -> Graph | None:
    """Return the part of a graph that a backend runs; None if there is none."""
    claims = [c for c in backend.claim(graph, free, options) if isinstance(c, Claim)]
    claimed = {node for claim in claims for node in claim.nodes}
    nodes = tuple(n for n in graph.nodes if n in claimed or (n.op.view and n in free))
    if not claimed:
        return None
    results = {value.name: value for value in results_of(graph, nodes)}
    part = graph.cut(reads_of(nodes), results)
    infer(part)
    return part


def _key(backend: GpuBackend, graph: Graph, options: Options) -> str:
    """Return what a result depends on: the network without names, kernels, GPU, and options."""
    found = sha256()
    for node in graph.nodes:
        values = (*node.inputs, *node.outputs)
        types = ("-" if v is None else f"{v.type}{' constant' * v.is_constant}" for v in values)
        found.update(f"{node.kind} {' '.join(types)}\n".encode())
    for work in works_of(graph.nodes, Setting(backend.device.compiler.target, options)):
        found.update(f"{work.task.signature} {work.task.setting.asked}\n".encode())
    allowed = f"workspace {options.workspace}, {options.streams} streams, {options.precision}"
    context = f"kernels {digest()} on {backend.device.description}"
    return f"{context}: network {found.hexdigest()[:32]}, {allowed}"


@record
class _Bound:
    """A candidate on the addresses of a group's rows."""

    runs: tuple[Run | None, ...]
    network: Run


class ReplacedSteps:
    """A plan whose steps are replaced one group at a time; see `tuner.PlannedNetwork`.

    Args:
        plan: by estimates; the rows of it that run on the device are timed, on random inputs.
        backend: whose steps can be replaced.
    """

    def __init__(self, plan: Plan, backend: GpuBackend) -> None:
        self._plan, self._device = plan, backend.device
        self._stream = self._device.stream()
        self._scratch: list[CudaBuffer] = []
        self._rows: dict[str, list[Row]] = {}
        plan.run({value.name: _numbers(value) for value in plan.graph.inputs})
        self._segments = [
            part
            for part in segments(plan.rows)
            if is_capturable([row for row in plan.rows[part.start : part.stop] if row.run])
        ]
        self.groups = tuple(self._found())
        self._network = self._planned = self._recorded()
        self._replays = 1
        self._replays = round(min(MAX_REPLAYS, max(1.0, REPLAYED / self._time(self._network))))

    def __enter__(self) -> ReplacedSteps:
        return self

    def __exit__(self, *_: object) -> None:
        for buffer in self._scratch:
            buffer.close()

    def prepare(self, group: StepGroup) -> None:
        """Start compiling; see `PlannedNetwork`."""
        for candidate in group.candidates:
            if candidate.recipe is not None:
                for launch in launches_of(candidate.recipe):
                    self._device.compiler.submit(launch.source)

    def time(self) -> float:
        """Return the microseconds of the network; see `PlannedNetwork`."""
        return median(self._time(self._network) for _ in range(5))

    def in_turns(self) -> tuple[float, float]:
        """Return what was gained; see `PlannedNetwork`."""
        pairs = [(self._time(self._planned), self._time(self._network)) for _ in range(9)]
        before, after = zip(*pairs, strict=True)
        return median(before), median(after)

    def change(self, group: StepGroup, candidate: Candidate, rounds: int) -> float:
        """Return what a candidate costs; see `PlannedNetwork`."""
        bound = self._bound(group, candidate)
        self._time(bound.network)
        pairs = ((self._time(self._network), self._time(bound.network)) for _ in range(rounds))
        return median(own - base for base, own in pairs)

    def error(self, group: StepGroup, candidate: Candidate) -> float:
        """Return the difference of the first step's result; see `PlannedNetwork`."""
        rows, first = self._plan.rows, self._rows[group.key][0]
        type_, run = first.outputs[0].type, self._bound(group, candidate).runs[0]
        found = [self._device.allocate(type_.nbytes) for _ in range(2)]
        try:
            for buffer, last in zip(found, (run, first.run), strict=True):
                for row in rows[: rows.index(first)]:
                    if row.run is not None:
                        row.run(self._stream)
                if last is not None:
                    last(self._stream)
                plain = View(self._device, buffer, 0, type_, Format.CONTIGUOUS)
                self._device.copier(plain, self._plan.view_of(first.outputs[0]))(self._stream)
            return relative_difference(self._device, found[0], found[1], type_, self._stream)
        finally:
            for buffer in found:
                buffer.close()

    def take(self, group: StepGroup, candidate: Candidate) -> None:
        """Replace the steps of a group; see `PlannedNetwork`."""
        bound = self._bound(group, candidate)
        for row, run in zip(self._rows[group.key], bound.runs, strict=True):
            row.run = run
        self._network = bound.network

    # ── replaced steps ───────────────────────────────────────────────────────────────────────

    def _found(self) -> Iterator[StepGroup]:
        for row in self._plan.rows:
            if isinstance(row.step, KernelStep) and isinstance(row.step.task, TuningTask):
                self._rows.setdefault(key_of(row.step.task.task), []).append(row)
        for rows in self._rows.values():
            step = rows[0].step
            assert isinstance(step, KernelStep)
            work = step.task
            assert isinstance(work, TuningTask)
            distinct: list[Candidate] = []
            seen = [step.launches]
            for each in work.selector.in_place(work.task):
                if each.recipe is None:
                    continue
                launches = launches_for(step.site.nodes, each.recipe)
                if launches not in seen:
                    seen.append(launches)
                    distinct.append(each)
            candidates = tuple(distinct)
            if candidates:
                yield StepGroup(work, step.kernel, len(rows), candidates)

    def _bound(self, group: StepGroup, candidate: Candidate) -> _Bound:
        """Bind a candidate to the addresses of a group's rows, and record the network with it."""
        rows = self._rows[group.key]
        before = [row.run for row in rows]
        runs = tuple(self._instead(row, candidate) for row in rows)
        try:
            for row, run in zip(rows, runs, strict=True):
                row.run = run
            return _Bound(runs, self._recorded())
        finally:
            for row, run in zip(rows, before, strict=True):
                row.run = run

    def _instead(self, row: Row, candidate: Candidate) -> Run | None:
        own = row.step
        assert isinstance(own, KernelStep)
        assert isinstance(own.task, TuningTask)
        selector, task = own.task.selector, own.task.task
        algorithm = selector.named(candidate.algorithm)
        assert not isinstance(algorithm, str)
        found = as_reason(selector.candidate)(task, algorithm, candidate.variant)
        recipe = found if isinstance(found, str) else found.recipe
        if recipe is None or isinstance(recipe, str):
            raise UnsupportedError(f"{candidate.title} does not suit all steps of a group")
        step = KernelStep(self._device, own.site, recipe, own.task)
        return self._plan.bind_instead(row, step, self._workspace(step.scratch))

    def _workspace(self, nbytes: int) -> CudaBuffer:
        fitting = next((b for b in self._scratch if b.nbytes >= nbytes), None)
        if fitting is None:
            fitting = self._device.allocate(nbytes)
            self._scratch.append(fitting)
        return fitting

    def _recorded(self) -> Run:
        return sequence(
            [
                self._device.record(self._plan.together(part, copies=False))
                for part in self._segments
            ]
        )

    def _time(self, network: Run) -> float:
        def replay(stream: object) -> None:
            for _ in range(self._replays):
                network(self._stream)

        return 1e6 * self._device.time(replay, self._stream) / self._replays


def _numbers(value: Value) -> Array:
    """Return random data for an input; integers are 0 or 1, which is in range."""
    tensor, rng = value.tensor, np.random.default_rng(0)
    if tensor.dtype in FLOATS:
        numbers = rng.standard_normal(1 << 16, np.float32).astype(tensor.dtype)
    elif tensor.dtype in INTEGERS:
        numbers = rng.integers(0, 2, 1 << 16).astype(tensor.dtype)
    else:
        numbers = np.ones(1, tensor.dtype)
    return np.resize(numbers, tensor.dims)
