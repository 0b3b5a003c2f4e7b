"""Latency measurement: number and order of runs, and statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter

import numpy as np

from ...runtime.base.arguments import refused
from .console import Say, counted, ms_text, silent

WARM_UP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Latencies in milliseconds: median, 10th and 90th percentile."""

    median: float
    p10: float
    p90: float
    runs: int


@dataclass(frozen=True, slots=True, repr=False)
class Timing:
    """Latencies of repeated runs, in seconds and in order."""

    samples: tuple[float, ...]

    def __repr__(self) -> str:
        return f"Timing({counted(len(self.samples), 'run')}, median {ms_text(self.median)} ms)"

    def quantile(self, q: float) -> float:
        """Return the quantile `q` of the latencies; NaN without runs."""
        return float(np.quantile(self.samples, q)) if self.samples else float("nan")

    @property
    def median(self) -> float:
        """The median latency."""
        return self.quantile(0.5)

    @property
    def spread(self) -> Spread:
        """The percentiles in milliseconds."""
        p10, median, p90 = (1e3 * self.quantile(q) for q in (0.1, 0.5, 0.9))
        return Spread(median, p10, p90, len(self.samples))

    def to_dict(self) -> dict[str, float | int]:
        """Return median, 10th and 90th percentile in milliseconds, and the number of runs."""
        return asdict(self.spread)


@dataclass(frozen=True, slots=True)
class Repeat:
    """The number of runs: exact, or limited by time.

    Attributes:
        exactly: number of measured runs; None to use the other fields.
        seconds: time for the runs of one runner, after `minimum` runs.
        minimum: minimum number of runs.
        maximum: maximum number of runs.
    """

    exactly: int | None = None
    seconds: float = 1.0
    minimum: int = 3
    maximum: int = 200

    def __post_init__(self) -> None:
        if self.exactly is not None and self.exactly < 0:
            raise refused("repeat", self.exactly, "a whole number >= 0")

    def wants(self, samples: list[float]) -> bool:
        """Whether another run is due."""
        if self.exactly is not None:
            return len(samples) < self.exactly
        return len(samples) < self.minimum or (
            len(samples) < self.maximum and sum(samples) < self.seconds
        )


#: Returns seconds.
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class OwnTime:
    """What a call returns whose work is done, and measured, in another process."""

    seconds: float


def timed(call: Callable[[], object], clock: Clock | None = None) -> float:
    """Return the seconds that one call takes.

    Args:
        call: what is measured; if it returns an `OwnTime`, that counts.
        clock: the clock; `perf_counter` if None.
    """
    clock = clock or perf_counter
    start = clock()
    found = call()
    return found.seconds if isinstance(found, OwnTime) else clock() - start


def interleave(
    calls: Mapping[str, Callable[[], object]],
    repeat: Repeat,
    say: Say = silent,
    first: Mapping[str, float] | None = None,
    samples: dict[str, list[float]] | None = None,
    clock: Clock | None = None,
) -> dict[str, Timing]:
    """Measure several calls in turn, so that changes in machine speed affect all of them.

    Args:
        calls: by name.
        repeat: number of runs.
        say: called for each call.
        first: seconds of a previous first call; calls that took less than a second are warmed up
            once more.
        samples: receives the seconds of every run by name, to be available after an interruption.
        clock: the clock to measure with, such as `time.process_time`, which does not count other
            programs; `perf_counter` if None.
    """
    samples = {} if samples is None else samples
    samples |= {name: [] for name in calls}
    due = [name for name in calls if repeat.wants([])]
    for name in due:
        if (first or {}).get(name, 0.0) < WARM_UP_SECONDS:
            say(f"{name}: warming up")
            calls[name]()
    while due:
        for name in due:
            say(f"{name}: run {len(samples[name]) + 1}")
            samples[name].append(timed(calls[name], clock))
        due = [name for name in due if repeat.wants(samples[name])]
    return timings(samples)


def timings(samples: Mapping[str, Sequence[float]]) -> dict[str, Timing]:
    """Return latencies by name."""
    return {name: Timing(tuple(found)) for name, found in samples.items()}
