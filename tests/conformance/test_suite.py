"""ONNX's own test suite on numpy: what is not passed is on the list, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from onnx.backend.test.runner import Runner

import tercet.onnx_backend.numpy as backend
from tercet import UsageError, backends
from tercet.tools.conformance import report
from tercet.tools.conformance.report import Expectation, read_expectation
from tercet.tools.conformance.run import run_suite
from tercet.tools.conformance.suite import CATEGORIES, ConformanceCase, all_cases

#: The classes of tests that ONNX's runner makes, and what they are called here.
CLASSES = {
    "OnnxBackendNodeModelTest": "node",
    "OnnxBackendSimpleModelTest": "simple",
    "OnnxBackendPyTorchOperatorModelTest": "pytorch-operator",
    "OnnxBackendPyTorchConvertedModelTest": "pytorch-converted",
    "OnnxBackendRealModelTest": "light",
}


def test_numpy_passes_all_that_it_should() -> None:
    """Of the light models, test_light_models.py compares the shipped outputs."""
    report = run_suite("numpy", categories=[each for each in CATEGORIES if each != "light"])
    unexpected = [f"{found.case}: {found.reason}" for found in report.unexpected]
    surprises = [f"{case} passes, but is expected not to" for case in report.surprises]
    assert not unexpected + surprises, "\n" + "\n".join(unexpected + surprises)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # onnx makes expectations with overflows
def test_every_case_of_onnx_s_runner_is_here() -> None:
    module: Any = backend  # which will do in place of the class that it wants
    classes = Runner(module).test_cases
    names = {
        CLASSES[title]: {name.removesuffix("_cpu") for name in vars(tests) if name.endswith("_cpu")}
        for title, tests in classes.items()
    }
    cases = all_cases()
    assert names == {kind: {c.name for c in cases if c.category == kind} for kind in names}
    assert set(names) | {"model"} == set(CATEGORIES) == {case.category for case in cases}


def test_cases_have_ids_of_their_own() -> None:
    assert len({case.id for case in all_cases()}) == len(all_cases())


@pytest.mark.parametrize("name", backends.names())
def test_expectations_name_cases_that_exist(name: str) -> None:
    expected = read_expectation(name)
    assert not sorted(expected.reasons.keys() - {case.id for case in all_cases()})
    assert all(expected.reasons.values())


def test_cases_read_as_often_as_one_likes() -> None:
    """A case has a model and data that fit, wherever they come from."""
    firsts: dict[str, ConformanceCase] = {}
    for case in all_cases():
        firsts.setdefault(case.category, case)
    for case in firsts.values():
        for _ in range(2):
            model, data_sets = case.content.read()
            assert data_sets
            for inputs, outputs in data_sets:
                assert 0 < len(inputs) <= len(model.graph.input)
                assert len(outputs) == len(model.graph.output)


def test_expectations_depend_on_ml_dtypes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "HERE", tmp_path)
    monkeypatch.setattr(report, "version", {"ml-dtypes": "0.7.0rc1"}.__getitem__)
    entry = '[[not_passed]]\nreason = "because"\nsince = "{}"\ncases = ["node/test_{}"]\n'
    cases = {"0.6": "abs", "0.7": "acos", "0.10": "add", "1.0": "and"}
    text = "".join(entry.format(since, name) for since, name in cases.items())
    (tmp_path / "expected.toml").write_text(text)
    assert read_expectation("a").reasons.keys() == {"node/test_abs", "node/test_acos"}


def test_expectations_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "HERE", tmp_path)
    entry = '[[not_passed]]\nreason = "because"\ncases = ["node/test_abs"]\n'
    (tmp_path / "expected.toml").write_text(entry)
    (tmp_path / "expected_a.toml").write_text("may_decline = true\n" + entry.replace("abs", "acos"))
    assert read_expectation("a") == Expectation(
        {"node/test_abs": "because", "node/test_acos": "because"}, may_decline=True
    )
    assert not read_expectation("a", "b").may_decline
    (tmp_path / "expected_b.toml").write_text(entry)
    with pytest.raises(UsageError, match="node/test_abs is expected not to pass for two reasons"):
        read_expectation("b")
