"""Softmax and LayerNormalization of single and double precision are recorded with the plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tercet
from tercet.backends.numpy.ops import norm_rows

from .graphs import model, node, random

SHAPES = [(1, 7), (3, 4, 50), (200, 3), (2, 40_000)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layer_norm(shape: tuple[int, ...], dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, scale, shift = (random(*each, dtype=dtype) for each in (shape, shape[-1:], shape[-1:]))
    constants = {"scale": scale, "shift": shift}
    wide = x.astype(np.float64)
    mean = wide.mean(-1, keepdims=True)
    root = np.sqrt(np.square(wide - mean).mean(-1, keepdims=True) + 1e-5)
    want = {"y": (wide - mean) / root * scale + shift, "m": mean, "i": 1 / root}
    for names in (["y"], ["y", "m", "i"]):
        proto = model(
            [node("LayerNormalization", ["x", *constants], "y")], {"x": x}, constants, names
        )
        del proto.graph.node[0].output[:]
        proto.graph.node[0].output.extend(names)
        with tercet.load(proto) as loaded, monkeypatch.context() as patch:
            loaded.run({"x": 2 * x})
            patch.delattr(norm_rows, "_sums")
            found = loaded.run({"x": x})
        for name in names:
            np.testing.assert_allclose(found[name], want[name], rtol=1e-4, atol=2e-5)


def test_statistics_of_rows_without_elements() -> None:
    norm = node("LayerNormalization", ["x", "scale"], "y")
    norm.output.extend(["mean", "inverse"])
    nodes, x = [norm, node("Sigmoid", ["y"], "z")], np.empty((1 << 16, 0), np.float32)
    constants = {"scale": np.ones(0, np.float32)}
    with tercet.load(model(nodes, {"x": x}, constants, ["mean", "inverse", "z"])) as loaded:
        found = loaded.run({"x": x})
    for name in ("mean", "inverse"):  # 0 / 0, not what was in memory
        np.testing.assert_array_equal(found[name], np.full((len(x), 1), np.nan, np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_norm(shape: tuple[int, ...], dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, scale = random(*shape, dtype=dtype), random(shape[-1], dtype=dtype)
    proto = model([node("RMSNormalization", ["x", "scale"], "y")], {"x": x}, {"scale": scale})
    proto.opset_import[0].version = 23
    with tercet.load(proto) as loaded:
        loaded.run({"x": 2 * x})
        monkeypatch.delattr(norm_rows, "_sums")
        found = loaded.run({"x": x})["y"]
    wide = x.astype(np.float64)
    want = wide / np.sqrt(np.square(wide).mean(-1, keepdims=True) + 1e-5) * scale
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 7), (3, 4, 50), (2, 40_000)], ids=str)
def test_softmax(shape: tuple[int, ...], dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(*shape, dtype=dtype)
    x[..., 0, 1] = 200
    x[..., -1, 2:5] = -np.inf
    with tercet.load(model([node("Softmax", ["x"], "y", axis=-1)], {"x": x}, {})) as loaded:
        loaded.run({"x": 2 * x})
        monkeypatch.delattr(norm_rows, "_peaks")
        found = loaded.run({"x": x})["y"]
    powers = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    np.testing.assert_allclose(found, powers / powers.sum(-1, keepdims=True), rtol=1e-5, atol=1e-30)
