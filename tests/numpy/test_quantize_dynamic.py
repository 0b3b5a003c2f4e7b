"""Quantization by the range of the data, whose calls are prepared with the plan."""

from __future__ import annotations

import numpy as np
import pytest

import tercet
from tercet.backends.numpy.ops import quantize_dynamic

from .nodes import by_onnxruntime, model_of, node, run

NORMAL = np.random.default_rng(5).standard_normal((3, 5)).astype(np.float32)
CASES = {
    "both signs": NORMAL,
    "positive": np.abs(NORMAL),
    "negative": -np.abs(NORMAL),
    "zeros": 0 * NORMAL,
    "a number": np.array(2.5, np.float32),
    "several blocks": np.random.default_rng(6).standard_normal((3, 20_000)).astype(np.float32),
}
FEEDS = {"x": NORMAL}


@pytest.mark.parametrize("outputs", ["y s z", "y - z", "- s -"])
@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime(name: str, outputs: str) -> None:
    feeds = {"x": CASES[name]}
    names = outputs.replace("-", "").split()
    model = model_of([node("DynamicQuantizeLinear", "x", "y s z")], feeds, " ".join(names))
    for got, want in zip(run(model, feeds), by_onnxruntime(model, feeds), strict=True):
        assert (got.dtype, got.shape, got.tolist()) == (want.dtype, want.shape, want.tolist())


def test_runs_make_no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """They play those that were recorded when the plan was made."""
    with tercet.load(model_of([node("DynamicQuantizeLinear", "x", "y s z")], FEEDS, "y s z")) as m:
        want = m.run(FEEDS)
        monkeypatch.delattr(quantize_dynamic, "saturating")
        for _ in range(2):
            found = m.run(FEEDS)
            assert all(np.array_equal(found[name], want[name]) for name in "ysz")
