"""Latencies: how often something is repeated, in which order, and what is made of the samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter

import numpy as np

from ...runtime.errors import UsageError
from .console import Say, silent

WARM_UP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Latencies in milliseconds: the median, what a tenth and nine tenths of the runs kept to."""

    median: float
    p10: float
    p90: float
    runs: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Latencies of one thing that was repeated, in seconds and in the order of measurement."""

    samples: tuple[float, ...]

    def quantile(self, q: float) -> float:
        """Return the latency that a share `q` of the runs did not exceed; NaN without runs."""
        return float(np.quantile(self.samples, q)) if self.samples else float("nan")

    @property
    def median(self) -> float:
        """The latency that half of the runs did not exceed."""
        return self.quantile(0.5)

    @property
    def spread(self) -> Spread:
        """The same in milliseconds, without the single runs."""
        p10, median, p90 = (1e3 * self.quantile(q) for q in (0.1, 0.5, 0.9))
        return Spread(median, p10, p90, len(self.samples))

    def to_dict(self) -> dict[str, float | int]:
        """Return median, 10th and 90th percentile in milliseconds, and the number of runs."""
        return asdict(self.spread)


@dataclass(frozen=True, slots=True)
class Repeat:
    """How often a call is repeated: an exact number, or as often as its share of time allows.

    Attributes:
        exactly: number of measured runs; None to let the other three decide.
        seconds: time for the runs of one runner, once it has had `minimum`.
        minimum: runs that even a slow one gets.
        maximum: runs after which even a fast one is done.
    """

    exactly: int | None = None
    seconds: float = 1.0
    minimum: int = 3
    maximum: int = 200

    def __post_init__(self) -> None:
        if self.exactly is not None and self.exactly < 0:
            raise UsageError(f"repeat={self.exactly}: expected a whole number >= 0")

    def wants(self, samples: list[float]) -> bool:
        """Whether another run is due after these."""
        if self.exactly is not None:
            return len(samples) < self.exactly
        return len(samples) < self.minimum or (
            len(samples) < self.maximum and sum(samples) < self.seconds
        )


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    start = perf_counter()
    call()
    return perf_counter() - start


def interleave(
    calls: Mapping[str, Callable[[], object]],
    repeat: Repeat,
    say: Say = silent,
    first: Mapping[str, float] | None = None,
    samples: dict[str, list[float]] | None = None,
) -> dict[str, Timing]:
    """Measure several calls in turn, so that a change of the machine's pace meets all of them.

    Args:
        calls: by name.
        repeat: how often.
        say: told about each call.
        first: seconds that a first call has taken already; those that took less than a second
            are warmed up by another one, the others have had theirs.
        samples: gets the seconds of every run by name, so that they are there if time runs out.
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
            samples[name].append(timed(calls[name]))
        due = [name for name in due if repeat.wants(samples[name])]
    return timings(samples)


def timings(samples: Mapping[str, Sequence[float]]) -> dict[str, Timing]:
    """Return latencies by name."""
    return {name: Timing(tuple(found)) for name, found in samples.items()}
