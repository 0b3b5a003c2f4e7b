"""Profiles: time by row, operator and shape, relative to the machine's peaks.

The module is not called ``profile``, for the reason given in `inspection`.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from time import monotonic
from typing import Any

import numpy as np

from ...api import Loadable, Operators, load
from ...arguments import freezing, in_data_dir, public
from ...runtime.base.notebook import Shown
from ...runtime.control.program import Program
from ...runtime.plan.host import HOST
from ...runtime.plan.work import work_of
from ...runtime.session.model import Model
from ..common.console import Say, announce_compiling, silent
from ..common.deadline import all_or_nothing, time_limit
from ..common.environment import PACKAGES, device_environment
from ..common.inputs import Given, Inputs, asked, given_inputs
from ..common.measure import Repeat, Timing, timed
from ..common.roofline import Share, lost_where, shares_of
from ..common.shapes import Dims, Shapes
from ..common.threads import use_threads
from ..common.views import shown
from ..export.writing import model_title
from .device_time import RowClock, row_clock
from .memory_map import ArenaMap, arenas_of
from .peaks import Peaks, peaks_of
from .profile_rows import ProfiledRow, RowKey, key_of, middle_of, phases_of, rows_of, shape_key
from .row_timing import Probe, TimedRun, sites_of


@dataclass(frozen=True, slots=True, repr=False)
class Profile(Shown):
    """The result of `profile`; print it, or read `rows`.

    Times of rows and phases are means over the half of the instrumented runs with medium lengths:
    means, because only these add up to the mean of the whole; medium, because runs that were held
    up by something else are not representative.

    Attributes:
        model: the file's name.
        backend: the requested backend and its device.
        precision: compute precision of float32 tensors.
        inputs: the inputs.
        rows: in execution order.
        phases: seconds per run by phase: ``feed`` (inputs are checked and copied to the arena),
            ``upload`` (of large inputs, also from there to pinned memory, piece by piece),
            ``compute``, ``download``, ``fetch`` (results are copied out) and ``between`` (Python,
            launches and waiting between rows).
        total: uninstrumented runs.
        watched: instrumented runs, interleaved with these.
        overhead: profiling overhead: an instrumented run divided by the uninstrumented one next to
            it, less 1; the median of such pairs.
        covered: rows, feeding and fetching of an instrumented run divided by the uninstrumented one
            next to it, likewise; rows in their graph, if they were timed there.
        peaks: by device; empty if not requested.
        arenas: of all plans.
        environment: machine and versions.
        recording: the instrumented run of median length.
        keys: row indices by the keys of its spans.
        stopped: why there are fewer runs than requested; empty if there are not.
    """

    model: str
    backend: str
    precision: str
    inputs: Inputs
    rows: tuple[ProfiledRow, ...]
    phases: Mapping[str, float]
    total: Timing
    watched: Timing
    overhead: float
    covered: float
    peaks: Mapping[str, Peaks]
    arenas: tuple[ArenaMap, ...]
    environment: Mapping[str, str]
    recording: TimedRun = field(repr=False)
    keys: Mapping[int, int] = field(repr=False)
    stopped: str = ""

    def _about(self) -> str:
        milliseconds = self.total.median * 1e3
        return f"{self.model} on {self.backend}: {milliseconds:.3g} ms, {len(self.rows)} rows"

    @property
    def rows_seconds(self) -> float:
        """Total seconds of all rows."""
        return sum(row.seconds or 0.0 for row in self.rows)

    @property
    def has_graph(self) -> bool:
        """Whether rows were timed within the graph of a run."""
        return any(row.in_graph is not None for row in self.rows)

    def by_operator(self) -> tuple[Share, ...]:
        """Return the rows grouped by operators, longest first."""
        return shares_of(self.rows, lambda row: row.operators or row.kind)

    def by_shape(self) -> tuple[Share, ...]:
        """Return the rows grouped by operators and shapes, longest first."""
        return shares_of(self.rows, shape_key)

    def by_kernel(self) -> tuple[Share, ...]:
        """Return the rows grouped by kernels, those that lose most beyond their limits first."""
        return lost_where(replace(row, seconds=row.taken) for row in self.rows)

    def __str__(self) -> str:
        return shown(self)

    def table(self) -> list[dict[str, Any]]:
        """Return one flat row per row of the run, for `pandas.DataFrame`."""
        return [
            {
                "number": row.number,
                "node": row.title,
                "operators": row.operators,
                "backend": row.backend,
                "kernel": row.kernel,
                "ms": None if row.seconds is None else row.seconds * 1e3,
                "in_graph_ms": None if row.in_graph is None else row.in_graph * 1e3,
                "macs": row.macs,
                "nbytes": row.nbytes,
                "launches": row.launches,
                "limit_ms": None if row.limit is None else row.limit * 1e3,
                "roof": row.roof,
                "bound": row.bound,
            }
            for row in self.rows
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the recording, times in milliseconds, for JSON."""
        return {
            "model": self.model,
            "backend": self.backend,
            "precision": self.precision,
            "inputs": self.inputs.to_dict(),
            "total_ms": self.total.to_dict(),
            "watched_ms": self.watched.to_dict(),
            "rows_ms": self.rows_seconds * 1e3,
            "overhead": self.overhead,
            "covered": self.covered,
            "phases_ms": {name: seconds * 1e3 for name, seconds in self.phases.items()},
            "rows": [row.to_dict() for row in self.rows],
            "by_operator": [share.to_dict() for share in self.by_operator()],
            "by_kernel": [share.to_dict() for share in self.by_kernel()],
            "by_shape": [share.to_dict() for share in self.by_shape()],
            "peaks": [peaks.to_dict() for peaks in self.peaks.values()],
            "arenas": [arena.to_dict() for arena in self.arenas],
            "environment": dict(self.environment),
            "stopped": self.stopped,
        }


# ── measuring ────────────────────────────────────────────────────────────────────────────────────


@public()
@in_data_dir
@freezing
def profile(
    source: Loadable,
    backend: str = "numpy",
    inputs: Given = None,
    *,
    seed: int = 0,
    shapes: Shapes = (),
    dims: Dims = (),
    repeat: Repeat | int | None = None,
    peaks: bool = True,
    fallback: str | None = None,
    precision: str = "float32",
    freeze: Mapping[str, Any] | None = None,
    operators: Operators | None = None,
    external_data_dir: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    timeout: float | None = None,
    say: Say = silent,
    **options: Any,
) -> Profile:
    """Run a model row by row and measure where time is spent.

    Rows are timed sequentially, including those of concurrent branches: their sum then exceeds the
    run, unless there is one stream (``streams=1``).

    Args:
        source: a path, bytes, or a `ModelProto`.
        backend: the backend to run on.
        inputs: arrays by name or in a list by position; an .npz file or a folder of ONNX test data;
            random ones if None.
        seed: seed of random inputs.
        shapes: of random inputs, by name: ``{"image": (1, 3, 224, 224)}``.
        dims: sizes of symbolic dimensions of random inputs: ``{"batch": 4}``; 1 if not given.
        repeat: number of measured runs, instrumented and not; two seconds' worth of each if None.
        peaks: whether to measure the machine's peaks, which takes about a second.
        fallback: backend for nodes that this one declines.
        precision: compute precision of float32 tensors.
        freeze: arrays by name for inputs that become constants; see `tercet.load`.
        operators: custom operators; see `tercet.load`.
        external_data_dir: the folder of the model's external data; its own if None.
        threads: number of CPU threads of each runner; numpy's setting if None.
        timeout: time limit in seconds, after which partial results are returned; None for no limit.
        say: called with a description of each stage.
        **options: further fields of `Options`.

    Raises:
        BackendUnavailable: the backend is unavailable here.
        UnsupportedError: the backend declines nodes, or nothing can be instrumented.
        InputError: the inputs do not fit the model.
        ModelError: the model cannot be read.
        TimeLimitError: the time limit passed before the first run had ended.
    """
    wanted = repeat if isinstance(repeat, Repeat) else Repeat(repeat, seconds=2.0, maximum=500)
    chosen: dict[str, Any] = {"precision": precision, "operators": operators, **options}
    begin = monotonic()
    given = asked(inputs, seed, shapes, dims)
    with ExitStack() as stack:
        stack.enter_context(use_threads(threads))
        with all_or_nothing(timeout, say) as tell:
            tell("loading")
            model = stack.enter_context(load(source, backend, fallback=fallback, **chosen))
            feeds = given_inputs(model.inputs, given)
        announce_compiling(model, say)
        with feeds.explained():
            title = model_title(source)
            limits = {"timeout": timeout, "since": begin}
            return profile_model(model, feeds, title, wanted, peaks=peaks, say=say, **limits)


def profile_model(
    model: Model,
    feeds: Inputs,
    title: str,
    repeat: Repeat,
    *,
    peaks: bool = True,
    timeout: float | None = None,
    since: float | None = None,
    say: Say = silent,
) -> Profile:
    """Profile a loaded model; see `profile`. Its weights are held twice meanwhile."""
    probe, runs = Probe(model), _Runs()
    best: dict[str, Peaks] = {}
    in_graph: dict[RowKey, float] = {}
    try:
        with time_limit(timeout, say, since) as (limit, tell), _clock(model, feeds) as clock:
            _measure(model, probe, feeds, repeat, tell, runs, clock)
            if clock is not None:
                tell("rows within their graph")
                in_graph |= {key_of(row): seconds for row, seconds in clock.times()}
            if peaks:
                _peaks(model, probe.program(feeds.arrays), tell, best)
        plain, watched = runs.pairs()
        if not watched:
            raise limit.error()
        program = probe.program(feeds.arrays)
        middle, sites = middle_of(watched), sites_of(program)
        keys = {site.key: key_of(site.row) for site in sites if site.row is not None}
        within = {each: in_graph[key] for each, key in keys.items() if key in in_graph}
        device = model.backends[0].device
        return Profile(
            model=title,
            backend=f"{model.backend} on {device.name}",
            precision=model.precision,
            inputs=feeds,
            rows=rows_of(sites, middle, probe, best, in_graph),
            phases=phases_of(sites, middle),
            total=Timing(plain),
            watched=Timing(tuple(run.length for run in watched)),
            overhead=median(r.length / t for r, t in zip(watched, plain, strict=True)) - 1,
            covered=median(r.known(within) / t for r, t in zip(watched, plain, strict=True)),
            peaks=best,
            arenas=_arenas(program),
            environment=device_environment(device, PACKAGES),
            recording=middle[len(middle) // 2],
            keys={site.key: number for number, site in enumerate(sites)},
            stopped=limit.stopped,
        )
    finally:
        probe.close()


@dataclass(frozen=True, slots=True)
class _Runs:
    """Uninstrumented and instrumented runs of a model, in seconds."""

    plain: list[float] = field(default_factory=list[float])
    watched: list[TimedRun] = field(default_factory=list[TimedRun])

    def pairs(self) -> tuple[tuple[float, ...], list[TimedRun]]:
        """Return equal numbers of both: the time limit may pass in between."""
        count = min(len(self.plain), len(self.watched))
        return tuple(self.plain[:count]), self.watched[:count]


def _measure(
    model: Model,
    probe: Probe,
    feeds: Inputs,
    repeat: Repeat,
    say: Say,
    runs: _Runs,
    clock: RowClock | None,
) -> None:
    """Run both models and the graph alternately, so that changes in machine speed affect all."""
    say("first run")
    for _ in range(2):  # the second one reuses kernels and plans of bodies
        model.run(feeds.arrays)
        probe.run(feeds.arrays)

    def run_plain() -> None:
        runs.plain.append(timed(lambda: model.run(feeds.arrays)))

    def run_watched() -> None:
        runs.watched.append(probe.run(feeds.arrays))

    while not runs.watched or repeat.wants(runs.plain):
        say(f"run {len(runs.watched) + 1}")
        pair = (run_plain, run_watched)
        for turn in pair if len(runs.watched) % 2 else reversed(pair):
            turn()
        if clock is not None:
            clock.tick()


def _peaks(model: Model, program: Program, say: Say, found: dict[str, Peaks]) -> None:
    """Measure the peaks of all devices, each with the first backend on it."""
    used: dict[str, set[str]] = {}
    for row in (row for part in program.walk() for row in part.rows):
        used.setdefault(row.device.name, set()).update(work_of(row).macs or ())
    for i, backend in enumerate(model.backends):
        name = backend.device.name
        if name not in found and (name in used or backend.device is HOST):
            dtypes = used.get(name, ())
            found[name] = peaks_of(model.backends[i:], model.options, say, dtypes)


@contextmanager
def _clock(model: Model, feeds: Inputs) -> Generator[RowClock | None]:
    """Provide what times the rows within a graph of all; None if the model is not one graph."""
    shapes = {n: data.shape for n, data in feeds.arrays.items() if isinstance(data, np.ndarray)}
    if not hasattr(model.backends[0].device, "time") or not model.prepare(shapes).is_plan:
        yield None
        return
    with model.bind(shapes) as bound:
        bound.run(feeds.arrays)
        yield row_clock(model, bound.plan)


def _arenas(program: Program) -> tuple[ArenaMap, ...]:
    plans = (plan for part in program.walk() for plan in part.plans)
    return tuple(arena for number, plan in enumerate(plans) for arena in arenas_of(plan, number))
