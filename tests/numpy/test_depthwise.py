"""Depthwise convolutions by copies of the image: right for every geometry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import tercet
from tercet.backends.numpy.windows.depthwise import Depthwise
from tercet.backends.numpy.windows.depthwise_last import DepthwiseLast

from .graphs import Array, model, node, random


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take this way wherever it exists, whether it pays or not."""
    monkeypatch.setattr(Depthwise, "unfolded", float("inf"))
    monkeypatch.setattr(DepthwiseLast, "nanoseconds", 1e12)


@pytest.fixture
def last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the way with channels last wherever it exists."""
    monkeypatch.setattr(DepthwiseLast, "nanoseconds", 0.0)


def run(
    x: Array, constants: dict[str, Array], named: str = "depthwise", /, **attributes: Any
) -> Array:
    attributes["group"] = x.shape[1]
    nodes = [node("Conv", ["x", *constants], "a", **attributes), node("Relu", "a", "y")]
    with tercet.load(model(nodes, {"x": x}, constants), stop_at=0) as loaded:
        result = loaded.run({"x": x})["y"]
        kernels = [row.kernel for row in loaded.prepare().rows if row.kind == "step"]
    assert any(named in kernel for kernel in kernels)
    return result


def expected(x: Array, w: Array, b: Array, **attributes: Any) -> Array:
    """Return the result in float64."""
    top, left, bottom, right = attributes["pads"]
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    (s, t), (d, e) = attributes["strides"], attributes["dilations"]
    size = [(k - 1) * step + 1 for k, step in zip(w.shape[2:], (d, e), strict=True)]
    seen = sliding_window_view(padded, size, (2, 3))[:, :, ::s, ::t, ::d, ::e]
    weights = w.astype(np.float64).reshape(x.shape[1], -1, *w.shape[2:])
    found = np.einsum("ncpqij,cmij->ncmpq", seen, weights)
    found = found.reshape(len(x), len(w), *found.shape[3:])
    return np.maximum(found + b.astype(np.float64)[:, np.newaxis, np.newaxis], 0)


GEOMETRIES: dict[str, tuple[tuple[int, int], int, dict[str, tuple[int, ...]]]] = {
    "same": ((3, 3), 1, {}),
    "multiplied": ((3, 3), 2, {}),
    "columns": ((5, 1), 1, {"pads": (2, 0, 2, 0)}),
    "strides": ((3, 3), 1, {"strides": (2, 2)}),
    "other strides": ((5, 2), 1, {"strides": (3, 1), "pads": (2, 0, 1, 1)}),
    "more strides than rows": ((2, 3), 1, {"strides": (3, 2)}),
    "dilations": ((3, 3), 1, {"dilations": (2, 3), "pads": (2, 3, 2, 3)}),
    "strides and dilations": ((4, 3), 2, {"strides": (4, 2), "dilations": (6, 2)}),
    "wide pads": ((3, 3), 1, {"pads": (4, 5, 3, 6), "strides": (2, 1)}),
    "no pads": ((5, 5), 1, {"pads": (0, 0, 0, 0)}),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_geometry(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, times, given = GEOMETRIES[name]
    attributes = {"pads": (1, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1)} | given
    x, w, b = random(2, 6, 21, 25), random(6 * times, 1, *kernel), random(6 * times)
    wanted = expected(x, w, b, **attributes)
    assert np.abs(run(x, {"w": w, "b": b}, **attributes) - wanted).max() < 1e-5
    monkeypatch.setattr("tercet.backends.numpy.windows.depthwise.COPIES", 1 << 12)  # of few rows
    assert np.abs(run(x, {"w": w, "b": b}, **attributes) - wanted).max() < 1e-5


@pytest.mark.usefixtures("last")
@pytest.mark.parametrize("name", [name for name in GEOMETRIES if GEOMETRIES[name][1] == 1])
def test_every_geometry_with_channels_last(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of images or channels, those of half precision too, add up in the same order."""
    kernel, _, given = GEOMETRIES[name]
    attributes: dict[str, Any] = {"pads": (1,) * 4, "strides": (1, 1), "dilations": (1, 1)} | given
    x, w, b = random(5, 70, 21, 25), random(70, 1, *kernel), random(70)
    found = run(x, {"w": w, "b": b}, "channels last", **attributes)
    assert np.abs(found - expected(x, w, b, **attributes)).max() < 1e-5
    halves = [a.astype(np.float16) for a in (x, w, b)]
    half = run(halves[0], {"w": halves[1], "b": halves[2]}, "channels last", **attributes)
    assert np.abs(half - expected(*halves, **attributes)).max() < 2e-2
    monkeypatch.setattr("tercet.backends.numpy.windows.depthwise_last.COPIES", 1 << 17)
    assert (run(x, {"w": w, "b": b}, "channels last", **attributes) == found).all()


@pytest.mark.usefixtures("last")
def test_a_residual_behind_channels_last() -> None:
    x, w = random(1, 40, 9, 9), random(40, 1, 3, 3)
    nodes = [
        node("Conv", ["x", "w"], "a", group=40, pads=[1, 1, 1, 1]),
        *(node("Add", ["a", "x"], "s"), node("Relu", "s", "y")),
    ]
    with tercet.load(model(nodes, {"x": x}, {"w": w}), stop_at=0) as loaded:
        found = loaded.run({"x": x})["y"]
        (kernel,) = (row.kernel for row in loaded.prepare().rows if row.kind == "step")
    assert "Conv + Add + Relu" in kernel
    assert "channels last" in kernel
    geometry = {"pads": (1, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1)}
    unbounded = expected(x, w, np.full(40, 1e3, np.float32), **geometry) - 1e3
    assert np.abs(found - np.maximum(unbounded + x, 0)).max() < 1e-5


def test_equal_channels_give_equal_results() -> None:
    x, w, b = random(1, 1, 30, 31), random(1, 1, 3, 3), random(1)
    x, w, b = np.repeat(x, 40, 1), np.repeat(w, 40, 0), np.repeat(b, 40)
    found = run(x, {"w": w, "b": b}, pads=(1, 1, 1, 1))
    assert (found == found[:, :1]).all()


@pytest.mark.parametrize("name", GEOMETRIES)
def test_half_precision_is_summed_in_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, times, given = GEOMETRIES[name]
    arrays = random(1, 6, 21, 25), random(6 * times, 1, *kernel), random(6 * times)
    x, w, b = (a.astype(np.float16) for a in arrays)
    attributes = {"pads": (1, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1)} | given
    wanted = expected(x, w, b, **attributes)
    found = run(x, {"w": w, "b": b}, **attributes)
    np.testing.assert_allclose(found, wanted, rtol=2**-11, atol=1e-5)  # rounded once
    monkeypatch.setattr("tercet.backends.numpy.windows.depthwise.COPIES", 1 << 12)  # of few rows
    assert (run(x, {"w": w, "b": b}, **attributes) == found).all()
