"""Products of an image's channels with one weight per pixel, as global-context blocks have them."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import float16
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.shape import Reshape, Unsqueeze

from .graphs import Build, apply, assert_same, kinds, make, normal, optimised
from .test_to_half import dtypes_of, halved

SHAPE = (2, 8, 4, 6)


def context(g: Graph, x: Value) -> Value:
    """The mean of pixels, weighted by a Softmax of a convolution."""
    y = apply(g, Conv(), x, normal(8, 8, 1, 1))
    scores = apply(g, Reshape(), apply(g, Conv(), y, normal(1, 8, 1, 1)), np.array([2, 1, 24]))
    weights = apply(g, Unsqueeze(), apply(g, Softmax(axis=-1), scores), np.array([3]))
    channels = apply(g, Unsqueeze(), apply(g, Reshape(), y, np.array([2, 8, 24])), np.array([1]))
    mean = apply(g, Reshape(), apply(g, MatMul(), channels, weights), np.array([2, 8, 1, 1]))
    return apply(g, Conv(), mean, normal(3, 8, 1, 1))


def several(g: Graph, x: Value) -> Value:
    """Two weights per pixel: a product of matrices."""
    y = apply(g, Reshape(), apply(g, Conv(), x, normal(8, 8, 1, 1)), np.array([2, 8, 24]))
    return apply(g, MatMul(), y, apply(g, Reshape(), apply(g, Softmax(), y), np.array([2, 24, 8])))


def shared(g: Graph, x: Value) -> Value:
    """The same weights for all images."""
    y = apply(g, Reshape(), x, np.array([2, 8, 24]))
    scores = apply(g, Reshape(), apply(g, Conv(), x, normal(1, 8, 1, 1)), np.array([1, 48, 1]))
    return apply(g, MatMul(), apply(g, Reshape(), y, np.array([1, 8, 48])), scores)


def crossed(g: Graph, x: Value) -> Value:
    """Every image with the weights of every other one."""
    y = apply(g, Reshape(), apply(g, Conv(), x, normal(8, 8, 1, 1)), np.array([2, 1, 8, 24]))
    scores = apply(g, Conv(), x, normal(1, 8, 1, 1))
    weights = apply(g, Softmax(), apply(g, Reshape(), scores, np.array([1, 2, 24, 1])))
    return apply(g, MatMul(), y, weights)


@pytest.mark.parametrize("build", [context, several, shared, crossed])
def test_pixels_are_rows(build: Build) -> None:
    graph = make(build, SHAPE)
    after, log = optimised(graph)
    assert ("weigh_pixels" in log.counts) == (build is context)
    assert_same(graph, after)


def test_weights_come_first_and_the_mean_is_narrowed() -> None:
    after, _ = optimised(make(context, SHAPE))
    assert [kind for kind in kinds(after) if kind != "Reshape"].count("Transpose") == 1
    assert dtypes_of(halved(make(context, SHAPE)), "MatMul") == {float16}
