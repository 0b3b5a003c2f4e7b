"""The examples of docs/device_arrays.md run, those with PyTorch on a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/device_arrays.md").read_text(), re.S)
MODEL = """<ir_version: 10, opset_import: ["": 22]>
g (float[n, 64] x) => (float[n, 64] y) { a = MatMul (x, w)  y = Relu (a) }"""


def _parameters() -> list[object]:
    return [
        pytest.param(
            block,
            id=f"example {i}",
            marks=[pytest.mark.gpu] if "import torch" in block else [],
        )
        for i, block in enumerate(BLOCKS, 1)
    ]


@pytest.mark.parametrize("block", _parameters())
def test_example(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "import torch" in block:
        pytest.importorskip("torch")
    model = parse_model(MODEL)
    weight = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs/device_arrays.md", "exec"), {"__name__": "example"})


def test_there_are_examples_for_both() -> None:
    with_torch = ["import torch" in block for block in BLOCKS]
    assert with_torch.count(True) >= 2 <= with_torch.count(False)
