"""Windows of an image are averaged behind a convolution that reduces its channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.ops.movement import Concat
from tercet.runtime.ops.pool import AveragePool

from .graphs import apply, assert_same, batchnorm, kinds, make, normal, optimised, run

SHAPE = (2, 12, 5, 4)
AROUND = AveragePool(kernel_shape=(3, 3), pads=(1, 1, 1, 1))
COUNTED = AveragePool(kernel_shape=(3, 3), pads=(1, 1, 1, 1), count_include_pad=1)


def branch(g: Graph, x: Value, *, pool: AveragePool = AROUND, filters: int = 8) -> Value:
    """Return the branch of an Inception module that averages."""
    means = apply(g, pool, apply(g, Relu(), x))
    y = apply(g, Conv(), means, normal(filters, 12, 1, 1))
    return apply(g, Relu(), batchnorm(g, y, filters))


@pytest.mark.parametrize(
    "pool",
    [
        AROUND,
        COUNTED,
        AveragePool(kernel_shape=(3, 3), auto_pad="SAME_UPPER", strides=(1, 1)),
        AveragePool(kernel_shape=(3, 2), auto_pad="SAME_LOWER", count_include_pad=1),
        AveragePool(kernel_shape=(3, 2), pads=(0, 0, 4, 2), dilations=(2, 2)),
    ],
    ids=["around", "counted", "upper", "lower", "dilated"],
)
@pytest.mark.parametrize("shape", [SHAPE, (None, 12, "height", "width")], ids=str)
def test_fewer_channels_are_averaged(pool: AveragePool, shape: tuple[Dim, ...]) -> None:
    graph = make(lambda g, x: branch(g, x, pool=pool), shape)
    after, log = optimised(graph)
    assert log.counts["average_late"] == 1
    assert [kind for kind in kinds(after) if kind in ("Conv", "AveragePool")] == [
        "Conv",
        "AveragePool",
    ]
    (mean,) = [node for node in after.nodes if isinstance(node.op, AveragePool)]
    assert mean.op == pool
    assert_same(graph, after, *SHAPE)


@pytest.mark.parametrize(
    "more",
    [
        {"filters": 12},
        {"pool": AveragePool(kernel_shape=(2, 2), strides=(2, 2))},
        {"pool": AveragePool(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))},
        {"pool": AveragePool(kernel_shape=(5, 4))},
        {"pool": AveragePool(kernel_shape=(3, 3), auto_pad="VALID")},
        {"pool": AveragePool(kernel_shape=(3, 3), auto_pad="VALID", pads=(1, 1, 1, 1))},
    ],
    ids=["channels", "steps", "steps and pads", "whole image", "inside", "pads without effect"],
)
def test_others_are_averaged_in_front(more: dict[str, Any]) -> None:
    graph = make(lambda g, x: branch(g, x, **more), SHAPE)
    after, log = optimised(graph)
    assert "average_late" not in log.counts
    assert_same(graph, after)


def test_means_that_something_else_reads_stay() -> None:
    def forked(g: Graph, x: Value) -> Value:
        means = apply(g, AROUND, x)
        y = apply(g, Conv(), means, normal(8, 12, 1, 1))
        return apply(g, Concat(axis=1), y, means)

    graph = make(forked, SHAPE)
    after, log = optimised(graph)
    assert "average_late" not in log.counts
    assert_same(graph, after)


def test_infinite_weights_make_nan_of_pixels_that_are_zero() -> None:
    weights = normal(8, 12, 1, 1)
    weights[0] = np.inf
    graph = make(
        lambda g, x: apply(g, Conv(), apply(g, AROUND, apply(g, Relu(), x)), weights), SHAPE
    )
    after, log = optimised(graph)
    assert "average_late" not in log.counts
    x = normal(*SHAPE)
    np.testing.assert_allclose(run(after, x, np.float32), run(graph, x, np.float64), rtol=1e-4)
