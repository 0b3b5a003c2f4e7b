"""1x1 convolutions of different images whose results are added are one."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Relu, Sum
from tercet.runtime.ops.pool import GlobalAveragePool

from .graphs import Build, apply, assert_same, batchnorm, kinds, make, normal, optimised

SHAPE = (2, 8, 7, 5)


def conv(graph: Graph, x: Value, channels: int, filters: int, size: int = 1, **how: Any) -> Value:
    w = normal(filters, channels // how.get("group", 1), size, size)
    pads = (size // 2,) * 4
    return apply(graph, Conv(pads=pads, **how), x, w, normal(filters))


def block(
    graph: Graph,
    x: Value,
    *,
    stride: int = 1,
    inner: int = 16,
    filters: int = 32,
    size: int = 1,
    group: int = 1,
    first: bool = False,
) -> Value:
    """The first block of a stage of a ResNet.

    Args:
        graph: the graph.
        x: an image of eight channels.
        stride: of the projection, and of the windows of the block.
        inner: channels of the last layer's image.
        filters: channels of the result.
        size: of the projection's windows.
        group: of the last layer.
        first: whether the projection is the first addend.
    """
    step = {"strides": (stride, stride)}
    narrow = apply(graph, Relu(), conv(graph, x, 8, inner, 3, **step))
    parts = [
        conv(graph, narrow, inner, filters, group=group),
        conv(graph, x, 8, filters, size, **step),
    ]
    return apply(graph, Relu(), apply(graph, Add(), *(reversed(parts) if first else parts)))


def with_reader(graph: Graph, x: Value) -> Value:
    """Read one of the addends twice."""
    y = conv(graph, x, 8, 32)
    z = conv(graph, apply(graph, Relu(), x), 8, 32)
    return apply(graph, Add(), apply(graph, Add(), y, z), y)


def with_pooled(graph: Graph, x: Value) -> Value:
    """Add to every pixel what one for the whole image gives (ASPP)."""
    pooled = apply(graph, GlobalAveragePool(), x)
    return apply(graph, Add(), conv(graph, pooled, 8, 32), conv(graph, x, 8, 32))


def of_one_image(graph: Graph, x: Value) -> Value:
    """Branches that are trained beside one another (GhostNetV3): their weights are added."""
    return apply(graph, Add(), conv(graph, x, 8, 32), conv(graph, x, 8, 32))


TAKEN: dict[str, Build] = {"in order": block, "in the other order": partial(block, first=True)}
LEFT: dict[str, Build] = {
    "few channels": partial(block, filters=16),
    "windows": partial(block, size=3),
    "strides": partial(block, stride=2),
    "groups": partial(block, group=2),
    "read twice": with_reader,
    "broadcast": with_pooled,
    "one image": of_one_image,
}


@pytest.mark.parametrize("name", TAKEN)
def test_sums_are_not_stored(name: str) -> None:
    graph = make(TAKEN[name], SHAPE)
    after, log = optimised(graph, skip=("pad_channels",))
    assert log.counts["merge_sums"] == 1
    assert kinds(after) == ["Conv", "Relu", "Concat", "Conv", "Relu"]
    assert_same(graph, after)


@pytest.mark.parametrize("name", LEFT)
def test_others_stay(name: str) -> None:
    graph = make(LEFT[name], SHAPE)
    after, log = optimised(graph, skip=("pad_channels", "merge_branches"))
    assert "merge_sums" not in log.counts
    assert_same(graph, after)


@pytest.mark.parametrize("total", [Add, Sum])
def test_convolutions_with_batch_norms(total: type[Add | Sum]) -> None:
    """Caffe2 writes a Sum, and its ResNets keep their batch norms."""

    def build(g: Graph, x: Value) -> Value:
        narrow = apply(g, Relu(), batchnorm(g, conv(g, x, 8, 16, 3), 16))
        parts = [batchnorm(g, conv(g, narrow, 16, 32), 32), batchnorm(g, conv(g, x, 8, 32), 32)]
        return apply(g, Relu(), apply(g, total(), *parts))

    graph = make(build, SHAPE)
    after, log = optimised(graph)
    assert log.counts["merge_sums"] == 1
    assert kinds(after) == ["Conv", "Relu", "Concat", "Conv", "Relu"]
    assert_same(graph, after, *SHAPE)


@pytest.mark.parametrize("count", [2, 3])
def test_a_sum_of_two_tensors_is_an_addition(count: int) -> None:
    graph = make(lambda g, x: apply(g, Sum(), *(apply(g, Relu(), x) for _ in range(count))), SHAPE)
    after, _ = optimised(graph)
    assert ("Sum" in kinds(after)) == (count > 2)
    assert_same(graph, after, *SHAPE)
