"""Winograd's convolutions: right everywhere, within a stated error, and taken where they pay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import tercet
from tercet.backends.numpy.engine import thread_pool
from tercet.backends.numpy.ops import conv as products
from tercet.backends.numpy.windows.winograd import CACHE, ERROR

from .graphs import Array, model, node, random


def expected(x: Array, w: Array, b: Array, pads: tuple[int, int, int, int]) -> Array:
    """Return the convolution in float64."""
    top, left, bottom, right = pads
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = sliding_window_view(padded, (3, 3), (2, 3))
    result = np.einsum("nchwij,kcij->nkhw", windows, w.astype(np.float64), optimize=True)
    return result + b.astype(np.float64)[:, np.newaxis, np.newaxis]


def error(found: Array, wanted: Array) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take Winograd's way wherever it exists, whether it pays or not."""
    monkeypatch.setattr(products, "WORTHWHILE", float("inf"))


def run(nodes: Any, x: Array, constants: dict[str, Array], **inputs: Array) -> tuple[Array, str]:
    proto = model(nodes, {"x": x, **inputs}, constants)
    with tercet.load(proto, stop_at=0) as loaded:
        result = loaded.run({"x": x, **inputs})["y"]
        kernels = [row.kernel for row in loaded.prepare().rows if row.kind == "step"]
    return result, "; ".join(kernels)


SHAPES: dict[str, tuple[tuple[int, ...], int, tuple[int, int, int, int]]] = {
    "whole tiles": ((1, 8, 16, 16), 8, (1, 1, 1, 1)),
    "parts of tiles": ((1, 8, 15, 18), 8, (1, 1, 1, 1)),
    "no pads": ((1, 8, 15, 18), 8, (0, 0, 0, 0)),
    "other pads": ((1, 5, 9, 11), 7, (2, 0, 1, 3)),
    "pads wider than a tile": ((1, 3, 6, 5), 4, (7, 6, 9, 5)),
    "one output": ((1, 6, 3, 3), 5, (0, 0, 0, 0)),
    "one row": ((1, 6, 1, 40), 5, (1, 1, 1, 1)),
    "one column": ((1, 6, 40, 1), 5, (1, 1, 1, 1)),
    "images": ((3, 4, 10, 9), 6, (1, 1, 1, 1)),
    "many rows of tiles": ((1, 16, 90, 70), 32, (1, 1, 1, 1)),
    "many filters": ((1, 96, 12, 12), 160, (1, 1, 1, 1)),
    "one channel": ((1, 1, 12, 12), 1, (1, 1, 1, 1)),
}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", SHAPES)
def test_convolution(name: str) -> None:
    shape, filters, pads = SHAPES[name]
    x, w, b = random(*shape), random(filters, shape[1], 3, 3), random(filters)
    found, kernel = run([node("Conv", "xwb", "y", pads=pads)], x, {"w": w, "b": b})
    assert "Winograd" in kernel
    wanted = expected(x, w, b, pads)
    assert found.shape == wanted.shape
    assert error(found, wanted) <= ERROR


CHAINS: dict[str, tuple[Any, dict[str, Array], Any]] = {
    "activation": ([node("Relu", "a", "y")], {}, lambda a, z: np.maximum(a, 0)),
    "two activations": (
        [node("Relu", "a", "r"), node("Tanh", "r", "y")],
        {},
        lambda a, z: np.tanh(np.maximum(a, 0)),
    ),
    "residual": (
        [node("Add", "az", "s"), node("Relu", "s", "y")],
        {},
        lambda a, z: np.maximum(a + z, 0),
    ),
    "activation, residual": (
        [node("Relu", "a", "r"), node("Add", "zr", "y")],
        {},
        lambda a, z: np.maximum(a, 0) + z,
    ),
    "limits": (
        [node("Clip", "alh", "y")],
        {"l": np.array(-1, np.float32), "h": np.array(6, np.float32)},
        lambda a, z: np.clip(a, -1, 6),
    ),
    "by row": (
        [node("Mul", "ak", "y")],
        {"k": random(30, 1)},
        lambda a, z: a * CHAINS["by row"][1]["k"],
    ),
}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", CHAINS)
def test_what_is_behind_it(name: str) -> None:
    nodes, constants, formula = CHAINS[name]
    x, z = random(1, 8, 30, 22), random(1, 8, 30, 22)
    w, b = random(8, 8, 3, 3), random(8)
    conv = node("Conv", "xwb", "a", pads=[1, 1, 1, 1])
    found, kernel = run([conv, *nodes], x, {"w": w, "b": b, **constants}, z=z)
    assert "Winograd" in kernel
    assert kernel.count(";") == 0
    assert error(found, formula(expected(x, w, b, (1, 1, 1, 1)), z.astype(np.float64))) <= ERROR


@pytest.mark.usefixtures("always")
def test_without_bias() -> None:
    x, w = random(1, 64, 56, 56), random(64, 64, 3, 3)
    found, kernel = run([node("Conv", "xw", "y", pads=[1, 1, 1, 1])], x, {"w": w})
    assert "Winograd" in kernel
    assert error(found, expected(x, w, np.zeros(64), (1, 1, 1, 1))) <= ERROR


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("channels", [64, 512])
def test_error_is_within_its_bound(channels: int) -> None:
    """Of normal inputs and filters, and of inputs behind a Relu, whose mean is not zero."""
    size = 56 if channels == 64 else 28
    w = random(64, channels, 3, 3) * np.float32(np.sqrt(2 / (9 * channels)))
    b = random(64) * np.float32(0.1)
    nodes = [node("Conv", "xwb", "y", pads=[1, 1, 1, 1])]
    for x in (random(1, channels, size, size), np.abs(random(1, channels, size, size))):
        found, kernel = run(nodes, x, {"w": w, "b": b})
        assert "Winograd" in kernel
        wanted = expected(x, w, b, (1, 1, 1, 1))
        assert error(found, wanted) <= ERROR
        assert np.abs(found - wanted).max() <= 4 * ERROR * np.abs(wanted).max()


STRAIGHT: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "stride": ((1, 64, 56, 56), (64, 64, 3, 3), {"strides": [2, 2]}),
    "dilation": ((1, 64, 56, 56), (64, 64, 3, 3), {"dilations": [2, 2]}),
    "groups": ((1, 64, 56, 56), (64, 32, 3, 3), {"group": 2}),
    "another kernel": ((1, 64, 56, 56), (64, 64, 5, 5), {}),
    "few channels": ((1, 3, 112, 112), (64, 3, 3, 3), {}),
    "few positions": ((1, 64, 7, 7), (64, 64, 3, 3), {}),
}


@pytest.mark.parametrize("name", STRAIGHT)
def test_other_convolutions_are_products(name: str) -> None:
    shape, filters, attributes = STRAIGHT[name]
    _, kernel = run(
        [node("Conv", "xw", "y", **attributes)], random(*shape), {"w": random(*filters)}
    )
    assert "product" in kernel


def test_float64_is_multiplied_out() -> None:
    x, w = (random(*shape, dtype=np.float64) for shape in ((1, 64, 56, 56), (64, 64, 3, 3)))
    _, kernel = run([node("Conv", "xw", "y")], x, {"w": w})
    assert "product" in kernel


def test_filters_that_are_no_constant_are_multiplied_as_they_are() -> None:
    x, w = random(1, 64, 56, 56), random(64, 64, 3, 3)
    _, kernel = run([node("Conv", "xw", "y")], x, {}, w=w)
    assert "product" in kernel


@pytest.mark.parametrize("workers", [1, 2])
def test_blocks_of_large_images_stay_near_the_cache(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image of 56 rows of tiles as one block would need 97 MB, and twice the time."""
    monkeypatch.setattr(thread_pool, "size", lambda: workers)
    x, w = np.zeros((1, 64, 224, 224), np.float32), random(64, 64, 3, 3)
    proto = model([node("Conv", "xw", "y", pads=[1, 1, 1, 1])], {"x": x}, {"w": w})
    with tercet.load(proto) as loaded:
        (row,) = (row for row in loaded.prepare().rows if row.kind == "step")
        assert "Winograd" in row.kernel
        assert loaded.memory().workspace["cpu"] <= 3 * CACHE * workers


def test_a_small_workspace_leaves_the_product() -> None:
    proto = model(
        [node("Conv", "xw", "y")], {"x": random(1, 64, 56, 56)}, {"w": random(64, 64, 3, 3)}
    )
    with tercet.load(proto, workspace=1 << 20) as loaded:
        (row,) = (row for row in loaded.prepare().rows if row.kind == "step")
    assert "product" in row.kernel
