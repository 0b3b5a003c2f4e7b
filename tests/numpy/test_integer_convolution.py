"""Convolutions of bytes with constant weights give the integers that onnxruntime gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto

import tercet
from tercet.backends.numpy.windows import integer_convolution

from ..randomness import restarting
from .graphs import Array, model, node

RNG = restarting(11)
GEOMETRIES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "pads": ((2, 6, 17, 19), (8, 6, 3, 3), {"pads": [1, 2, 0, 1]}),
    "pointwise": ((1, 6, 17, 19), (8, 6, 1, 1), {}),
    "depthwise": ((2, 6, 17, 19), (6, 1, 3, 3), {"group": 6, "pads": [1] * 4, "strides": [2, 2]}),
    "tap by tap": (
        (2, 6, 17, 19),
        (6, 1, 3, 3),
        {"group": 6, "pads": [1, 2, 0, 1], "dilations": [2, 1]},
    ),
    "two filters": ((1, 6, 17, 19), (12, 1, 3, 2), {"group": 6, "pads": [0, 1, 1, 0]}),
    "three axes": ((1, 4, 5, 6, 7), (4, 1, 2, 3, 2), {"group": 4, "pads": [1, 0, 1, 0, 1, 1]}),
    "groups": ((1, 6, 17, 19), (8, 3, 3, 2), {"group": 2, "dilations": [2, 3]}),
    "one axis": ((2, 6, 30), (4, 6, 5), {"strides": [3], "pads": [4, 1]}),
}


def bytes_of(shape: tuple[int, ...], dtype: Any) -> Array:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


def both(made: ModelProto, x: Array) -> tuple[Array, Array, str]:
    """Return the results of numpy and onnxruntime, and what ran."""
    with tercet.load(made, stop_at=0) as loaded:
        found = loaded.run({"x": x})["y"]
        (kernel,) = (row.kernel for row in loaded.prepare().rows if row.kind == "step")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(made.SerializeToString(), options)
    (wanted,) = session.run(None, {"x": x})
    return found, np.asarray(wanted), kernel


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("limit", [1 << 19, 1 << 10], ids=["a block", "blocks"])
def test_integers_are_exact(name: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integer_convolution, "COLUMNS", limit)
    shape, weights, attributes = GEOMETRIES[name]
    x, constants = bytes_of(shape, np.uint8), {"w": bytes_of(weights, np.uint8)}
    constants |= {"of_x": np.array(131, np.uint8), "of_w": np.array(119, np.uint8)}
    nodes = [node("ConvInteger", ["x", *constants], "y", **attributes)]
    found, wanted, kernel = both(model(nodes, {"x": x}, constants), x)
    assert "float32" in kernel
    assert found.dtype == wanted.dtype == np.int32
    assert (found == wanted).all()


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("bias", [1 << 10, 1 << 27], ids=["float32", "float64"])
def test_rescaled_sums(name: str, bias: int) -> None:
    """A bias that float32 would round is added in float64."""
    shape, weights, attributes = GEOMETRIES[name]
    x, scale = bytes_of(shape, np.uint8), (1e-2 + RNG.random(weights[0])).astype(np.float32)
    w = bytes_of(weights, np.int8)
    constants = {
        "x_scale": np.array(0.03, np.float32),
        "x_zero": np.array(131, np.uint8),
        "w": w,
        "w_scale": scale,
        "w_zero": np.zeros(weights[0], np.int8),
        "y_scale": np.array(0.03 * (bias + 2e5) / 128, np.float32),
        "y_zero": np.array(120, np.uint8),
        "b": RNG.integers(-bias, bias, weights[0]).astype(np.int32),
    }
    nodes = [node("QLinearConv", ["x", *constants], "y", **attributes)]
    found, wanted, kernel = both(model(nodes, {"x": x}, constants), x)
    assert ("float32" if bias < 1 << 20 else "float64") in kernel
    assert len(np.unique(found)) > 20 or bias > 1 << 20
    difference = np.abs(found.astype(int) - wanted.astype(int))
    assert difference.max() <= 1  # where a product of scales is rounded in another order
    assert difference.mean() < 1e-3


def test_what_varies_is_left_to_the_plain_function() -> None:
    x, w = bytes_of((1, 3, 9, 9), np.uint8), bytes_of((4, 3, 3, 3), np.uint8)
    made = model([node("ConvInteger", ["x", "w"], "y")], {"x": x, "w": w}, {})
    with tercet.load(made, stop_at=0) as loaded:
        found = loaded.run({"x": x, "w": w})["y"]
    session = ort.InferenceSession(made.SerializeToString())
    assert (found == session.run(None, {"x": x, "w": w})[0]).all()
