"""`tercet conformance`: scores, what is unexpected, exit codes, and the page."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tercet.tools.conformance import report, suite
from tercet.tools.conformance.suite import ConformanceCase

from .conftest import Tercet

RELU = "-k", "^node/test_relu", "--jobs", 1


def broken(name: str, act: object) -> ConformanceCase:
    """A case that does something bad when it is read."""
    content: Any = SimpleNamespace(read=act)
    return ConformanceCase(name, "node", "Relu", 1e-3, 1e-7, content)


@pytest.fixture
def expectations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the files of expectations are read from; it is empty."""
    monkeypatch.setattr(report, "HERE", tmp_path)
    return tmp_path


def test_score(tercet: Tercet) -> None:
    done = tercet("conformance", *RELU)
    assert done.code == 0
    for words in ("onnx ", "numpy on cpu", "2 of 2 (100.0%)", "all cases of 1 operator pass"):
        assert words in done.out
    assert "everything is as expected" in done.out


def test_json(tercet: Tercet) -> None:
    found = tercet("conformance", *RELU, "--json").json
    assert found["ok"]
    assert found["score"] == found["operators"]["Relu"] == {"passed": 2, "cases": 2}
    assert found["categories"] == {"node": found["score"]}
    assert (found["backend"], found["fallback"]) == ("numpy", "")
    assert found["not_passed"] == found["surprises"] == []


def test_categories(tercet: Tercet) -> None:
    chosen = "--category", "model", "--category", "simple", "-k", "test_single_relu_model"
    found = tercet("conformance", *chosen, "--json").json
    assert found["categories"] == {name: {"passed": 1, "cases": 1} for name in ("model", "simple")}
    assert found["operators"] == {}


def test_failures_are_unexpected(
    tercet: Tercet, monkeypatch: pytest.MonkeyPatch, expectations: Path
) -> None:
    sleeps = broken("test_relu_that_sleeps", partial(time.sleep, 60))
    dies = broken("test_relu_that_dies", os.abort)
    cases = (*suite.all_cases(), sleeps, dies)
    monkeypatch.setattr(suite, "all_cases", lambda: cases)
    done = tercet("conformance", *RELU, "--timeout", 2)
    assert done.code == 1
    assert "2 of 4 (50.0%)" in done.out
    assert "node/test_relu_that_sleeps\n    no result after 2 s" in done.out
    assert "node/test_relu_that_dies\n    the process died of SIGABRT" in done.out
    assert "2 unexpected failures" in done.out
    entry = '[[not_passed]]\nreason = "it sleeps"\ncases = ["node/test_relu_that_sleeps"]\n'
    (expectations / "expected_numpy.toml").write_text(entry)
    found = tercet("conformance", *RELU, "--timeout", 2, "--json")
    assert found.code == 1
    missed = {each["case"]: each for each in found.json["not_passed"]}
    assert missed["node/test_relu_that_sleeps"]["reason"] == "it sleeps"
    assert {case: each["expected"] for case, each in missed.items()} == {
        "node/test_relu_that_dies": False,
        "node/test_relu_that_sleeps": True,
    }


def test_passes_may_be_unexpected(tercet: Tercet, expectations: Path) -> None:
    file = expectations / "expected_numpy.toml"
    file.write_text('[[not_passed]]\nreason = "none"\ncases = ["node/test_relu"]\n')
    done = tercet("conformance", *RELU)
    assert done.code == 1
    assert "PASSED, but expected to fail\n  node/test_relu\n" in done.out
    file.write_text(file.read_text() + "by_chance = true\n")
    done = tercet("conformance", *RELU)
    assert done.code == 0
    assert "1 of 2 (50.0%)" in done.out


def test_what_is_declined(tercet: Tercet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a backend may decline, a gap is shown and is no failure."""
    from tercet.tools.conformance import run
    from tercet.tools.conformance.judge import CaseOutcome

    outcome = CaseOutcome("unsupported", "no kernel")
    monkeypatch.setattr(run, "run_cases", lambda cases, _: ((case, outcome) for case in cases))
    assert tercet("conformance", *RELU).code == 1
    expected = report.Expectation(may_decline=True)
    monkeypatch.setattr(run, "read_expectation", lambda *names: expected)
    done = tercet("conformance", *RELU)
    assert done.code == 0
    assert "0 of 2 (0.0%)" in done.out
    assert "no kernel" in done.out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("-k", "no such case"), 2, "no case of ONNX's suite matches 'no such case'"),
        (("-k", "("), 2, "is not a regular expression"),
        (("--category", "nodes"), 2, "no category 'nodes'; did you mean 'node'?"),
        (("--timeout", "0"), 2, "leaves no time"),
        (("--jobs", "0"), 2, "0 processes"),
        (("-b", "nunpy"), 2, "did you mean 'numpy'?"),
        (("--write", "page.md", "-k", "relu"), 2, "--write is for the whole suite"),
        (("--write", "page.md", "--category", "node"), 2, "--write is for the whole suite"),
    ],
)
def test_wrong_usage(tercet: Tercet, arguments: tuple[str, ...], code: int, words: str) -> None:
    done = tercet("conformance", *arguments)
    assert done.code == code
    assert words in done.err


def test_page(tercet: Tercet, monkeypatch: pytest.MonkeyPatch, expectations: Path) -> None:
    """The page keeps the column of a backend that was measured before."""
    relu = [case for case in suite.all_cases() if case.name == "test_relu"]
    monkeypatch.setattr(suite, "all_cases", lambda: relu)
    page, results = expectations / "conformance.md", expectations / "results"
    assert tercet("conformance", "--write", page).code == 0
    kept = json.loads((results / "conformance_numpy.json").read_text())
    kept |= {
        "backend": "cuda",
        "fallback": "numpy",
        "operators": {"Relu": {"passed": 0, "cases": 1}},
    }
    missed = {"case": "node/test_relu", "operator": "Relu", "status": "failed", "expected": False}
    kept["not_passed"] = [{**missed, "reason": "a|b"}]
    (results / "conformance_cuda_numpy.json").write_text(json.dumps(kept))
    assert tercet("conformance", "--write", page).code == 0
    text = page.read_text()
    assert "| operator | numpy | cuda + numpy |" in text
    assert "| Relu | 1/1 |  |" in text
    assert "ONNX has no case for " in text
    assert "## What numpy does not pass\n\nNothing." in text
    assert "## What cuda + numpy does not pass" in text
    assert r"| Relu | `test_relu` | a\|b |" in text
