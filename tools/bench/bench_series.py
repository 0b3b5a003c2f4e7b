"""Measurements of one model after the other, on the same runners."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import repeat
from time import perf_counter
from typing import Any

import numpy as np

from ...api import Loadable, load
from ...backends.numpy.numerics import blas
from ...runtime.base.arguments import refused
from ...runtime.errors import BackendUnavailable, UnsupportedError
from ...runtime.session.model import Model
from ..common.console import Say, silent
from ..common.deadline import OutOfTime, settle
from ..common.environment import PACKAGES, device_environment
from ..common.imports import clocked
from ..common.inputs import Asked, Inputs
from ..common.measure import Repeat, Timing, interleave, timed
from ..export.writing import model_title
from ..profile.device_time import device_times
from ..runners.runners import (
    Runner,
    RunnerSettings,
    is_backend,
    open_runner,
    options_of,
)
from ..verdict.error_bounds import Judge
from .bench_cases import ALL_PASSES, BenchCase
from .bench_feeds import batch_of, feeds_of
from .bench_passes import rewriting_passes, without_pass
from .bench_quality import Quality, judged

MIN_RUNS, MAX_RUNS = 5, 100_000


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is measured of each model.

    Attributes:
        batches: batch sizes; None for the model's own, 1 if symbolic.
        precisions: compute precisions of float32 tensors, on tercet's backends.
        concurrency: concurrent callers; 1 measures latency, more measure throughput.
        pipeline: whether to also measure a stream of batches with overlapped copies (`Model.map`),
            on tercet's backends.
        passes: whether to also measure the model without each graph pass that rewrites it, on
            tercet's backends.
        duration: seconds of steady runs per runner.
        warm_up: seconds of preceding runs that are not measured.
        accuracy: whether to also run every model in float64.
    """

    batches: tuple[int | None, ...] = (None,)
    precisions: tuple[str, ...] = ("float32",)
    concurrency: tuple[int, ...] = (1,)
    duration: float = 2.0
    warm_up: float = 0.5
    accuracy: bool = True
    pipeline: bool = False
    passes: bool = False

    def __post_init__(self) -> None:
        for name, numbers in (("batch", self.batches), ("concurrency", self.concurrency)):
            if any(number is not None and number < 1 for number in numbers):
                raise refused(name, numbers, "whole numbers >= 1")
        if not self.duration > 0:  # nor NaN
            raise refused("duration", self.duration, "a number of seconds > 0")
        if not self.warm_up >= 0:
            raise refused("warm_up", self.warm_up, "a number of seconds >= 0")


@dataclass(frozen=True, slots=True)
class _RaceInputs:
    """What all runners of a race do: a model on the same inputs, in the same precision.

    Attributes:
        source: the model.
        feeds: its inputs.
        precision: compute precision of float32 tensors.
        judge: returns what judges results computed in a precision; None if they are not compared.
    """

    source: Loadable
    feeds: Inputs
    precision: str
    judge: Callable[[str], Judge] | None


@dataclass(slots=True)
class _Entry:
    """A runner after its first two runs."""

    name: str
    runner: Runner
    load: float
    cold: float
    warm: float
    quality: Quality
    without: str = ""

    @property
    def title(self) -> str:
        """Its label among the runners being interleaved."""
        return f"{self.name} without {self.without}" if self.without else self.name

    @property
    def model(self) -> Model | None:
        """The loaded model, for a tercet backend."""
        found = getattr(self.runner, "model", None)
        return found if isinstance(found, Model) else None


class Series:
    """The measurements of models on the same runners.

    Args:
        names: of the runners.
        schedule: what is measured.
        settings: the runners'.

    Attributes:
        skip: whether runners are skipped that cannot run a model here.
        say: called with a description of each stage.
        skipped: why a runner was skipped, by name.
        refused: the first error for which one was; None if none was.
    """

    def __init__(self, names: Sequence[str], schedule: Schedule, settings: RunnerSettings) -> None:
        self.skip = False
        self.say: Say = silent
        self._late = False
        self.skipped: dict[str, str] = {}
        self.refused: BackendUnavailable | UnsupportedError | None = None
        self._names, self._schedule, self._settings = names, schedule, settings
        self._about: dict[str, str] = {}

    def environment(self) -> dict[str, str]:
        """Return the environment of the measurement."""
        threads = str(blas.threads() or "?")
        return {**self._about, "threads": threads}

    def measure(self, source: Loadable, inputs: Asked) -> Iterator[BenchCase]:
        """Yield the cases of one model."""
        operators = self._settings.operators
        with load(source, stop_at=0, operators=operators) as model:
            for batch in self._schedule.batches:
                feeds = feeds_of(model.inputs, inputs, batch)
                judge = None
                if self._schedule.accuracy:
                    self.say(f"{model_title(source)}: in float64")
                    judge = cache(partial(Judge, model.imported, feeds.arrays))
                for precision in self._schedule.precisions:
                    yield from self._race(_RaceInputs(source, feeds, precision, judge))

    def _computes_in(self, precision: str, name: str) -> bool:
        """Whether a runner has a precision; another one may stand in for it, once."""
        if precision == "float32" or not is_backend(name):
            return precision == "float32"
        own = options_of(replace(self._settings, precision=precision), name).precision
        return own == precision or own not in self._schedule.precisions

    def _race(self, race: _RaceInputs) -> Iterator[BenchCase]:
        feeds, title = race.feeds, model_title(race.source)
        with ExitStack() as stack:
            entries: list[_Entry] = []
            for name in self._names:
                if not self._computes_in(race.precision, name):
                    continue
                for entry in self._variants(name, race):
                    stack.callback(entry.runner.close)
                    entries.append(entry)
            self._note_environment(entries)
            for concurrency in self._schedule.concurrency:
                times = self._latency(entries, feeds) if concurrency == 1 else {}
                for entry in entries:
                    if self._late and entry.title not in times:
                        raise OutOfTime
                    steady, rate = times.get(entry.title) or self._crowd(entry, feeds, concurrency)
                    yield _case(title, entry, feeds, concurrency, steady, rate)
                if self._late:
                    raise OutOfTime
            for entry in entries if self._schedule.pipeline else ():
                if entry.model is not None and not entry.without:
                    steady, rate = self._piped(entry.name, entry.model, feeds)
                    named = replace(entry, name=f"{entry.name}, pipelined")
                    yield _case(title, named, feeds, 1, steady, rate)

    def _variants(self, name: str, race: _RaceInputs) -> Iterator[_Entry]:
        """Yield a runner, and if passes are measured, the same without each of them."""
        entry = self._entered(name, race)
        if entry is None:
            return
        yield entry
        if entry.model is None or not self._schedule.passes:
            return
        for left_out in (*rewriting_passes(entry.model, race.feeds), ALL_PASSES):
            without = self._entered(name, race, left_out)
            if without is not None:
                yield without

    def _entered(self, name: str, race: _RaceInputs, without: str = "") -> _Entry | None:
        """Return an entry; None, with the reason noted, if it may be skipped and cannot run."""
        try:
            return self._enter(name, race, without)
        except (BackendUnavailable, UnsupportedError) as error:
            if not self.skip:
                raise
            self.refused = self.refused or error
            batch = f"batch {batch_of(race.feeds)}, {race.precision}"
            self.skipped[f"{name}, {model_title(race.source)}, {batch}"] = str(error)
            return None

    def _enter(self, name: str, race: _RaceInputs, without: str) -> _Entry:
        self.say(f"{name}: loading {model_title(race.source)}")
        feeds, settings = race.feeds, replace(self._settings, precision=race.precision)
        if without:
            settings = replace(settings, options=without_pass(settings.options, without))
        runner, loaded = clocked(partial(open_runner, name, race.source, settings))
        found: dict[str, Any] = {}
        try:
            self.say(f"{name}: first run")
            with feeds.explained():
                _, cold = clocked(lambda: found.update(runner.run(feeds.arrays)))
            warm = timed(lambda: runner.run(feeds.arrays))
            quality = Quality()
            if race.judge is not None:
                quality = judged(race.judge(runner.precision), found)
        except BaseException:
            runner.close()
            raise
        return _Entry(name, runner, loaded, cold, warm, quality, without)

    def _note_environment(self, entries: Sequence[_Entry]) -> None:
        for entry in entries:
            if entry.model is not None and "GPU" not in self._about:
                device = entry.model.backends[0].device
                self._about = device_environment(device, PACKAGES)

    def _latency(self, entries: Sequence[_Entry], feeds: Inputs) -> dict[str, tuple[Timing, float]]:
        """Measure all in turn; return their times and items per second.

        If the time limit passes, what has been measured counts.
        """
        calls = {entry.title: _call(entry, feeds) for entry in entries}
        for name, call in calls.items():
            self.say(f"{name}: warming up")
            _warm_up(call, self._schedule.warm_up)
        often = Repeat(seconds=self._schedule.duration, minimum=MIN_RUNS, maximum=MAX_RUNS)
        samples: dict[str, list[float]] = {}
        try:
            interleave(calls, often, self.say, dict.fromkeys(calls, 1.0), samples)
        except OutOfTime:
            settle()
            self._late = True
        return {
            name: (Timing(tuple(found)), batch_of(feeds) / float(np.mean(found)))
            for name, found in samples.items()
            if found
        }

    def _crowd(self, entry: _Entry, feeds: Inputs, concurrency: int) -> tuple[Timing, float]:
        """Run the model in several threads; return times and items per second."""
        call = _call(entry, feeds)
        self.say(f"{entry.title}: {concurrency} concurrent callers")
        with ThreadPoolExecutor(concurrency) as pool:
            for work in [
                pool.submit(_warm_up, call, self._schedule.warm_up) for _ in range(concurrency)
            ]:
                work.result()
            begin = perf_counter()
            until = begin + self._schedule.duration
            loops = [pool.submit(_loop, call, until) for _ in range(concurrency)]
            samples = [sample for loop in loops for sample in loop.result()]
            whole = perf_counter() - begin
        return Timing(tuple(samples)), batch_of(feeds) * len(samples) / whole

    def _piped(self, name: str, model: Model, feeds: Inputs) -> tuple[Timing, float]:
        """Run a stream of batches; return the times between results, and items per second."""
        self.say(f"{name}: a stream of batches")
        samples: list[float] = []
        with closing(model.map(repeat(feeds.arrays))) as results:
            _warm_up(lambda: next(results), self._schedule.warm_up)
            next(results)
            until = perf_counter() + self._schedule.duration
            while len(samples) < MIN_RUNS or perf_counter() < until:
                samples.append(timed(lambda: next(results)))
        return Timing(tuple(samples)), batch_of(feeds) / float(np.mean(samples))


def _call(entry: _Entry, feeds: Inputs) -> Callable[[], object]:
    return lambda: entry.runner.run(feeds.arrays)


def _warm_up(call: Callable[[], object], seconds: float) -> None:
    until = perf_counter() + seconds
    while perf_counter() < until:
        call()


def _loop(call: Callable[[], object], until: float) -> list[float]:
    found = [timed(call)]
    while perf_counter() < until:
        found.append(timed(call))
    return found


def _case(
    title: str, entry: _Entry, feeds: Inputs, concurrency: int, steady: Timing, rate: float
) -> BenchCase:
    device, steps = None, None
    if entry.model is not None:
        shapes = {n: a.shape for n, a in feeds.arrays.items() if isinstance(a, np.ndarray)}
        program = entry.model.prepare(shapes)
        rows = [row for part in program.walk() for row in part.rows if row.kind == "step"]
        stages = [(part, stage) for part in program.walk() for stage in part.stages]
        alone = [n for part, stage in stages for n in stage.nodes if part.plan_of(n) is None]
        steps = len(rows) + len(alone)
        if all(array.dtype.kind == "f" for array in feeds.arrays.values()):
            device = device_times(entry.model, program)
    return BenchCase(
        model=title,
        runner=entry.name,
        about=entry.runner.about,
        batch=batch_of(feeds),
        precision=entry.runner.precision,
        concurrency=concurrency,
        load=entry.load,
        cold=entry.cold,
        warm=entry.warm,
        steady=steady,
        rate=rate,
        device=device,
        error=entry.quality.error,
        steps=steps,
        verdict=entry.quality.verdict,
        reason=entry.quality.reason,
        without=entry.without,
    )
