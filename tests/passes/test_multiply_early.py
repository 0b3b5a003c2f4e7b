"""Parts of a layer's input are multiplied before they are repeated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Mul, Neg, Relu, Sub
from tercet.runtime.ops.gather import Gather, ScatterND
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.movement import Concat, Expand, Slice, Transpose
from tercet.runtime.ops.norm import BatchNormalization
from tercet.runtime.ops.reduce import ReduceMax, ReduceSum
from tercet.runtime.ops.shape import Reshape, Shape, Unsqueeze

from .graphs import apply, assert_same, kinds, make, normal, optimised, run

Build = Callable[[Graph, Value], Value]
N, D = 5, 8


def expanded(graph: Graph, x: Value, axis: int) -> Value:
    """Return x [2, N, D] as [2, N, N, D], repeated along an axis."""
    shaped = apply(graph, Unsqueeze(), x, np.array([axis]))
    return apply(graph, Expand(), shaped, np.array([2, N, N, D]))


def layer(
    graph: Graph, rows: int, *parts: Value | np.ndarray, width: int = 6, biased: bool = True
) -> Value:
    joined = apply(graph, Concat(axis=-1), *parts)
    y = apply(graph, MatMul(), joined, normal(rows, width))
    return apply(graph, Relu(), apply(graph, Add(), y, normal(width)) if biased else y)


def pairs(graph: Graph, x: Value) -> Value:
    return layer(graph, 2 * D, expanded(graph, x, 2), expanded(graph, x, 1))


def pairs_and_products(graph: Graph, x: Value) -> Value:
    a, b = (apply(graph, Unsqueeze(), x, np.array([axis])) for axis in (2, 1))
    both = apply(graph, Mul(), a, b)
    return layer(graph, 3 * D, expanded(graph, x, 2), both, expanded(graph, x, 1), biased=False)


def time(graph: Graph, x: Value) -> Value:
    return layer(graph, D + 1, x, np.full((2, N, 1), 0.25, np.float32))


def time_of_a_gemm(graph: Graph, x: Value) -> Value:
    joined = apply(graph, Concat(axis=1), x, np.full((7, 1), 0.25, np.float32))
    return apply(graph, Gemm(transB=1), joined, normal(6, D + 1), normal(6))


def one_of_each(graph: Graph, x: Value) -> Value:
    """Rows that are repeated along one axis, beside a constant."""
    return layer(graph, D + 1, expanded(graph, x, 2), np.ones((2, N, N, 1), np.float32))


def test_what_nothing_else_repeats() -> None:
    graph = make(one_of_each, (2, N, D))
    after, log = optimised(graph)
    assert log.counts["multiply_early"] == 1
    assert "Concat" not in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize(
    ("build", "shape", "products"),
    [
        (pairs, (2, N, D), 1),
        (pairs_and_products, (2, N, D), 2),
        (time, (2, N, D), 1),
        (time_of_a_gemm, (7, D), 1),
    ],
)
def test_nothing_is_repeated(build: Build, shape: tuple[int, ...], products: int) -> None:
    graph = make(build, shape)
    after, log = optimised(graph)
    assert log.counts["multiply_early"] == 1
    assert not {"Expand", "Concat"} & set(kinds(after))
    assert sum(kind in ("MatMul", "Gemm") for kind in kinds(after)) == products
    assert_same(graph, after)


EDGES = np.random.default_rng(2).integers(0, N, (2, 4 * N))


def edges(graph: Graph, x: Value) -> Value:
    """The two ends of each edge, and their distance."""
    ends = [apply(graph, Gather(), x, places) for places in EDGES]
    apart = apply(graph, Mul(), *ends)
    return layer(graph, 2 * D + 1, *ends, apply(graph, ReduceSum(), apart, np.array([-1])))


def one_end(graph: Graph, x: Value) -> Value:
    """Beside what the edges have."""
    return layer(graph, 2 * D, apply(graph, Gather(), x, EDGES[0]), normal(4 * N, D))


@pytest.mark.parametrize("build", [edges, one_end])
def test_rows_that_edges_choose(build: Build) -> None:
    graph = make(build, (N, D))
    after, log = optimised(graph)
    assert log.counts["multiply_early"] == 1
    assert "Concat" not in kinds(after)
    assert_same(graph, after)


def test_what_nodes_have_beside_their_edges() -> None:
    """As a block of a graph network: both ends of edges, and then nodes with sums of these."""

    def build(graph: Graph, x: Value) -> Value:
        rows = apply(graph, Relu(), edges(graph, x))
        zeros = np.zeros((N, 6), np.float32)
        summed = apply(graph, ScatterND(reduction="add"), zeros, EDGES[0][:, None], rows)
        return layer(graph, D + 6, x, summed)

    graph = make(build, (N, D))
    after, log = optimised(graph)
    assert log.counts["multiply_early"] == 2
    assert log.counts["merge_products"] == 1
    assert "Concat" not in kinds(after)
    assert kinds(after).count("MatMul") == 2
    assert_same(graph, after)


K = 4
NEIGHBOURS = np.random.default_rng(3).integers(0, N, (2, N, K)) + np.array([0, N])[:, None, None]


def neighbours(graph: Graph, x: Value) -> tuple[Value, Value]:
    """Return the rows of x [2, N, D] at neighbours, and x itself for each, both [2, N, K, D]."""
    flat = apply(graph, Reshape(), x, np.array([2 * N, D]))
    near = apply(graph, Gather(), flat, NEIGHBOURS.reshape(-1))
    near = apply(graph, Reshape(), near, np.array([2, N, K, D]))
    own = apply(graph, Reshape(), x, np.array([2, N, 1, D]))
    return near, apply(graph, Expand(), own, np.array([2, N, K, D]))


def edge_rows(graph: Graph, x: Value) -> Value:
    """An EdgeConv of rows: each node, and the differences of its neighbours to it."""
    near, own = neighbours(graph, x)
    return layer(graph, 2 * D, own, apply(graph, Sub(), near, own))


def edge_image(graph: Graph, x: Value, norm: bool = False) -> Value:
    """The same as DGCNN has it: differences first, and a convolution of single pixels."""
    near, own = neighbours(graph, x)
    joined = apply(graph, Concat(axis=3), apply(graph, Sub(), near, own), own)
    image = apply(graph, Transpose(perm=(0, 3, 1, 2)), joined)
    y = apply(graph, Conv(), image, normal(6, 2 * D, 1, 1), normal(6))
    if norm:
        y = apply(graph, BatchNormalization(), y, *normal(3, 6), normal(6) ** 2)
    return apply(graph, ReduceMax(keepdims=0), apply(graph, Relu(), y), np.array([3]))


def edge_image_and_norm(graph: Graph, x: Value) -> Value:
    return edge_image(graph, x, norm=True)


def edge_reversed(graph: Graph, x: Value) -> Value:
    """Differences of each node to its neighbours."""
    near, own = neighbours(graph, x)
    return layer(graph, 2 * D, apply(graph, Sub(), own, near), own)


@pytest.mark.parametrize("build", [edge_rows, edge_image, edge_image_and_norm, edge_reversed])
def test_differences_to_what_is_joined(build: Build) -> None:
    graph = make(build, (2, N, D))
    after, log = optimised(graph)
    assert log.counts["multiply_early"] == 1
    assert not {"Concat", "Sub", "Conv", "Expand"} & set(kinds(after))
    assert kinds(after).count("MatMul") == 1
    assert_same(graph, after)


def test_weights_that_are_no_numbers_of_their_type_stay() -> None:
    """The sum of two weights of a term would be infinite."""

    def build(graph: Graph, x: Value) -> Value:
        near, own = neighbours(graph, x)
        joined = apply(graph, Concat(axis=-1), own, apply(graph, Sub(), near, own))
        weights = np.repeat(np.array([3e38, -3e38], np.float32), D)[:, None] * np.ones(
            6, np.float32
        )
        return apply(graph, MatMul(), joined, weights)

    _, log = optimised(make(build, (2, N, D)))
    assert "multiply_early" not in log.counts
    assert "multiply_early" in {each.name for each in log.refused}


def differences_alone(graph: Graph, x: Value) -> Value:
    """Differences have digits that sums of products would lose."""
    near, own = neighbours(graph, x)
    return layer(graph, 2 * D, apply(graph, Sub(), near, own), apply(graph, Mul(), near, own))


def differences_to_a_column(graph: Graph, x: Value) -> Value:
    """A difference has more columns than what it is a difference to."""
    near, _ = neighbours(graph, x)
    first = apply(graph, Slice(), x, np.array([0]), np.array([1]), np.array([2]))
    first = apply(graph, Unsqueeze(), first, np.array([2]))
    own = apply(graph, Expand(), first, np.array([2, N, K, 1]))
    return layer(graph, D + 1, own, apply(graph, Sub(), near, own))


@pytest.mark.parametrize("build", [differences_alone, differences_to_a_column])
def test_differences_to_what_is_not_joined_stay(build: Build) -> None:
    graph = make(build, (2, N, D))
    after, _ = optimised(graph)
    assert "Sub" in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize(("scale", "early"), [(1.0, True), (1e-4, False)])
def test_differences_of_large_numbers(scale: float, early: bool) -> None:
    """Where columns count for little, results have the digits that differences have."""

    def build(graph: Graph, x: Value) -> Value:
        near, own = neighbours(graph, apply(graph, Add(), x, np.full(1, 1024, np.float32)))
        joined = apply(graph, Concat(axis=-1), own, apply(graph, Sub(), near, own))
        weights = normal(2 * D, 6)
        weights[:D] *= scale
        return apply(graph, MatMul(), joined, weights)

    graph = make(build, (2, N, D))
    after, _ = optimised(graph)
    assert ("Sub" in kinds(after)) != early
    x = np.round(normal(2, N, D) * 64) / 64  # exact beside 1024
    exact, got = run(graph, x, np.float64), run(after, x, np.float32)
    assert np.linalg.norm(got - exact) <= 2e-6 * np.linalg.norm(exact)


def as_many_edges(graph: Graph, x: Value) -> Value:
    ends = [apply(graph, Gather(), x, places[:N]) for places in EDGES]
    return layer(graph, 2 * D, *ends)


def test_rows_that_few_edges_choose() -> None:
    graph = make(as_many_edges, (N, D))
    after, log = optimised(graph)
    assert "multiply_early" not in log.counts
    assert_same(graph, after)


def of_samples(graph: Graph, x: Value) -> Value:
    """What each sample says to all its rows: [batch, 1, D] beside [batch, N, D]."""
    sizes = apply(graph, Shape(), x)
    first = apply(graph, Gather(axis=1), x, np.array([0]))
    return layer(graph, 2 * D, apply(graph, Expand(), first, sizes), x)


def of_samples_in_rows(graph: Graph, x: Value) -> Value:
    """The same in rows of all samples: a view follows what is repeated."""
    first = apply(graph, Gather(axis=1), x, np.array([0]))
    repeated = apply(graph, Expand(), first, np.array([1, N, D]))
    rows = [apply(graph, Reshape(), part, np.array([-1, D])) for part in (repeated, x)]
    return layer(graph, 2 * D, *rows)


def pairs_of_a_batch(graph: Graph, x: Value) -> Value:
    def repeated(axis: int) -> Value:
        shaped = apply(graph, Unsqueeze(), x, np.array([axis]))
        return apply(graph, Expand(), shaped, np.array([1, N, N, 1]))

    return layer(graph, 2 * D, repeated(2), repeated(1))


@pytest.mark.parametrize("build", [of_samples, of_samples_in_rows, pairs_of_a_batch])
def test_any_number_of_samples(build: Build) -> None:
    graph = make(build, ("batch", N, D))
    after, log = optimised(graph)
    assert log.counts["multiply_early"] == 1
    assert "Concat" not in kinds(after)
    for samples in (1, 3):
        assert_same(graph, after, samples, N, D)


def of_rows_alone(graph: Graph, x: Value) -> Value:
    """A symbol says how often all parts are repeated: their sum would be too short."""
    sizes = apply(graph, Shape(), x)
    first = apply(graph, Gather(axis=1), x, np.array([0]))
    parts = (apply(graph, Expand(), apply(graph, op(), first), sizes) for op in (Neg, Relu))
    return layer(graph, 2 * D, *parts)


def test_rows_that_nothing_else_has() -> None:
    graph = make(of_rows_alone, (2, "time", D))
    after, log = optimised(graph)
    assert "multiply_early" not in log.counts
    assert_same(graph, after, 2, 4, D)


def long_results(graph: Graph, x: Value) -> Value:
    return layer(graph, 2 * D, expanded(graph, x, 2), expanded(graph, x, 1), width=40)


def rows_that_differ(graph: Graph, x: Value) -> Value:
    return layer(graph, D + 1, x, normal(2, N, 1))


def one_sample(graph: Graph, x: Value) -> Value:
    return layer(graph, D + 1, x, np.ones((1, N, 1), np.float32))


def test_one_sample_beside_any_number() -> None:
    graph = make(one_sample, ("batch", N, D))
    after, log = optimised(graph)
    assert "multiply_early" not in log.counts
    assert_same(graph, after, 1, N, D)


@pytest.mark.parametrize("build", [long_results, rows_that_differ])
def test_what_stays(build: Build) -> None:
    graph = make(build, (2, N, D))
    after, log = optimised(graph)
    assert "multiply_early" not in log.counts
    assert_same(graph, after)


def test_constants_alone_are_for_others() -> None:
    def build(graph: Graph, x: Value) -> Value:
        y = layer(graph, 5, np.ones((2, N, 3), np.float32), np.ones((2, N, 2), np.float32))
        return apply(graph, Add(), x, y)

    graph = make(build, (2, N, 6))
    after, log = optimised(graph, skip=("fold_constants",))
    assert "multiply_early" not in log.counts
    assert_same(graph, after)
