"""Limits of a benchmark, and its comparison with an earlier one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...runtime.errors import InputError, UsageError
from ..common.results import read_json, saved_by
from ..runners.runners import check_names, is_backend
from .bench_cases import KEY, Against, BenchCase

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


@dataclass(frozen=True, slots=True)
class BenchLimits:
    """Limits for tercet's backends; other runners only if named.

    Attributes:
        p50: median latency in seconds by runner; the empty name is every runner.
        ops: number of steps of a plan.
        error: relative L2 distance from float64.
        ratio: ratio of the median latency to that of an earlier benchmark.
    """

    p50: Mapping[str, float] = field(default_factory=dict[str, float])
    ops: int | None = None
    error: float | None = None
    ratio: float | None = None


def latency_limits(texts: Iterable[str]) -> dict[str, float]:
    """Return seconds by runner from strings like ``5ms`` and ``cudnn=300us``.

    Raises:
        UsageError: a string that is not a duration, or an unknown runner.
    """
    found: dict[str, float] = {}
    for text in texts:
        match = re.fullmatch(r"(?:(.+)=)?(\d+(?:\.\d+)?)(s|ms|us)", text)
        if match is None:
            raise UsageError(f"--assert-p50 {text} is not a duration such as 5ms or cudnn=300us")
        who, number, unit = match.groups(default="")
        if who:
            check_names([who])
        found[who] = float(number) * _UNITS[unit]
    return found


def complaints(cases: Sequence[BenchCase], limits: BenchLimits) -> list[str]:
    """Return a sentence for each violated limit and each wrong result.

    Limits apply to the model with all passes only.
    """
    found: list[str] = []
    for case in cases:
        what = f"{case.model} on {case.runner}, batch {case.batch}, {case.precision}"
        what += f", without {case.without}" if case.without else ""
        if case.verdict == "MISMATCH":
            found.append(f"{what}: {case.reason}")
        if case.without:
            continue
        own = is_backend(case.runner)
        maximum = limits.p50.get(case.runner, limits.p50.get("") if own else None)
        if maximum is not None and case.steady.median > maximum:
            times = f"{case.steady.median * 1e3:.3g} ms, over {maximum * 1e3:.3g} ms"
            found.append(f"{what}, concurrency {case.concurrency}: p50 is {times}")
        if limits.ops is not None and case.steps is not None and case.steps > limits.ops:
            found.append(f"{what}: {case.steps} steps, more than {limits.ops}")
        error = case.error if own and case.error is not None else 0.0
        if limits.error is not None and not error <= limits.error:
            found.append(f"{what}: the error is {error:.1e}, over {limits.error:.1e}")
    return list(dict.fromkeys(found))


# ── against another one ──────────────────────────────────────────────────────────────────────────


def against(old: Mapping[str, Any], new: Sequence[BenchCase]) -> tuple[Against, ...]:
    """Return the cases common to two benchmarks, in the order of the new one.

    Args:
        old: `Bench.to_dict` of the earlier one.
        new: the new cases.

    Raises:
        InputError: they have no common case, or the old one is damaged.
    """
    with saved_by("tercet bench"):
        return _common(old, new)


def _common(old: Mapping[str, Any], new: Sequence[BenchCase]) -> tuple[Against, ...]:
    older = [{"without": "", **case} for case in old["cases"]]
    before = {tuple(case[part] for part in KEY): case for case in older}
    pairs = [(before[case.key], case.to_dict()) for case in new if case.key in before]
    if not pairs:
        known = "; ".join(", ".join(map(str, key)) for key in before) or "none"
        raise InputError(f"the old benchmark has none of these cases (it has: {known})")
    return tuple(_against(*pair) for pair in pairs)


def _against(old: Mapping[str, Any], new: Mapping[str, Any]) -> Against:
    first, second = old["steady_ms"], new["steady_ms"]
    verdict = "same"
    if second["p90"] < first["p10"]:
        verdict = "faster"
    elif second["p10"] > first["p90"]:
        verdict = "slower"
    return Against(
        **{part: new[part] for part in KEY},
        before=first["p50"],
        after=second["p50"],
        verdict=verdict,
        error_before=old["error"],
        error_after=new["error"],
    )


def read_bench(source: str | os.PathLike[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a saved benchmark as a dictionary.

    Args:
        source: a file written by ``tercet bench --json``, or `Bench.to_dict`.

    Raises:
        InputError: the file is not a benchmark.
        OSError: the file cannot be read.
    """
    found = read_json(source)
    if not isinstance(found, dict) or "cases" not in found:
        raise InputError(f"{source} is not a benchmark; `tercet bench MODEL --json` writes one")
    return found


def slower(found: Iterable[Against], limits: BenchLimits) -> list[str]:
    """Return a sentence for each case slower than before by more than `limits.ratio`."""
    maximum = float("inf") if limits.ratio is None else limits.ratio
    return [
        f"{each.model} on {each.runner}, batch {each.batch}, {each.precision}: "
        f"p50 is {each.ratio:.2f} of what it was, over {maximum:.2f}"
        for each in found
        if each.ratio > maximum
    ]
