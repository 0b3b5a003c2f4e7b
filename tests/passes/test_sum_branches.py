"""Sums over branches: split attention, selective kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Mul, Relu, Sigmoid, Tanh
from tercet.runtime.ops.movement import Concat
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.reduce import ReduceMean, ReduceSum
from tercet.runtime.ops.shape import Reshape, Unsqueeze

from .graphs import apply, assert_same, kinds, make, normal, optimised

BATCH, BRANCHES, CHANNELS, SIDE = 2, 2, 6, 4


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def conv(g: Graph, x: Value, channels: int) -> Value:
    return apply(g, Relu(), apply(g, Conv(), x, normal(channels, CHANNELS, 1, 1)))


def cut(g: Graph, x: Value) -> Value:
    """ResNeSt: channels of one image."""
    y = conv(g, x, BRANCHES * CHANNELS)
    return apply(g, Reshape(), y, ints(BATCH, BRANCHES, CHANNELS, SIDE, SIDE))


def stacked(g: Graph, x: Value) -> Value:
    """SKNet: images of several convolutions."""
    parts = [apply(g, Unsqueeze(), conv(g, x, CHANNELS), ints(1)) for _ in range(BRANCHES)]
    return apply(g, Concat(axis=1), *parts)


@pytest.mark.parametrize("branches", [cut, stacked])
def test_branches_are_added(branches: Callable[[Graph, Value], Value]) -> None:
    def build(g: Graph, x: Value) -> Value:
        y = branches(g, x)
        means = apply(g, ReduceMean(), apply(g, ReduceSum(keepdims=0), y, ints(1)), ints(2, 3))
        weights = apply(g, Conv(), means, normal(BRANCHES * CHANNELS, CHANNELS, 1, 1))
        weights = apply(g, Reshape(), weights, ints(BATCH, BRANCHES, CHANNELS, 1, 1))
        y = apply(g, Mul(), y, apply(g, Softmax(axis=1), weights))
        return apply(g, ReduceSum(keepdims=0), y, ints(1))

    graph = make(build, (BATCH, CHANNELS, SIDE, SIDE))
    after, log = optimised(graph)
    assert log.counts["sum_branches"] == 2
    assert "ReduceSum" not in kinds(after)
    assert "Concat" not in kinds(after)
    assert_same(graph, after, rel=5e-6)


@pytest.mark.parametrize("axis", [-1, 1])
def test_kernels_of_several_sizes_whose_mean_is_taken_become_one(axis: int) -> None:
    """Inception blocks of TimesNet."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Relu(), x)
        parts = [
            apply(g, Conv(pads=(i,) * 4), y, normal(3, CHANNELS, *(2 * i + 1,) * 2), normal(3))
            for i in range(3)
        ]
        parts = [apply(g, Unsqueeze(), part, ints(axis)) for part in parts]
        return apply(g, ReduceMean(keepdims=0), apply(g, Concat(axis=axis), *parts), ints(axis))

    graph = make(build, (BATCH, CHANNELS, SIDE, SIDE))
    after, log = optimised(graph)
    assert log.counts["sum_branches"] == 1
    assert kinds(after) == ["Relu", "Conv"]
    assert_same(graph, after, rel=5e-6)


def test_the_sum_of_a_stack_is_computed_without_the_stack() -> None:
    def build(g: Graph, x: Value) -> Value:
        parts = [apply(g, op, x) for op in (Relu(), Sigmoid(), Tanh())]
        parts = [apply(g, Unsqueeze(), part, ints(1)) for part in parts]
        return apply(g, ReduceSum(keepdims=0), apply(g, Concat(axis=1), *parts), ints(-2))

    graph = make(build, (BATCH, CHANNELS))
    after, _ = optimised(graph)
    assert sorted(kinds(after)) == ["Add", "Add", "Relu", "Sigmoid", "Tanh"]
    assert_same(graph, after, rel=5e-6)


def test_a_weighted_sum_of_rows_stays_one() -> None:
    """Weights of rows would be cut, and each cut copied."""

    def build(g: Graph, x: Value) -> Value:
        w = apply(g, Softmax(axis=1), apply(g, Reshape(), x, ints(BATCH, 2, -1)))
        parts = [apply(g, op, x) for op in (Relu(), Sigmoid())]
        y = apply(g, Concat(axis=1), *(apply(g, Unsqueeze(), part, ints(1)) for part in parts))
        return apply(g, ReduceSum(keepdims=0), apply(g, Mul(), y, w), ints(1))

    _, log = optimised(make(build, (BATCH, 2)))
    assert "sum_branches" not in log.counts


OTHERS = {
    "many": ((1, 8, 3, 4, 4), 1),
    "another axis": ((1, 2, 2, 4, 4), 2),
    "no image": ((2, 2, 3, 4, 4), 1),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_sums_stay(name: str) -> None:
    shape, axis = OTHERS[name]

    def build(g: Graph, x: Value) -> Value:
        return apply(g, ReduceSum(keepdims=0), apply(g, Relu(), x), ints(axis))

    after, log = optimised(make(build, shape))
    assert "sum_branches" not in log.counts
    assert kinds(after) == ["Relu", "ReduceSum"]
