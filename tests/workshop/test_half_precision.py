"""The table of what half precision costs: what counts as wrong, and what the page says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tercet.tools.workshop.half_precision import HalfResult, markdown, measure, samples

from ..cli import models
from ..randomness import restarting

RNG = restarting(3)
WEIGHT = RNG.standard_normal((4, 4), np.float32)


def write(folder: Path, x: np.ndarray, error: float) -> None:
    """Write a network, its input and what PyTorch would compute, so far off in float16."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    ends = [models.tensor(name, [2, 4]) for name in "xy"]
    onnx.save(models.model_of([node], ends[:1], ends[1:], {"w": WEIGHT}), folder / "net.onnx")
    exact = x.astype(np.float64) @ WEIGHT.astype(np.float64)
    np.savez(folder / "net.npz", in0=x, float64=exact, float16=exact * (1 + error))


CASES = {
    "as exact as PyTorch": (1.0, 1e-3, "ok"),
    "less exact": (1.0, 1e-9, "more than 3 times PyTorch's error"),
    "beyond the range": (1e5, 1e-3, "8 elements are not finite"),
}


@pytest.mark.parametrize("name", CASES)
def test_verdicts(tmp_path: Path, name: str) -> None:
    scale, error, verdict = CASES[name]
    x = RNG.standard_normal((2, 4), np.float32)
    write(tmp_path, np.copysign(np.float32(scale), x) if scale > 1 else x, error)
    (sample,) = samples(tmp_path)
    found = measure(sample, "float16", "numpy")
    assert found.verdict == verdict
    assert (found.narrow, found.layers) == (1, 1)
    assert bool(found.warned) == (scale > 1)
    assert found.error_float32 < 1e-6


def test_models_in_folders_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    write(tmp_path, np.ones((2, 4), np.float32), 0.0)
    (tmp_path / "net.onnx").rename(tmp_path / "one" / "model.onnx")
    np.savez(tmp_path / "one" / "inputs.npz", x=np.ones((2, 4), np.float32))
    (sample,) = samples(tmp_path)
    found = measure(sample, "bfloat16", "numpy")
    assert found.error_pytorch is None
    assert 0 < found.error < 1e-2


def test_the_page() -> None:
    page = markdown(
        [HalfResult("net", "float16", 1e-3, 1e-7, 2e-3, 5, 4, warned="look here")], {"CPU": "some"}
    )
    assert "| net | float16 | 1.0e-03 | 1.0e-07 | 2.0e-03 | 4 of 5 | ok |" in page
    assert "- net, float16: look here" in page
