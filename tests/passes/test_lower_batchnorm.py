"""Batch normalizations behind activated layers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Gelu, Mul, Sigmoid
from tercet.runtime.ops.matmul import Gemm
from tercet.runtime.ops.pool import AveragePool, MaxPool
from tercet.runtime.ops.shape import Flatten

from .graphs import Build, apply, assert_same, batchnorm, kinds, make, normal, optimised

CHANNELS = 8
IMAGE = (2, CHANNELS, 9, 9)


def conv(g: Graph, x: Value, group: int = 1) -> Value:
    filters = normal(CHANNELS, CHANNELS // group, 3, 3)
    return apply(g, Conv(group=group, pads=(1, 1, 1, 1)), x, filters)


def between_depthwise(g: Graph, x: Value) -> Value:
    """Local patch interaction of XCiT: padding keeps the normalization out of the second layer."""
    y = batchnorm(g, apply(g, Gelu(), conv(g, x, CHANNELS)), CHANNELS)
    return conv(g, y, CHANNELS)


def before_a_sum(g: Graph, x: Value) -> Value:
    """A block of ConvMixer."""
    return apply(g, Add(), batchnorm(g, apply(g, Gelu(), conv(g, x, CHANNELS)), CHANNELS), x)


def of_rows(g: Graph, x: Value) -> Value:
    rows = apply(g, Gelu(), apply(g, Gemm(), x, normal(CHANNELS, CHANNELS)))
    return apply(g, Sigmoid(), batchnorm(g, rows, CHANNELS))


def of_sums(g: Graph, x: Value) -> Value:
    """Rows of edges and nodes (GatedGCN), which others read as well."""
    rows = apply(g, Add(), apply(g, Sigmoid(), x), x)
    return apply(g, Mul(), batchnorm(g, rows, CHANNELS), rows)


def before_a_flattened_sum(g: Graph, x: Value) -> Value:
    """A layer reads the sum's pixels, some pooled, in one row."""
    pooled = apply(g, AveragePool(kernel_shape=(3, 3), strides=(3, 3)), before_a_sum(g, x))
    return apply(g, Gemm(), apply(g, Flatten(), pooled), normal(9 * CHANNELS, 5))


def of_pooled(g: Graph, x: Value) -> Value:
    y = batchnorm(g, apply(g, MaxPool(kernel_shape=(3, 3)), x), CHANNELS)
    return apply(g, Sigmoid(), y)


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (of_pooled, IMAGE),
        *((between_depthwise, IMAGE), (before_a_sum, IMAGE), (before_a_flattened_sum, IMAGE)),
        *((of_rows, (3, CHANNELS)), (of_sums, (3, CHANNELS))),
    ],
)
def test_what_is_activated_is_scaled_and_shifted(build: Build, shape: tuple[int, ...]) -> None:
    graph = make(build, shape)
    after, log = optimised(graph)
    assert log.counts["lower_batchnorm"] == 1
    assert "BatchNormalization" not in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize("padding", [0, 1])
def test_layers_behind_a_sum_take_over_the_addends(padding: int) -> None:
    """What padding surrounds with zeros has to have its addends before."""

    def build(g: Graph, x: Value) -> Value:
        wide = before_a_sum(g, x)
        pointwise = apply(g, Conv(), wide, normal(CHANNELS, CHANNELS, 1, 1), normal(CHANNELS))
        window = 1 + 2 * padding
        filters = normal(CHANNELS, CHANNELS, window, window)
        other = apply(g, Conv(pads=(padding,) * 4), wide, filters)
        return apply(g, Mul(), apply(g, Gelu(), pointwise), other)

    graph = make(build, IMAGE)
    after, log = optimised(graph)
    assert log.counts["lower_batchnorm"] == 1
    assert kinds(after).count("Add") == 1 + (padding > 0)
    assert_same(graph, after)


def of_a_sum(g: Graph, x: Value) -> Value:
    return apply(
        g, Sigmoid(), batchnorm(g, apply(g, Add(), apply(g, Gelu(), x), conv(g, x)), CHANNELS)
    )


def read_twice(g: Graph, x: Value) -> Value:
    y = apply(g, Gelu(), conv(g, x))
    return apply(g, Add(), batchnorm(g, y, CHANNELS), y)


def behind_a_layer(g: Graph, x: Value) -> Value:
    return batchnorm(g, conv(g, x), CHANNELS)


@pytest.mark.parametrize("build", [of_a_sum, read_twice, behind_a_layer])
def test_others_have_a_kernel_of_their_own(build: Callable[[Graph, Value], Value]) -> None:
    graph = make(build, IMAGE)
    after, log = optimised(graph, skip=("fold_batchnorm",))
    assert "lower_batchnorm" not in log.counts
    assert "BatchNormalization" in kinds(after)
    assert_same(graph, after)
