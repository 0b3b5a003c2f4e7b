"""The table of what graph passes are worth, on a small model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tercet.tools.workshop import pass_bench

from ..cli import models


def test_a_page_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_bench, "bench_model", lambda name: models.classifier())
    pass_bench.main(["resnet50", "--duration", "0.02", "--output", str(tmp_path)])
    text = (tmp_path / "passes_numpy.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    steps = {row[0].removeprefix("| "): row[1] for row in rows[1:]}
    assert steps["all passes"] == "4"
    assert steps["without fold_batchnorm"] == "5"
    found = json.loads((tmp_path / "passes_numpy.json").read_text(encoding="utf-8"))
    assert {case["model"] for case in found["cases"]} == {"resnet50"}
    assert "tercet" in found["environment"]


def test_unknown_models_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        pass_bench.main(["resnet5"])
    assert "did you mean 'resnet50'" in capsys.readouterr().err
