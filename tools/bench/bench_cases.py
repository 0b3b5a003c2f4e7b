"""Benchmark results: cases, each one runner on one model in one configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...runtime.base.notebook import Shown
from ..common.console import counted
from ..common.measure import Timing
from ..common.views import shown
from ..verdict.agreement import Word

#: The fields that identify a case within a benchmark.
KEY = ("model", "runner", "batch", "precision", "concurrency", "without")
#: `BenchCase.without` if no graph pass ran.
ALL_PASSES = "any pass"


@dataclass(frozen=True, slots=True)
class BenchCase:
    """One runner on one model with one batch, precision and concurrency.

    Attributes:
        model: the file's name.
        runner: the runner.
        about: its description and device.
        batch: size of the first axis of the first input.
        precision: compute precision of float32 tensors.
        concurrency: number of concurrent callers.
        load: seconds from the source to a ready model.
        cold: seconds of the first run.
        warm: seconds of the second run.
        steady: later runs, arrays in to arrays out.
        rate: items of the batch per second.
        device: device time without copies; None if unavailable.
        error: maximum relative L2 distance of an output from float64; None if not requested.
        steps: number of steps of the plans, without copies and views; None except for tercet's
            backends.
        verdict: ``ok``, ``MISMATCH`` or ``inconclusive``; None if not requested or unknown.
        reason: why it is not ok; empty if it is.
        without: the graph pass left out, `ALL_PASSES`, or empty.
    """

    model: str
    runner: str
    about: str
    batch: int
    precision: str
    concurrency: int
    load: float
    cold: float
    warm: float
    steady: Timing
    rate: float
    device: Timing | None
    error: float | None
    steps: int | None
    verdict: Word | None = None
    reason: str = ""
    without: str = ""

    @property
    def key(self) -> tuple[str | int, ...]:
        """Its identity in another benchmark."""
        return tuple(getattr(self, part) for part in KEY)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, times in milliseconds, for JSON."""
        return {
            "model": self.model,
            "runner": self.runner,
            "about": self.about,
            "batch": self.batch,
            "precision": self.precision,
            "concurrency": self.concurrency,
            "load_ms": self.load * 1e3,
            "cold_ms": self.cold * 1e3,
            "warm_ms": self.warm * 1e3,
            "steady_ms": percentiles(self.steady),
            "items_per_second": self.rate,
            "device_ms": None if self.device is None else percentiles(self.device),
            "error": self.error,
            "steps": self.steps,
            "verdict": self.verdict,
            "reason": self.reason,
            "without": self.without,
        }


def percentiles(timing: Timing) -> dict[str, float | int]:
    """Return p10, p50, p90 and p99 in milliseconds, and the number of runs."""
    found = {f"p{q}": timing.quantile(q / 100) * 1e3 for q in (10, 50, 90, 99)}
    return {**found, "runs": len(timing.samples)}


@dataclass(frozen=True, slots=True)
class Against:
    """One case in two benchmarks.

    Attributes:
        model, runner, batch, precision, concurrency, without: its identity.
        before: median latency in milliseconds.
        after: the same in the new one.
        verdict: ``faster`` or ``slower`` if the ranges from 10th to 90th percentile do not overlap,
            else ``same``.
        error_before: distance from float64.
        error_after: likewise.
    """

    model: str
    runner: str
    batch: int
    precision: str
    concurrency: int
    without: str
    before: float
    after: float
    verdict: str
    error_before: float | None
    error_after: float | None

    @property
    def ratio(self) -> float:
        """Median after divided by median before."""
        return self.after / self.before

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {**asdict(self), "ratio": self.ratio}


@dataclass(frozen=True, slots=True, repr=False)
class Bench(Shown):
    """The result of `bench`; print it, or read `cases`.

    Attributes:
        cases: all measurements.
        skipped: why a runner has no case, by runner and configuration.
        environment: machine and versions.
        complaints: violated limits, and wrong results.
        against: the cases that an earlier benchmark has as well.
        stopped: why cases are missing; empty if none are.
    """

    cases: tuple[BenchCase, ...]
    skipped: Mapping[str, str]
    environment: Mapping[str, str]
    complaints: tuple[str, ...] = ()
    against: tuple[Against, ...] = ()
    stopped: str = ""

    def _about(self) -> str:
        return f"{counted(len(self.cases), 'case')}: {'ok' if self.ok else self.complaints[0]}"

    @property
    def ok(self) -> bool:
        """Whether every limit is met and no result is wrong."""
        return not self.complaints

    def __str__(self) -> str:
        return shown(self)

    def table(self) -> list[dict[str, Any]]:
        """Return one flat row per case, for `pandas.DataFrame`."""
        rows: list[dict[str, Any]] = []
        for case in self.cases:
            row = case.to_dict()
            steady = row.pop("steady_ms")
            device = row.pop("device_ms")
            row.update({f"{name}_ms": steady[name] for name in ("p10", "p50", "p90", "p99")})
            row["device_p50_ms"] = device["p50"] if device else None
            rows.append(row)
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            "ok": self.ok,
            "cases": [case.to_dict() for case in self.cases],
            "skipped": dict(self.skipped),
            "environment": dict(self.environment),
            "complaints": list(self.complaints),
            "against": [each.to_dict() for each in self.against],
            "stopped": self.stopped,
        }
