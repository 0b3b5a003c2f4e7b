"""The command that checks everything where TensorRT is; here, what it does without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tercet.tools.workshop import tensorrt_check
from tercet.tools.workshop.tensorrt_check import CheckedPart, CommandOutcome, markdown, parts


@pytest.mark.usefixtures("nothing_installed")
def test_without_tensorrt_it_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    assert tensorrt_check.main([]) == 5
    assert "pip install 'tercet[tensorrt]'" in capsys.readouterr().out


def test_parts(tmp_path: Path) -> None:
    (tmp_path / "some-model").mkdir()
    (tmp_path / "some-model" / "model.onnx").touch()
    titles = [part.title for part in parts(None, tmp_path)]
    found = parts(tmp_path, tmp_path)
    assert [part.title for part in found] == [*titles, "real models"]
    assert "some-model" in found[-1].arguments
    assert all("tensorrt" in part.arguments for part in found)
    (suite,) = [part for part in found if part.title == "ONNX's own suite"]
    assert suite.settings == {"TERCET_TENSORRT_MIN_NODES": "1"}


def test_a_command_that_fails_is_reported() -> None:
    script = "import sys; print('half'); sys.exit(3)"
    outcome = tensorrt_check.run(CheckedPart("a part", ("-c", script)))
    assert (outcome.code, outcome.output) == (3, "half")
    page = markdown([outcome, CommandOutcome(outcome.part, 0, 1.0, "all well")])
    assert "## a part: exit code 3" in page
    assert "## a part: passed, 1 s" in page
