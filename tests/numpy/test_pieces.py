"""Stages of several calls go over parts of a block that stay in the cache."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto

import tercet
from tercet.backends.numpy.engine import chain

from .graphs import Array, model, node, random

X = random(2, 6, 9, 16)
CONV = node("Conv", ["x", "w"], "a", pads=[1, 1, 1, 1])
WIDE = {"w": random(6, 6, 3, 3), "k": random(6, 1, 1)}
DEPTHWISE = {"w": random(6, 1, 3, 3), "k": random(6, 1, 1)}
LINES = {"w": np.ones(16, np.float32), "k": random(9, 16)}
SIGMOID, SCALED = node("Sigmoid", ["a"], "s"), node("Mul", ["s", "k"], "y")


def run(nodes: list[NodeProto], constants: dict[str, Array]) -> Array:
    with tercet.load(model(nodes, {"x": X}, constants), stop_at=0) as loaded:
        return loaded.run({"x": X})["y"]


@pytest.mark.parametrize("way", ["product", "depthwise"])
@pytest.mark.parametrize("size", [1, 50, 300])
def test_pieces_have_the_same_results(way: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    conv, constants = CONV, WIDE
    if way == "depthwise":
        conv, constants = node("Conv", ["x", "w"], "a", pads=[1, 1, 1, 1], group=6), DEPTHWISE
    whole = run([conv, SIGMOID, SCALED], constants)
    sizes: list[int] = []
    recorded = chain.elementwise_call

    def sized(*given: Any, out: Array) -> Callable[[], object]:
        sizes.append(prod(out.shape))
        return recorded(*given, out=out)

    monkeypatch.setattr(chain, "elementwise_call", sized)
    monkeypatch.setattr(chain, "PIECE", size)
    np.testing.assert_array_equal(run([conv, SIGMOID, SCALED], constants), whole)
    assert sizes
    assert max(sizes) <= size
    assert sum(sizes) == 2 * X.size


def test_a_single_call_has_the_whole_block(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    recorded = chain.elementwise_call

    def sized(*given: Any, out: Array) -> Callable[[], object]:
        calls.append(out.size)
        return recorded(*given, out=out)

    monkeypatch.setattr(chain, "elementwise_call", sized)
    few = {key: data for key, data in WIDE.items() if key == "w"}
    run([CONV, node("Relu", ["a"], "y")], few)
    whole = list(calls)
    monkeypatch.setattr(chain, "PIECE", 10)
    calls.clear()
    run([CONV, node("Relu", ["a"], "y")], few)
    assert calls == whole


def _dot() -> Array:
    return 1 / (1 + np.exp(-(X[0, 0, 0] @ X[1, 0, 0])))


def _normalized() -> Array:
    centred = X - X.mean(-1, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) + LINES["k"]
    return y / (1 + np.exp(-y))


@pytest.mark.parametrize("size", [1, 1 << 16])
@pytest.mark.parametrize(
    ("nodes", "feeds", "want"),
    [
        (
            [node("MatMul", ["x", "z"], "a"), node("Sigmoid", ["a"], "y")],
            {"x": X[0, 0, 0], "z": X[1, 0, 0]},
            _dot,
        ),
        (
            [
                node("LayerNormalization", ["x", "w"], "n"),
                node("Add", ["n", "k"], "a"),
                node("Sigmoid", ["a"], "s"),
                node("Mul", ["a", "s"], "y"),
            ],
            {"x": X},
            _normalized,
        ),
    ],
    ids=["scalar", "lines of rows"],
)
def test_results_in_one_block(
    nodes: list[NodeProto],
    feeds: dict[str, Array],
    want: Callable[[], Array],
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dot product, and rows with an addend that differs from line to line."""
    monkeypatch.setattr(chain, "PIECE", size)
    constants = LINES if "z" not in feeds else {}
    with tercet.load(model(nodes, feeds, constants), stop_at=0) as loaded:
        np.testing.assert_allclose(loaded.run(feeds)["y"], want(), rtol=1e-5, atol=1e-5)
