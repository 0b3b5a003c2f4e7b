"""Pixels that are moved before layers of 1x1 and a reduction."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Mul, Relu
from tercet.runtime.ops.matmul import Gemm
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.reduce import Reduce, ReduceMax, ReduceMean
from tercet.runtime.ops.shape import Flatten, Reshape

from .graphs import apply, assert_same, batchnorm, make, normal, optimised

Axes = tuple[int, ...]
CHANNELS = 7


def layers(g: Graph, x: Value, order: Axes, op: Reduce, axes: Axes, size: int = 1) -> Value:
    rank = len(order)
    y = apply(g, Transpose(perm=order), x)
    for channels, more in ((CHANNELS, 6), (6, 4)):
        w = normal(more, channels, *(size,) * (rank - 2))
        y = apply(g, Conv(), y, w) if channels == 6 else apply(g, Conv(), y, w, normal(more))
        y = apply(g, Relu(), batchnorm(g, y, more) if more == 6 else y)
    y = apply(g, Mul(), y, normal(4, *(1,) * (rank - 2)))
    return apply(g, op, y, np.array(axes))


def twice(g: Graph, x: Value) -> Value:
    """The order is that of two transposes."""
    y = apply(g, Transpose(perm=(0, 2, 1, 3)), x)
    return layers(g, y, (0, 3, 1, 2), ReduceMax(keepdims=0), (2,))


def orders(graph: Graph) -> list[Axes]:
    return [node.op.perm for node in graph.nodes if isinstance(node.op, Transpose) and node.op.perm]


@pytest.mark.parametrize("op", [ReduceMax(keepdims=0), ReduceMean(keepdims=1)])
@pytest.mark.parametrize(
    ("order", "axes"),
    [
        ((0, 3, 2, 1), (2,)),
        ((0, 3, 2, 1), (-1,)),
        ((0, 3, 2, 1), (2, 3)),
        ((0, 4, 3, 1, 2), (2,)),
        ((0, 4, 3, 2, 1), (2, 4)),
    ],
)
def test_pixels_stay(order: Axes, axes: Axes, op: Reduce) -> None:
    shape = (2, 5, 3, 4, CHANNELS)[5 - len(order) :]
    before = make(lambda g, x: layers(g, x, order, op, axes), shape)
    after, _ = optimised(before)
    (moved, *_) = orders(after)
    assert moved == (0, len(order) - 1, *range(1, len(order) - 1))
    assert_same(before, after, *shape)


@pytest.mark.parametrize(
    ("order", "axes", "size"),
    [
        ((0, 3, 2, 1), (1,), 1),  # channels are reduced
        ((0, 3, 2, 1), (2,), 2),  # pixels are neighbours
        ((0, 4, 3, 2, 1), (2,), 1),  # two axes would have to be swapped afterwards
    ],
)
def test_pixels_are_moved(order: Axes, axes: Axes, size: int) -> None:
    shape = (2, 5, 3, 4, CHANNELS)[5 - len(order) :]
    before = make(lambda g, x: layers(g, x, order, ReduceMax(keepdims=0), axes, size), shape)
    after, _ = optimised(before)
    assert order in orders(after) or size > 1
    assert_same(before, after, *shape)


def test_two_moves_are_one() -> None:
    before = make(twice, (2, 3, 4, CHANNELS))
    after, _ = optimised(before)
    assert orders(after)[0] == (0, 3, 1, 2)
    assert len(after.nodes) == len(optimised(make(single, (2, 3, 4, CHANNELS)))[0].nodes)
    assert_same(before, after, 2, 3, 4, CHANNELS)


def single(g: Graph, x: Value) -> Value:
    return layers(g, x, (0, 3, 2, 1), ReduceMax(keepdims=0), (2,))


@pytest.mark.parametrize("keepdims", [0, 1])
def test_rows_become_no_image_for_its_mean(keepdims: int) -> None:
    """The last pixels of MetaFormers are rows, which are transposed to an image to be averaged."""

    def build(g: Graph, x: Value) -> Value:
        turned = apply(g, Transpose(perm=(0, 2, 1)), apply(g, Relu(), x))
        image = apply(g, Reshape(), turned, np.array((2, CHANNELS, 3, 5)))
        mean = apply(g, ReduceMean(keepdims=keepdims), image, np.array((2, 3)))
        return apply(g, Gemm(), apply(g, Flatten(), mean), normal(CHANNELS, 4))

    graph = make(build, (2, 15, CHANNELS))
    after, log = optimised(graph)
    assert log.counts["order_pixels"] == 2
    assert orders(after) == []
    assert_same(graph, after, 2, 15, CHANNELS)


@pytest.mark.parametrize("axes", [(1, 2), (2,), (0, 2, 3)])
def test_parts_of_rows_are_reduced_as_an_image(axes: Axes) -> None:
    def build(g: Graph, x: Value) -> Value:
        turned = apply(g, Transpose(perm=(0, 2, 1)), apply(g, Relu(), x))
        image = apply(g, Reshape(), turned, np.array((2, CHANNELS, 3, 5)))
        return apply(g, ReduceMean(), image, np.array(axes))

    graph = make(build, (2, 15, CHANNELS))
    assert_same(graph, optimised(graph)[0], 2, 15, CHANNELS)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(
    ("order", "axes", "stays"),
    [
        ((0, 3, 1, 2), (2, 3), False),
        ((0, 3, 1, 2), (-1,), True),  # what is kept would change places
        ((0, 3, 2, 1), (1,), True),  # rows of channels
        ((0, 2, 1, 3), (1,), True),
        ((0, 2, 1), (2,), False),
    ],
)
def test_pixels_that_are_only_reduced_stay(
    order: Axes, axes: Axes, stays: bool, keepdims: int
) -> None:
    shape = (2, 5, 3, 4)[: len(order)]

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Transpose(perm=order), apply(g, Relu(), x))
        return apply(g, ReduceMean(keepdims=keepdims), y, np.array(axes))

    before = make(build, shape)
    after, _ = optimised(before)
    assert bool(orders(after)) is stays
    assert_same(before, after, *shape)
