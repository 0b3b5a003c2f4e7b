"""Runs ONNX's test suite, or a part of it, on a backend."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from time import perf_counter

from ... import backends
from ...runtime.base.parallel import usable_cpus
from ...runtime.errors import UsageError, did_you_mean
from ...runtime.options import Options
from ..common.environment import environment
from . import suite
from .report import ConformanceReport, assess, read_expectation
from .workers import WorkerSettings, run_cases

MAX_JOBS = 8
TIMEOUT = 60.0

#: Called with the numbers of finished cases and of all cases.
Tell = Callable[[int, int], None]


def run_suite(
    backend: str = "numpy",
    fallback: str | None = None,
    *,
    pattern: str = "",
    categories: Sequence[str] = (),
    timeout: float = TIMEOUT,
    jobs: int | None = None,
    tell: Tell = lambda done, of: None,
) -> ConformanceReport:
    """Run cases, each in a worker process, and compare as ONNX does.

    Args:
        backend: the backend.
        fallback: the backend for nodes that it declines.
        pattern: a regular expression to search in a case's category and name.
        categories: selected categories; all if empty.
        timeout: time limit per case in seconds.
        jobs: number of processes; if None, one per CPU, at most `MAX_JOBS`.
        tell: called with progress messages.

    Raises:
        BackendUnavailable: the backend cannot run on this machine.
        UsageError: an invalid backend, category, pattern or number.
    """
    _check(categories, timeout, jobs)
    opened = backends.open_backends(backend, Options(), fallback)
    cases = select(pattern, categories)
    settings = WorkerSettings(backend, fallback, timeout, jobs or min(usable_cpus(), MAX_JOBS))
    start = perf_counter()
    outcomes = []
    tell(0, len(cases))
    for ended in run_cases(cases, settings):
        outcomes.append(ended)
        tell(len(outcomes), len(cases))
    names = [backend] if fallback is None else [backend, fallback]
    about = environment(("numpy", "onnx"))
    return assess(
        outcomes,
        read_expectation(*names),
        backend=backend,
        fallback=fallback or "",
        suite=suite.suite_version(),
        environment={**about, "device": opened[0].device.name, "processes": str(settings.jobs)},
        seconds=perf_counter() - start,
    )


def _check(categories: Sequence[str], timeout: float, jobs: int | None) -> None:
    for name in categories:
        if name not in suite.CATEGORIES:
            hint = did_you_mean(name, suite.CATEGORIES)
            known = ", ".join(suite.CATEGORIES)
            raise UsageError(f"there is no category '{name}'{hint} (categories: {known})")
    if timeout <= 0:
        raise UsageError(f"a time-out of {timeout:g} seconds leaves no time at all")
    if jobs is not None and jobs < 1:
        raise UsageError(f"{jobs} processes; it must be 1 or more")


def select(pattern: str = "", categories: Sequence[str] = ()) -> list[suite.ConformanceCase]:
    """Return cases by pattern and category, slowest first.

    Raises:
        UsageError: there are none, or the pattern is not a regular expression.
    """
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"-k {pattern} is not a regular expression: {error}") from error
    found = [
        case
        for case in suite.all_cases()
        if (not categories or case.category in categories) and wanted.search(case.id)
    ]
    if not found:
        raise UsageError(f"no case of ONNX's suite matches '{pattern}'")
    return sorted(found, key=lambda case: case.category != "light")
