"""Filters that are scaled for each image are constant, and images are scaled."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.elementwise import Add, Mul, Pow, Reciprocal, Sqrt
from tercet.runtime.ops.movement import Slice, Transpose
from tercet.runtime.ops.pool import GlobalAveragePool, GlobalMaxPool
from tercet.runtime.ops.reduce import ReduceSum
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, assert_same, kinds, make, normal, optimised

CHANNELS, FILTERS, SIZE = 6, 8, 5


def shaped(g: Graph, x: Value, *sizes: int) -> Value:
    return apply(g, Reshape(), x, np.array(sizes))


def filters(g: Graph, style: Value, images: int, *, square: str, keep: bool) -> Value:
    """Return constant filters times a style, divided by their length, for each image."""
    weights = normal(1, FILTERS, CHANNELS, 3, 3)
    scaled = apply(g, Mul(), weights, shaped(g, style, images, 1, CHANNELS, 1, 1))
    squared = apply(g, Pow(), scaled, np.array(2.0, np.float32)) if square == "Pow" else None
    squared = apply(g, Mul(), scaled, scaled) if squared is None else squared
    axes = np.array([2, 3, 4] if square == "Pow" else [-1, -3, -2])
    total = apply(g, ReduceSum(keepdims=int(keep)), squared, axes)
    total = apply(g, Add(), total, np.array(1e-8, np.float32))
    length = apply(g, Reciprocal(), apply(g, Sqrt(), total))
    return apply(g, Mul(), scaled, shaped(g, length, images, FILTERS, 1, 1, 1))


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize(("square", "keep"), [("Pow", False), ("Mul", True)])
def test_a_style(images: int, square: str, keep: bool) -> None:
    """StyleGAN 2: a batch is one image with a group of channels for each."""

    def build(g: Graph, x: Value) -> Value:
        style = apply(g, GlobalAveragePool(), x)
        weights = filters(g, style, images, square=square, keep=keep)
        weights = shaped(g, weights, images * FILTERS, CHANNELS, 3, 3)
        whole = shaped(g, x, 1, images * CHANNELS, SIZE, SIZE)
        y = apply(g, Conv(pads=(1,) * 4, group=images), whole, weights)
        return shaped(g, y, images, FILTERS, SIZE, SIZE)

    graph = make(build, (images, CHANNELS, SIZE, SIZE))
    after, log = optimised(graph)
    assert log.counts["factor_filters"] == 2
    (conv,) = (node for node in after.nodes if isinstance(node.op, Conv))
    assert conv.operands[1].is_constant
    assert conv.op == Conv(pads=(1,) * 4)
    assert "ReduceSum" not in kinds(after)
    assert_same(graph, after, rel=1e-5)


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("transposed", ["weights", "scaled weights", "nothing"])
def test_a_style_of_a_transposed_convolution(images: int, transposed: str) -> None:
    """StyleGAN 2 where the image grows; filters have their axes in another order than a Conv's."""
    swap = Transpose(perm=(0, 2, 1, 3, 4))

    def build(g: Graph, x: Value) -> Value:
        style = apply(g, GlobalAveragePool(), x)
        if transposed == "scaled weights":
            weights = apply(g, swap, filters(g, style, images, square="Pow", keep=True))
        else:
            constant: Value | np.ndarray = normal(1, CHANNELS, FILTERS, 3, 3)
            if transposed == "weights":
                constant = apply(g, swap, normal(1, FILTERS, CHANNELS, 3, 3))
            weights = apply(g, Mul(), constant, shaped(g, style, images, CHANNELS, 1, 1, 1))
        weights = shaped(g, weights, images * CHANNELS, FILTERS, 3, 3)
        whole = shaped(g, x, 1, images * CHANNELS, SIZE, SIZE)
        y = apply(g, ConvTranspose(strides=(2, 2), group=images), whole, weights)
        return shaped(g, y, images, FILTERS, 2 * SIZE + 1, 2 * SIZE + 1)

    graph = make(build, (images, CHANNELS, SIZE, SIZE))
    after, log = optimised(graph)
    assert log.counts["factor_filters"] == 1 + (transposed == "scaled weights")
    (conv,) = (node for node in after.nodes if isinstance(node.op, ConvTranspose))
    assert conv.operands[1].is_constant
    assert conv.op == ConvTranspose(strides=(2, 2))
    assert_same(graph, after, rel=1e-5)


def test_images_that_are_constant() -> None:
    """The first image of StyleGAN 2 is the same for all styles, and folded into groups."""
    image = normal(1, 3 * CHANNELS, SIZE, SIZE)

    def build(g: Graph, x: Value) -> Value:
        weights = filters(g, apply(g, GlobalAveragePool(), x), 3, square="Mul", keep=False)
        weights = shaped(g, weights, 3 * FILTERS, CHANNELS, 3, 3)
        return apply(g, Conv(group=3), image, weights)

    graph = make(build, (3, CHANNELS, SIZE, SIZE))
    after, log = optimised(graph)
    assert log.counts["factor_filters"] == 2
    (conv,) = (node for node in after.nodes if isinstance(node.op, Conv))
    assert conv.operands[1].is_constant
    assert conv.op == Conv()
    assert_same(graph, after, rel=1e-5)


def test_one_factor_of_each_image() -> None:
    """There are as many images as filters."""

    def build(g: Graph, x: Value) -> Value:
        style = apply(g, GlobalMaxPool(), apply(g, Transpose(perm=(0, 2, 1, 3)), x))
        style = apply(g, Slice(), style, np.array([0]), np.array([1]), np.array([1]))
        weights = apply(
            g, Mul(), normal(1, FILTERS, CHANNELS, 3, 3), shaped(g, style, -1, 1, 1, 1, 1)
        )
        weights = shaped(g, weights, FILTERS * FILTERS, CHANNELS, 3, 3)
        y = apply(g, Conv(group=FILTERS), shaped(g, x, 1, -1, SIZE, SIZE), weights)
        return shaped(g, y, FILTERS, FILTERS, SIZE - 2, SIZE - 2)

    graph = make(build, (FILTERS, CHANNELS, SIZE, SIZE))
    after, log = optimised(graph)
    assert log.counts["factor_filters"] == 1
    assert_same(graph, after, rel=1e-5)


@pytest.mark.parametrize("why", ["each tap", "each weight", "a sum", "read as it is"])
def test_filters_that_stay(why: str) -> None:
    def build(g: Graph, x: Value) -> Value:
        style = apply(g, GlobalAveragePool(), x)
        weights: Value | np.ndarray = normal(FILTERS, CHANNELS, 3, 3)
        if why == "each tap":
            factor = shaped(g, apply(g, Mul(), style, normal(1, 1, 3, 3)), 6, 3, 3)
            weights = apply(g, Mul(), weights, factor)
        elif why == "each weight":
            rows = shaped(g, style, 1, CHANNELS, 1, 1)
            weights = apply(g, Mul(), weights, apply(g, Mul(), rows, normal(FILTERS, 1, 1, 1)))
        elif why == "a sum":
            weights = apply(g, Add(), weights, style)
        else:
            weights = apply(g, Mul(), normal(FILTERS, CHANNELS, 1, 1), style)
            weights = apply(g, Mul(), weights, apply(g, Mul(), style, normal(1, 1, 3, 3)))
        return apply(g, Conv(), x, weights)

    graph = make(build, (1, CHANNELS, SIZE, SIZE))
    after, log = optimised(graph)
    assert "factor_filters" not in log.counts
    assert_same(graph, after, rel=1e-5)
