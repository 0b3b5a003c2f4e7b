"""BatchNormalizations in front of layers become part of their weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import float16
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Cast, Relu
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.norm import BatchNormalization, Softmax
from tercet.runtime.ops.pool import AveragePool, GlobalAveragePool
from tercet.runtime.ops.reduce import ReduceMean
from tercet.runtime.ops.shape import Flatten, Reshape

from .graphs import Build, apply, assert_same, batchnorm, kinds, make, normal, optimised

#: Passes that would change the same nodes.
OTHERS = ("merge_linear", "merge_branches", "lower_conv")


def conv(*shape: int, **attributes: Any) -> Build:
    return lambda g, x: apply(g, Conv(**attributes), x, normal(*shape), normal(shape[0]))


def pooled(then: Build, **attributes: Any) -> Build:
    return lambda g, x: then(g, apply(g, AveragePool(**attributes), x))


#: What reads a normalization of eight channels.
READERS: dict[str, Build] = {
    "1 x 1": conv(6, 8, 1, 1),
    "strides": conv(6, 8, 1, 1, strides=(2, 2)),
    "a window": conv(6, 8, 3, 2),
    "groups": conv(6, 4, 1, 1, group=2),
    "depthwise": conv(16, 1, 2, 2, group=8),
    "pooled": pooled(conv(6, 8, 1, 1), kernel_shape=(2, 2), strides=(2, 2)),
    "pooled at the edge": pooled(conv(6, 8, 1, 1), kernel_shape=(3, 3), pads=(1,) * 4),
    "two": lambda g, x: apply(g, Add(), conv(6, 8, 1, 1)(g, x), conv(6, 8, 1, 1)(g, x)),
}


def rows(g: Graph, x: Value) -> Value:
    """Rows of pixels."""
    pixels = apply(g, Reshape(), x, np.array((0, 0, -1), np.int64))
    return apply(g, Transpose(perm=(0, 2, 1)), pixels)


def queries_and_keys(g: Graph, x: Value) -> Value:
    """As in NextViT: queries of pixels, keys of normalized averages of 5 pixels."""
    pixels = apply(g, Reshape(), x, np.array((0, 0, -1), np.int64))
    some = apply(g, AveragePool(kernel_shape=(5,), strides=(5,)), pixels)
    some = apply(g, Transpose(perm=(0, 2, 1)), batchnorm(g, some, 8))
    keys = apply(g, Softmax(axis=1), apply(g, MatMul(), some, normal(8, 4)))
    queries = apply(g, Add(), apply(g, MatMul(), rows(g, x), normal(8, 4)), normal(4))
    return apply(g, MatMul(), queries, apply(g, Transpose(perm=(0, 2, 1)), keys))


#: What reads it behind averages and views.
FAR_READERS: dict[str, Build] = {
    "rows": lambda g, x: apply(g, MatMul(), rows(g, x), normal(8, 5)),
    "queries and keys": queries_and_keys,
    "averaged": lambda g, x: apply(
        g, Gemm(transB=1), apply(g, Flatten(), apply(g, GlobalAveragePool(), x)), normal(5, 8)
    ),
    "a mean": lambda g, x: apply(
        g, Gemm(), apply(g, ReduceMean(keepdims=0), x, np.array((2, 3), np.int64)), normal(8, 5)
    ),
    "flattened": lambda g, x: apply(g, Gemm(), apply(g, Flatten(), x), normal(240, 5)),
}
#: What reads it and cannot take it over.
OTHER_READERS: dict[str, Build] = {
    "padded": conv(6, 8, 3, 3, pads=(1,) * 4),
    "padding by name": conv(6, 8, 3, 3, auto_pad="SAME_UPPER"),
    "an activation": lambda g, x: conv(6, 8, 1, 1)(g, apply(g, Relu(), x)),
    "a residual": lambda g, x: apply(g, Add(), conv(8, 8, 1, 1)(g, x), x),
    "padding that counts": pooled(
        conv(6, 8, 1, 1), kernel_shape=(3, 3), pads=(1,) * 4, count_include_pad=1
    ),
    "a mean of channels": lambda g, x: apply(
        g,
        Gemm(),
        apply(g, ReduceMean(keepdims=0), x, np.array((1, 2), np.int64)),
        normal(6, 5),
    ),
    "rows of another size": lambda g, x: apply(
        g, MatMul(), apply(g, Reshape(), x, np.array((0, 6, 5, 8), np.int64)), normal(8, 5)
    ),
    "rows that are normalized": lambda g, x: apply(
        g, MatMul(), apply(g, Softmax(), rows(g, x)), normal(8, 5)
    ),
}


def behind(reader: Build) -> Graph:
    """Return what reads a normalization of a sum, which is no layer."""

    def build(graph: Graph, x: Value) -> Value:
        return reader(graph, batchnorm(graph, apply(graph, Relu(), x), 8))

    return make(build, (2, 8, 5, 6))


@pytest.mark.parametrize("name", READERS)
def test_layers_take_it_over(name: str) -> None:
    graph = behind(READERS[name])
    after, log = optimised(graph, skip=OTHERS)
    assert log.counts["fold_prenorm"] == 1
    assert "BatchNormalization" not in kinds(after)
    assert len(after.nodes) == len(graph.nodes) - 1
    assert_same(graph, after, 2, 8, 5, 6)


@pytest.mark.parametrize("name", FAR_READERS)
def test_layers_behind_averages_and_views_take_it_over(name: str) -> None:
    graph = behind(FAR_READERS[name])
    after, log = optimised(graph, skip=OTHERS)
    assert log.counts["fold_prenorm"] == kinds(graph).count("BatchNormalization")
    assert "BatchNormalization" not in kinds(after)
    assert "Mul" not in kinds(after)
    assert_same(graph, after, 2, 8, 5, 6)


@pytest.mark.parametrize("name", OTHER_READERS)
def test_others_do_not(name: str) -> None:
    graph = behind(OTHER_READERS[name])
    after, log = optimised(graph, skip=OTHERS)
    assert "fold_prenorm" not in log.counts
    assert "BatchNormalization" in kinds(after)
    assert_same(graph, after, 2, 8, 5, 6)


@pytest.mark.parametrize("transposed", [0, 1])
def test_a_gemm_takes_it_over(transposed: int) -> None:
    weight = normal(5, 8) if transposed else normal(8, 5)

    def build(graph: Graph, x: Value) -> Value:
        rows = batchnorm(graph, apply(graph, Relu(), x), 8)
        op = Gemm(alpha=0.7, beta=0.3, transB=transposed)
        return apply(graph, op, rows, weight, normal(5))

    graph = make(build, (3, 8))
    after, log = optimised(graph)
    assert log.counts["fold_prenorm"] == 1
    assert "BatchNormalization" not in kinds(after)
    assert_same(graph, after, 3, 8)


def test_weights_beyond_float16_stay_as_they_are() -> None:
    """A factor of 1e-7 and weights of 1e3 are fine apart."""

    def build(graph: Graph, x: Value) -> Value:
        one, zero = np.ones(8, np.float32), np.zeros(8, np.float32)
        scale = np.full(8, 1e-7, np.float32)
        norm = apply(graph, BatchNormalization(), apply(graph, Relu(), x), scale, zero, zero, one)
        return apply(graph, Conv(), norm, normal(6, 8, 1, 1))

    graph = make(build, (2, 8, 5, 6))
    assert "fold_prenorm" not in optimised(graph, precision="float16")[1].counts
    assert optimised(graph)[1].counts["fold_prenorm"] == 1


def of_rows(g: Graph, x: Value) -> Value:
    """As in PatchTST: tokens are normalized transposed, and a layer multiplies them."""
    image = batchnorm(g, apply(g, Transpose(perm=(0, 2, 1)), apply(g, Relu(), x)), 8)
    return apply(g, MatMul(), apply(g, Transpose(perm=(0, 2, 1)), image), normal(8, 6))


def test_norms_of_rows_become_part_of_products() -> None:
    graph = make(of_rows, (2, 5, 8))
    after, log = optimised(graph)
    assert log.counts["fold_prenorm"] == 1
    assert kinds(after) == ["Relu", "MatMul", "Add"]
    assert_same(graph, after)


@pytest.mark.parametrize("var", [-1.0, 0.0, np.inf])
def test_norms_that_give_no_numbers_stay(var: float) -> None:
    """As of weights that were never trained, or are damaged."""
    one = np.ones(8, np.float32)

    def build(g: Graph, x: Value) -> Value:
        norm = BatchNormalization(epsilon=0.0)
        image = apply(g, norm, apply(g, Relu(), x), one, one, one, one * var)
        return apply(g, Conv(), image, normal(6, 8, 1, 1))

    log = optimised(make(build, (2, 8, 5, 6)))[1]
    assert ("fold_prenorm" in log.counts) == (var > 0)


@pytest.mark.parametrize("order", [(0, 2, 1), (0, 1)], ids=["transposed", "computed"])
def test_rows_that_overflow_before_they_are_shifted_stay(order: tuple[int, ...]) -> None:
    """In float16: 40 * 3000 does, but 40 * 3000 - 65000 does not."""
    one = np.ones(8, np.float16)

    def build(g: Graph, x: Value) -> Value:
        rows = apply(g, Cast(to=float16), apply(g, Relu(), x))
        norm = BatchNormalization(epsilon=0.0)
        image = apply(g, Transpose(perm=order), rows)
        y = apply(g, norm, image, one * 3000, one * -5000, one * 20, one)
        return apply(g, Transpose(perm=order), y)

    graph = make(build, (2, 5, 8)[-len(order) :])
    assert "BatchNormalization" in kinds(optimised(graph)[0])


def test_what_is_transposed_otherwise_stays() -> None:
    def others(g: Graph, x: Value) -> Value:
        image = batchnorm(g, apply(g, Transpose(perm=(0, 2, 1)), x), 8)
        return apply(g, Transpose(perm=(1, 0, 2)), image)

    graph = make(others, (2, 5, 8))
    after, log = optimised(graph)
    assert "fold_prenorm" not in log.counts
    assert_same(graph, after)


def test_rows_of_no_images_stay() -> None:
    """Each of them may have any number of columns, which are no channels."""

    def build(g: Graph, x: Value) -> Value:
        image = batchnorm(g, apply(g, Relu(), x), 8)
        rows = apply(g, Reshape(allowzero=1), image, np.array((0, 77), np.int64))
        return apply(g, MatMul(), rows, normal(77, 6))

    graph = make(build, (0, 8, 2, 1))
    after, log = optimised(graph)
    assert "fold_prenorm" not in log.counts
    assert_same(graph, after, 0, 8, 2, 1)
