"""Convolutions of one image that differ in their filters only are one, of few pixels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Clip, LeakyRelu, Relu, Sigmoid, Swish
from tercet.runtime.ops.movement import Concat
from tercet.runtime.passes import STATIC_PASSES, Rewrites

from .graphs import Build, apply, assert_same, kinds, make, normal, optimised

SHAPE = (2, 8, 6, 5)
Layer = Callable[[Graph, Value], Value]


def relu(graph: Graph, x: Value) -> Value:
    return apply(graph, Relu(), x)


def plain(graph: Graph, x: Value) -> Value:
    return x


def clipped(graph: Graph, x: Value, most: float = 6) -> Value:
    bounds = (graph.constant(np.array(n, np.float32)) for n in (0, most))
    return graph.insert(Clip(), [x, *bounds]).output


def layer(
    graph: Graph,
    x: Value,
    act: Layer,
    filters: int,
    channels: int = 8,
    size: int = 1,
    *,
    bias: bool = True,
    group: int = 1,
) -> Value:
    w = normal(filters, channels // group, size, size)
    rest = [normal(filters)] if bias else []
    return act(graph, apply(graph, Conv(pads=(size // 2,) * 4, group=group), x, w, *rest))


def module(
    graph: Graph,
    x: Value,
    *,
    act: Layer = relu,
    other: Layer | None = None,
    first: Callable[..., Value] = layer,
    reduced: int = 16,
) -> Value:
    """An Inception module.

    Args:
        graph: the graph.
        x: an image of eight channels.
        act: the activation of most convolutions.
        other: that of the second one that is merged, if another one.
        first: makes the first one.
        reduced: channels of its result.
    """
    small, smaller = first(graph, x, act, reduced), layer(graph, x, other or act, 8)
    parts = [
        layer(graph, x, act, 16),
        layer(graph, small, act, 8, reduced, 3),
        layer(graph, smaller, act, 8, 8, 5),
    ]
    return apply(graph, Concat(axis=1), *parts)


def added(graph: Graph, x: Value, act: Layer, filters: int) -> Value:
    """A convolution whose result is also added to another one."""
    y = layer(graph, x, act, filters)
    return apply(graph, Add(), y, layer(graph, y, act, filters, filters))


def merged(graph: Graph) -> tuple[Graph, Rewrites]:
    return optimised(graph, STATIC_PASSES)


TAKEN: dict[str, Build] = {
    "Relu": module,
    "Swish": partial(module, act=lambda g, x: apply(g, Swish(), x)),
    "LeakyRelu": partial(module, act=lambda g, x: apply(g, LeakyRelu(alpha=0.2), x)),
    "no activation": partial(module, act=plain),
    "no bias": partial(module, first=partial(layer, bias=False)),
}
LEFT: dict[str, Build] = {
    "another activation": partial(module, other=lambda g, x: apply(g, Sigmoid(), x)),
    "other limits": partial(module, act=clipped, other=partial(clipped, most=3)),
    "another window": partial(module, first=partial(layer, size=3)),
    "groups": partial(module, first=partial(layer, group=2)),
    "a part that is added": partial(module, first=added),
    "channels that are no words": partial(module, reduced=12),
}


@pytest.mark.parametrize("name", TAKEN)
def test_branches_begin_with_one_convolution(name: str) -> None:
    graph = make(TAKEN[name], SHAPE)
    after, log = merged(graph)
    assert log.counts["merge_convolutions"] == 1
    assert kinds(graph).count("Conv") - kinds(after).count("Conv") == 1
    assert kinds(after).count("Split") == 1
    assert_same(graph, after)


@pytest.mark.parametrize("name", LEFT)
def test_others_stay(name: str) -> None:
    graph = make(LEFT[name], SHAPE)
    after, log = merged(graph)
    assert "merge_convolutions" not in log.counts
    assert_same(graph, after)


@pytest.mark.parametrize(("images", "count"), [(1, 1), (2, 0)])
def test_of_many_pixels_none_are_merged(images: int, count: int) -> None:
    _, log = merged(make(module, (images, 8, 32, 32)))
    assert log.counts.get("merge_convolutions", 0) == count
