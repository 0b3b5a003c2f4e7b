"""The command line called in this process, in an empty folder that holds a few models."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from . import models


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """What it printed, as JSON of the strict kind: no NaN."""

        def refuse(text: str) -> None:
            raise ValueError(f"{text} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


Tercet = Callable[..., Finished]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new current folder with classifier.onnx and adder.onnx."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    models.write(models.classifier(), tmp_path / "classifier.onnx")
    models.write(models.adder(), tmp_path / "adder.onnx")
    return tmp_path


@pytest.fixture
def tercet(folder: Path, capsys: pytest.CaptureFixture[str]) -> Tercet:
    """Runs a command; checks that there is no traceback."""

    def call(*arguments: object) -> Finished:
        from tercet.tools.cli import main

        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        if "--debug" not in arguments:
            assert "Traceback" not in err
        return Finished(code, out, err)

    return call
