"""A quantized model that is beyond its limit is judged by the decisions that it has taken."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tercet
from tercet.runtime.ir.types import Array
from tercet.tools.runners import runners
from tercet.tools.workshop.model_table import by_decisions, check

MODEL = """<ir_version: 9, opset_import: ["" : 18]>
g (float[8] x) => (float[8] y) <float step = {0.5}, int8 zero = {0}, float three = {3}> {
  q = QuantizeLinear (x, step, zero)
  d = DequantizeLinear (q, step, zero)
  y = Mul (d, three)
}"""
FEEDS = {"x": np.linspace(-2, 2, 8, dtype=np.float32)}
ABOUT = {"name": "m", "ort": "maxdiff 9", "features": "quantized"}


class Shifted:
    """Gives what is expected, and more in the last element."""

    precision = "float32"

    def __init__(self, by: float) -> None:
        self._by = by

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        found = np.linspace(0, 255, 8, dtype=np.float32)
        found[-1] += self._by
        return {"y": found}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    np.savez(tmp_path / "inputs.npz", **FEEDS)  # pyright: ignore[reportArgumentType]
    np.savez(tmp_path / "expected_ort.npz", y=np.linspace(0, 255, 8, dtype=np.float32))
    return tmp_path


@pytest.mark.parametrize(
    ("by", "said", "ok", "asked"),
    [(0.5, "MISMATCH", True, 0), (8.0, "MISMATCH", False, 1), (8.0, "", True, 1)],
    ids=["within a step", "wrong", "decided"],
)
def test_a_step_is_allowed_and_more_if_decisions_explain_it(
    by: float, said: str, ok: bool, asked: int, folder: Path
) -> None:
    """Not what one draw of onnxruntime's decisions happens to change (9, above)."""
    count = 0

    def decisions(feeds: Mapping[str, Array]) -> dict[str, str]:
        nonlocal count
        count += 1
        return {"y": said}

    model: Any = Shifted(by)
    (row,) = check(folder, ABOUT, model, None, decisions)
    assert (row.ok, count) == (ok, asked)


def test_decisions_are_those_of_the_backend(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    file = folder / "model.onnx"
    assert by_decisions(file, "numpy", None, FEEDS) == {"y": ""}
    right = tercet.Model.run

    def wrong(model: tercet.Model, *given: Any, **more: Any) -> Any:
        return {name: data + 1.5 for name, data in right(model, *given, **more).items()}

    monkeypatch.setattr(runners._Tercet, "run", lambda self, feeds: wrong(self.model, feeds))
    assert by_decisions(file, "numpy", None, FEEDS)["y"].startswith("MISMATCH")
