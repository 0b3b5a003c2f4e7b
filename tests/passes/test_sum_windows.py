"""Products of windows that a Gather unfolds, and a few weights for each of them."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Pad, Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.passes import STATIC_PASSES

from .graphs import apply, assert_same, kinds, make, normal, optimised

SAMPLES, LENGTH, HEADS, SIZE, TAPS = 2, 12, 3, 4, 5


def windows(g: Graph, x: Value, *perm: int) -> Value:
    """Return the neighbours of positions: samples, taps, places and columns, in an order."""
    padded = apply(g, Pad(), x, np.array([0, TAPS // 2, 0] * 2))
    at = np.arange(TAPS)[:, None] + np.arange(LENGTH)
    return apply(g, Transpose(perm=perm), apply(g, Gather(axis=1), padded, at))


def weights(g: Graph, x: Value) -> Value:
    layer = apply(g, MatMul(), x, normal(HEADS * SIZE, HEADS * TAPS))
    rows = apply(g, Reshape(), layer, np.array([SAMPLES * LENGTH * HEADS, TAPS]))
    return apply(g, Softmax(axis=-1), rows)


def dynamic(g: Graph, x: Value, *, left: bool) -> Value:
    """A dynamic convolution of heads (ConvBERT), weights on either side."""
    many = SAMPLES * LENGTH * HEADS
    if left:
        unfolded = windows(g, x, 0, 2, 1, 3)
        unfolded = apply(g, Reshape(), unfolded, np.array([SAMPLES, LENGTH, TAPS, HEADS, SIZE]))
        unfolded = apply(g, Transpose(perm=(0, 1, 3, 2, 4)), unfolded)
        each = apply(g, Reshape(), unfolded, np.array([many, TAPS, SIZE]))
        by = apply(g, Reshape(), weights(g, x), np.array([many, 1, TAPS]))
        return apply(g, MatMul(), by, each)
    each = apply(g, Reshape(), windows(g, x, 0, 2, 3, 1), np.array([many, SIZE, TAPS]))
    return apply(g, MatMul(), each, apply(g, Reshape(), weights(g, x), np.array([many, TAPS, 1])))


@pytest.mark.parametrize("left", [False, True])
def test_a_dynamic_convolution_is_a_sum(left: bool) -> None:
    before = make(lambda g, x: dynamic(g, x, left=left), (SAMPLES, LENGTH, HEADS * SIZE))
    after, _ = optimised(before, STATIC_PASSES)
    assert kinds(after).count("MatMul") == 1
    assert kinds(after)[-2:] == ["Mul", "ReduceSum"]
    assert_same(before, after, SAMPLES, LENGTH, HEADS * SIZE)


def test_products_of_what_is_not_repeated_stay() -> None:
    def build(g: Graph, x: Value) -> Value:
        turned = apply(g, Transpose(perm=(0, 2, 1)), x)
        return apply(g, MatMul(), turned, normal(SAMPLES, LENGTH, 1))

    def rows(g: Graph, x: Value) -> Value:
        return apply(g, MatMul(), windows(g, x, 0, 2, 3, 1), normal(SAMPLES, LENGTH, TAPS, 3))

    for each in (build, rows):
        before = make(each, (SAMPLES, LENGTH, HEADS * SIZE))
        after, _ = optimised(before, STATIC_PASSES)
        assert "ReduceSum" not in kinds(after)
        assert_same(before, after, SAMPLES, LENGTH, HEADS * SIZE)


def test_windows_of_as_many_samples_as_a_view_needs() -> None:
    """The number of samples has a name, and the shape of their products is known."""

    def build(g: Graph, x: Value) -> Value:
        each = apply(g, Reshape(), windows(g, x, 0, 2, 3, 1), np.array([LENGTH, SIZE, TAPS]))
        return apply(g, MatMul(), each, normal(LENGTH, TAPS, 1))

    before = make(build, ("samples", LENGTH, SIZE))
    after, _ = optimised(before, STATIC_PASSES)
    assert_same(before, after, 1, LENGTH, SIZE)
