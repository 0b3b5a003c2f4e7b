"""Sums of heads times constants, as columns of a layer."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Mul
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.reduce import ReduceSum
from tercet.runtime.ops.shape import Reshape

from .graphs import Build, apply, assert_same, kinds, make, normal, optimised

ROWS, WIDTH, HEADS, SIZE = 5, 6, 3, 4


def summed(g: Graph, rows: Value, factor: np.ndarray, *, behind: Value | None = None) -> Value:
    heads = apply(g, Reshape(), rows, np.array([-1, HEADS, SIZE]))
    y = apply(g, ReduceSum(keepdims=0), apply(g, Mul(), heads, factor), np.array([-1]))
    return y if behind is None else apply(g, Add(), y, apply(g, ReduceSum(keepdims=0), heads, LAST))


LAST = np.array([2])


def gemm(g: Graph, x: Value) -> Value:
    """As PyTorch writes it: also what others read of the heads."""
    width = HEADS * SIZE
    rows = apply(g, Gemm(transB=1), x, normal(width, WIDTH), normal(width))
    return summed(g, rows, normal(1, HEADS, SIZE), behind=rows)


def matmul(g: Graph, x: Value) -> Value:
    """Without a bias, and one factor for each place of a head."""
    return summed(g, apply(g, MatMul(), x, normal(WIDTH, HEADS * SIZE)), normal(SIZE))


@pytest.mark.parametrize("build", [gemm, matmul])
@pytest.mark.parametrize("rows", [ROWS, "rows"])
def test_they_are_columns_of_a_layer(build: Build, rows: int | str) -> None:
    graph = make(build, (rows, WIDTH))
    after, log = optimised(graph)
    assert log.counts["sum_heads"] == 1
    assert "Mul" not in kinds(after)
    assert_same(graph, after, ROWS, WIDTH)


def of_long_rows(g: Graph, x: Value) -> Value:
    """Which take longer to read than what the layer makes of them."""
    return summed(g, apply(g, MatMul(), x, normal(5 * HEADS * SIZE, HEADS * SIZE)), normal(SIZE))


def of_other_places(g: Graph, x: Value) -> Value:
    """Sums over heads instead."""
    rows = apply(g, MatMul(), x, normal(WIDTH, HEADS * SIZE))
    heads = apply(g, Reshape(), rows, np.array([-1, HEADS, SIZE]))
    y = apply(g, Mul(), heads, normal(HEADS, SIZE))
    return apply(g, ReduceSum(keepdims=0), y, np.array([1]))


def with_more_axes(g: Graph, x: Value) -> Value:
    """By a constant that adds an axis to what it multiplies."""
    return summed(g, apply(g, MatMul(), x, normal(WIDTH, HEADS * SIZE)), normal(1, 1, HEADS, SIZE))


OTHERS = [(of_long_rows, 60), (of_other_places, WIDTH), (with_more_axes, WIDTH)]


@pytest.mark.parametrize(("build", "width"), OTHERS)
def test_others_stay(build: Build, width: int) -> None:
    graph = make(build, (ROWS, width))
    after, log = optimised(graph)
    assert "sum_heads" not in log.counts
    assert_same(graph, after)


def test_rows_of_samples_that_become_rows_of_all_stay() -> None:
    graph = make(matmul, (2, ROWS, WIDTH))
    after, log = optimised(graph)
    assert "sum_heads" not in log.counts
    assert_same(graph, after)
