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
