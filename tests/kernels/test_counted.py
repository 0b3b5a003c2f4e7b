"""Graphs in which the data decide on sizes, on the emulated GPU with no other backend behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.numpy import evaluate
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..control.flows import SELECTED
from .dry import normal
from .emulator import needs_compiler

pytestmark = [
    pytest.mark.slow,
    needs_compiler,
]

DETECTED = """
g (float[1, n, 4] boxes, float[1, 2, n] scores) => (chosen, labels) {
  most = Constant <value = int64 {20}> ()
  limit = Constant <value = float {0.5}> ()
  kept = NonMaxSuppression (boxes, scores, most, limit)
  two = Constant <value = int64[1] {2}> ()
  one = Constant <value = int64[1] {1}> ()
  places = Gather <axis = 1> (kept, two)
  flat = Squeeze (places, one)
  zero = Constant <value = int64[1] {0}> ()
  plain = Squeeze (boxes, zero)
  chosen = Gather (plain, flat)
  labels = Gather <axis = 1> (kept, one)
}"""


def check(text: str, feeds: dict[str, Any], backend: Any) -> Model:
    proto = parse_model('<ir_version: 10, opset_import: ["" : 21]>\n' + text)
    with tercet.load(proto) as reference:
        want = reference.run(feeds)
        model = Model(reference.imported, [backend], Options(), evaluate)
    for name, data in model.run(feeds).items():
        np.testing.assert_allclose(data, want[name], rtol=1e-5, atol=1e-6)
    return model


@pytest.mark.parametrize("kept", [0, 1, 37, 100])
def test_what_is_not_zero(kept: int, emulated: CudaBackend) -> None:
    x = np.zeros((100, 4), np.float32)
    x[:kept] = np.abs(normal(kept, 4))
    model = check(SELECTED, {"x": x, "w": normal(4, 2)}, emulated)
    assert {row.backend for row in model.placement()} <= {"cuda", "cuda:0", "plan"}
    assert "count_found" in model.placement()["found"].kernel


def test_boxes_that_are_kept(emulated: CudaBackend) -> None:
    boxes = np.cumsum(np.abs(normal(1, 200, 2, 2)), 2).reshape(1, 200, 4)
    model = check(DETECTED, {"boxes": boxes, "scores": normal(1, 2, 200)}, emulated)
    assert "suppress" in model.placement()["kept"].kernel
