"""Correctness of a runner's results, and their distance from float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...runtime.ir.dtypes import COMPLEX, FLOATS
from ...runtime.ir.types import HostValue
from ..common.nested import flat
from ..verdict.accuracy import distance
from ..verdict.agreement import Word
from ..verdict.error_bounds import Judge, overall


@dataclass(frozen=True, slots=True)
class Quality:
    """The results of one runner.

    Attributes:
        error: maximum relative L2 distance of an output from float64; None if unknown.
        verdict: ``ok``, ``MISMATCH`` or ``inconclusive``; None if unknown.
        reason: the first output that has this verdict, and why; empty if all are ok.
    """

    error: float | None = None
    verdict: Word | None = None
    reason: str = ""


def judged(judge: Judge, found: Mapping[str, HostValue]) -> Quality:
    """Compare results with those in float64, rounded to the dtypes that the graph gives them.

    Args:
        judge: the judge for the model, its inputs, and the runner's precision.
        found: the results, by name.
    """
    exact, ours = judge.exact, flat(found)
    if not exact:
        return Quality()
    dtypes = {name: judge.dtype(name) or data.dtype for name, data in ours.items()}
    reference = {
        name: data.astype(dtypes[name]) if dtypes.get(name) in FLOATS | COMPLEX else data
        for name, data in exact.items()
    }
    results = judge.outputs(reference, ours)
    verdict = overall([result.verdict for result in results])
    wrong = next(
        (result for result in results if not result.ok and result.verdict == verdict), None
    )
    return Quality(
        distance(ours, exact),
        verdict,
        "" if wrong is None else f"output '{wrong.output}': {wrong.reason}",
    )
