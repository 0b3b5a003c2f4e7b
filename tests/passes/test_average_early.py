"""Pixels are averaged before a convolution of single ones, where that reads or computes less."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Mul, Relu, Sigmoid
from tercet.runtime.ops.pool import GlobalAveragePool
from tercet.runtime.ops.reduce import ReduceMean

from .graphs import apply, assert_same, batchnorm, kinds, make, normal, optimised, run

SHAPE, PLAIN = (2, 6, 5, 3), Conv()


def mean_of(g: Graph, x: Value, how: str) -> Value:
    if how == "pool":
        return apply(g, GlobalAveragePool(), x)
    return apply(g, ReduceMean(keepdims=int(how == "mean")), x, np.array([-1, -2]))


def unit(
    g: Graph,
    x: Value,
    *,
    filters: int = 24,
    how: str = "mean",
    gates: bool = True,
    op: Conv = PLAIN,
    window: tuple[int, ...] = (1, 1),
) -> Value:
    """Return the end of a residual unit: a convolution that its own mean gates, or that mean."""
    image = apply(g, Relu(), x)
    weights = normal(filters, 6 // op.group, *window)
    y = batchnorm(g, apply(g, op, image, weights, normal(filters)), filters)
    mean = mean_of(g, y, how)
    if not gates:
        return mean
    squeezed = apply(g, Relu(), apply(g, Conv(), mean, normal(4, filters, 1, 1), normal(4)))
    gate = apply(g, Conv(), squeezed, normal(filters, 4, 1, 1), normal(filters))
    gated = apply(g, Mul(), y, apply(g, Sigmoid(), gate))
    return apply(g, Relu(), apply(g, Add(), gated, gated))


@pytest.mark.parametrize("how", ["mean", "pool"])
@pytest.mark.parametrize("shape", [SHAPE, (None, 6, "height", "width")], ids=str)
def test_gates_are_computed_of_the_image(how: str, shape: tuple[Dim, ...]) -> None:
    """Their first layer takes over the convolution of the mean."""
    graph = make(lambda g, x: unit(g, x, how=how), shape)
    after, log = optimised(graph)
    assert log.counts["average_early"] == log.counts["merge_linear"] == 1
    (mean,) = [n for n in after.nodes if isinstance(n.op, ReduceMean | GlobalAveragePool)]
    before = mean.operands[0].producer
    assert before is not None
    assert isinstance(before.op, Relu)
    assert kinds(after).count("Conv") + kinds(after).count("Gemm") == 3
    assert_same(graph, after, *SHAPE)


@pytest.mark.parametrize("how", ["mean", "pool", "dropped axes"])
@pytest.mark.parametrize("op", [PLAIN, Conv(group=3)], ids=["one group", "groups"])
def test_what_is_only_averaged_is_convolved_as_one_pixel(how: str, op: Conv) -> None:
    graph = make(lambda g, x: unit(g, x, how=how, gates=False, filters=3, op=op), SHAPE)
    after, log = optimised(graph)
    assert log.counts["average_early"] == 1
    assert after.outputs["y"].type == graph.outputs["y"].type
    assert_same(graph, after)


@pytest.mark.parametrize(
    "more",
    [
        {"filters": 6},  # reads as many channels
        {"op": Conv(strides=(2, 2)), "gates": False},  # not of all pixels
        {"op": Conv(pads=(1, 1, 1, 1)), "gates": False},
        {"window": (3, 3), "op": Conv(pads=(1, 1, 1, 1)), "gates": False},
    ],
    ids=["channels", "strides", "pads", "windows"],
)
def test_other_convolutions_are_averaged_behind(more: dict[str, Any]) -> None:
    graph = make(lambda g, x: unit(g, x, **more), SHAPE)
    after, log = optimised(graph)
    assert "average_early" not in log.counts
    assert_same(graph, after)


def test_other_axes_are_averaged_behind() -> None:
    def rows(g: Graph, x: Value) -> Value:
        y = apply(g, Conv(), x, normal(8, 6, 1, 1))
        return apply(g, ReduceMean(), y, np.array([2]))

    graph = make(rows, SHAPE)
    after, log = optimised(graph)
    assert "average_early" not in log.counts
    assert_same(graph, after)


def test_infinite_weights_make_nan_of_pixels_that_are_zero() -> None:
    weights = normal(8, 6, 1, 1)
    weights[0] = np.inf
    graph = make(
        lambda g, x: mean_of(g, apply(g, Conv(), apply(g, Relu(), x), weights), "pool"), SHAPE
    )
    after, log = optimised(graph)
    assert "average_early" not in log.counts
    x = normal(*SHAPE)
    np.testing.assert_allclose(run(after, x, np.float32), run(graph, x, np.float64), rtol=1e-4)
