"""Plans that were kept on disk, run with the constants that are read for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper, parser, save

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet import load, loading
from tercet.backends.cuda.backend import CudaBackend

from .dry import normal
from .emulator import needs_compiler

pytestmark = [pytest.mark.slow, needs_compiler]


def test_results(emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[n, 8] x) => (float[n, 6] y) {'
        " h = MatMul(x, w) s = Add(h, b) y = Relu(s) }"
    )
    weights = {"w": normal(8, 6), "b": normal(6)}
    model.graph.initializer.extend(numpy_helper.from_array(d, n) for n, d in weights.items())
    save(model, path := tmp_path / "model.onnx")
    monkeypatch.delenv("TERCET_VERIFY_PASSES")
    monkeypatch.setattr(loading._backends, "begin", lambda *_: None)
    monkeypatch.setattr(loading._backends, "open_backends", lambda *_: (emulated,))
    x = normal(5, 8)
    for _ in range(2):
        with load(path, "cuda", cache=tmp_path / "cache") as network:
            (y,) = network(x)
        wanted = np.maximum(x @ weights["w"] + weights["b"], 0)
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)
        assert len(list((tmp_path / "cache").glob("plans/*.program"))) == 1
