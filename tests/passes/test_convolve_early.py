"""What all pixels of an image share is convolved before it is repeated."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.ops.movement import Concat, Expand
from tercet.runtime.ops.norm import BatchNormalization
from tercet.runtime.ops.pool import GlobalAveragePool, GlobalMaxPool
from tercet.runtime.ops.resize import Resize

from .graphs import apply, assert_same, kinds, make, normal, optimised


def expanded(g: Graph, x: Value, pixel: Value) -> Value:
    return apply(g, Expand(), pixel, np.array((1, 1, *(x.tensor.shape or ())[2:])))


def resized(g: Graph, x: Value, pixel: Value) -> Value:
    sizes = np.array((2, *(x.tensor.shape or ())[1:]))
    return apply(g, Resize(mode="linear"), pixel, None, None, sizes)


def pooled(
    g: Graph, x: Value, *, repeat: str = "expanded", filters: int = 6, kernel: int = 1
) -> Value:
    """Mean and maximum of an image beside its pixels, in front of a layer."""
    image = apply(g, Relu(), x)
    means, greatest = (apply(g, op, image) for op in (GlobalAveragePool(), GlobalMaxPool()))
    repeated = {"expanded": expanded, "resized": resized}[repeat]
    parts = [repeated(g, x, means), image, repeated(g, x, greatest)]
    rank = len(x.tensor.shape or ())
    y = apply(g, Concat(axis=1), *parts)
    window = (kernel,) * (rank - 2)
    op = Conv(pads=(kernel // 2,) * (2 * rank - 4))
    y = apply(g, op, y, normal(filters, 12, *window), normal(filters))
    norm = [normal(filters) for _ in range(3)]
    return apply(g, BatchNormalization(), y, *norm, np.abs(normal(filters)) + np.float32(0.5))


@pytest.mark.parametrize("repeat", ["expanded", "resized"])
@pytest.mark.parametrize("shape", [(2, 4, 5, 3), (2, 4, 7)])
def test_pixels_are_convolved_once(repeat: str, shape: tuple[Dim, ...]) -> None:
    graph = make(lambda g, x: pooled(g, x, repeat=repeat), shape)
    after, log = optimised(graph)
    assert log.counts["convolve_early"] == 1
    assert not {"Expand", "Resize", "BatchNormalization"} & set(kinds(after))
    (concat,) = [node for node in after.nodes if isinstance(node.op, Concat)]
    assert len(concat.operands) == 2, "of single pixels"
    assert_same(graph, after)


@pytest.mark.parametrize(("filters", "kernel"), [(6, 3), (20, 1)])
def test_windows_and_many_filters_read_what_is_repeated(filters: int, kernel: int) -> None:
    """Pads differ from what is repeated, and sums of many filters cost more than channels."""
    graph = make(lambda g, x: pooled(g, x, filters=filters, kernel=kernel), (2, 4, 5, 3))
    after, log = optimised(graph)
    assert "convolve_early" not in log.counts
    assert_same(graph, after)
