"""A case that ends its process, or takes too long, is a failure of that case alone."""

from __future__ import annotations

import os
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tercet import DeviceError
from tercet.tools.conformance import workers
from tercet.tools.conformance.judge import CaseOutcome
from tercet.tools.conformance.suite import ConformanceCase, all_cases
from tercet.tools.conformance.workers import WorkerSettings, run_cases


@pytest.fixture(scope="module")
def good() -> list[ConformanceCase]:
    """Cases that pass. Making ONNX's cases takes seconds, so collecting tests makes none."""
    found = [case for case in all_cases() if case.name.startswith("test_relu")]
    assert found
    return found


def case_that(name: str, act: Any) -> ConformanceCase:
    """A case that does something when it is read; it is pickled by what it calls."""
    content: Any = SimpleNamespace(read=act)
    return ConformanceCase(f"test_{name}", "node", "Relu", 1e-3, 1e-7, content)


ABORTS = case_that("aborts", os.abort)
LEAVES = case_that("leaves", partial(os._exit, 3))
SLEEPS = case_that("sleeps", partial(time.sleep, 60))
RAISES = case_that("raises", partial(int, "x"))
STOPS = case_that("stops", partial(next, iter(())))


def outcomes(*cases: ConformanceCase, jobs: int = 1, timeout: float = 60) -> dict[str, CaseOutcome]:
    settings = WorkerSettings("numpy", timeout=timeout, jobs=jobs)
    return {case.name: outcome for case, outcome in run_cases(cases, settings)}


@pytest.mark.parametrize("jobs", [1, 2])
def test_processes_are_started_again(jobs: int, good: list[ConformanceCase]) -> None:
    found = outcomes(ABORTS, *good, LEAVES, *good, RAISES, STOPS, jobs=jobs)
    assert "died of SIGABRT" in found[ABORTS.name].reason
    assert "ended with code 3" in found[LEAVES.name].reason
    assert found[RAISES.name].reason.startswith("ValueError: invalid literal")
    assert "ended with code 1" in found[STOPS.name].reason
    assert {found[case.name].status for case in (ABORTS, LEAVES, RAISES, STOPS)} == {"failed"}
    assert all(found[case.name] == CaseOutcome("passed") for case in good)


def test_what_takes_too_long_is_ended(good: list[ConformanceCase]) -> None:
    found = outcomes(SLEEPS, *good, timeout=5)
    assert found[SLEEPS.name] == CaseOutcome("failed", "no result after 5 s", broken=True)
    assert all(found[case.name].status == "passed" for case in good)


def test_processes_that_do_not_start_are_an_error(
    good: list[ConformanceCase], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_START_SECONDS", 0.0)
    with pytest.raises(DeviceError, match="does not start"):
        outcomes(*good)
