"""Sums of layers behind views and what their block has read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import float32, float64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Cast, Gelu, Mul, Relu
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.movement import Concat, DepthToSpace, Transpose
from tercet.runtime.ops.norm import LayerNormalization
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.passes import STATIC_PASSES, Rewrites

from .graphs import Build, apply, assert_same, kinds, make, normal, optimised

CHANNELS, SIDE = 16, 6
PIXELS = SIDE * SIDE
IMAGE = (2, CHANNELS, SIDE, SIDE)
ROWS = (2, PIXELS, CHANNELS)
PLANE = (2, SIDE, SIDE, CHANNELS)
TO_ROWS, TO_IMAGE = Transpose(perm=(0, 2, 3, 1)), Transpose(perm=(0, 3, 1, 2))


def shaped(g: Graph, x: Value, *shape: int) -> Value:
    return apply(g, Reshape(), x, np.array(shape))


def conv(g: Graph, x: Value) -> Value:
    return apply(g, Conv(pads=(1, 1, 1, 1)), x, normal(CHANNELS, CHANNELS, 3, 3))


def linear(g: Graph, x: Value) -> Value:
    return apply(g, Add(), apply(g, MatMul(), x, normal(CHANNELS, CHANNELS)), normal(CHANNELS))


def norm(g: Graph, x: Value) -> Value:
    return apply(g, LayerNormalization(), x, normal(CHANNELS), normal(CHANNELS))


def rows_of_conv(g: Graph, x: Value) -> Value:
    """Rows, to which a convolution of their image is added (XCiT)."""
    image = apply(g, TO_IMAGE, shaped(g, norm(g, x), *PLANE))
    return apply(g, Add(), x, shaped(g, apply(g, TO_ROWS, conv(g, image)), *ROWS))


def image_of_linear(g: Graph, x: Value) -> Value:
    """An image, to which a layer of its pixels is added (Next-ViT)."""
    x = conv(g, x)
    rows = linear(g, shaped(g, apply(g, TO_ROWS, x), *ROWS))
    return apply(g, Add(), apply(g, TO_IMAGE, shaped(g, rows, *PLANE)), x)


def plane_of_linear(g: Graph, x: Value) -> Value:
    """A plane of pixels, to which a layer of its rows is added and then activated."""
    rows = linear(g, shaped(g, norm(g, x), *ROWS))
    return apply(g, Gelu(), apply(g, Add(), x, shaped(g, rows, *PLANE)))


def rows_of_gemm(g: Graph, x: Value) -> Value:
    """Rows, to which the activated result of a Gemm is added."""
    rows = apply(g, Gemm(), shaped(g, norm(g, x), 2 * PIXELS, CHANNELS), normal(CHANNELS, CHANNELS))
    return apply(g, Add(), shaped(g, apply(g, Relu(), rows), *ROWS), x)


def gated_rows(g: Graph, x: Value) -> Value:
    """Rows that a convolution of their image gates (cgMLP)."""
    image = apply(g, TO_IMAGE, shaped(g, norm(g, x), *PLANE))
    return apply(g, Mul(), x, shaped(g, apply(g, TO_ROWS, conv(g, image)), *ROWS))


def bound(graph: Graph) -> tuple[Graph, Rewrites]:
    return optimised(graph, STATIC_PASSES)


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (rows_of_conv, ROWS),
        (image_of_linear, IMAGE),
        (plane_of_linear, PLANE),
        (rows_of_gemm, ROWS),
        (gated_rows, ROWS),
    ],
)
def test_the_layer_adds_what_its_block_has_read(build: Build, shape: tuple[int, ...]) -> None:
    graph = make(build, shape)
    after, log = bound(graph)
    (total,) = (
        n
        for n in after.nodes
        if n.kind in ("Add", "Mul") and all(v.data is None for v in n.operands)
    )
    layer = total.operands[0].producer
    assert log.counts["sink_views"] == 1
    assert layer is not None
    assert layer.kind in ("Conv", "Add", "Relu")
    assert_same(graph, after)


def test_blocks_in_a_row_leave_no_views_between_sums() -> None:
    def build(g: Graph, x: Value) -> Value:
        for _ in range(3):
            x = apply(g, Add(), x, shaped(g, linear(g, shaped(g, norm(g, x), *ROWS)), *PLANE))
        return x

    graph = make(build, PLANE)
    after, log = bound(graph)
    assert log.counts["sink_views"] == 3
    sums = [n for n in after.nodes if n.kind == "Add" and all(v.data is None for v in n.operands)]
    assert [n.operands[1].producer for n in sums[1:]] == sums[:-1]
    assert_same(graph, after)


def twice(g: Graph, x: Value) -> Value:
    rows = linear(g, shaped(g, x, *ROWS))
    both = apply(g, Add(), x, shaped(g, rows, *PLANE))
    return apply(g, Mul(), both, shaped(g, apply(g, Relu(), rows), *PLANE))


def windows(g: Graph, x: Value) -> Value:
    half = SIDE // 2
    cut = apply(g, Transpose(perm=(0, 1, 3, 2, 4, 5)), shaped(g, x, 2, 2, half, 2, half, CHANNELS))
    rows = linear(g, shaped(g, cut, 8, half * half, CHANNELS))
    back = shaped(g, rows, 2, 2, 2, half, half, CHANNELS)
    back = apply(g, Transpose(perm=(0, 1, 3, 2, 4, 5)), back)
    return apply(g, Add(), x, shaped(g, back, *PLANE))


def joined(g: Graph, x: Value) -> Value:
    rows = linear(g, shaped(g, norm(g, x), *ROWS))
    return apply(g, Concat(axis=-1), apply(g, Add(), x, shaped(g, rows, *PLANE)), x)


def both_layers(g: Graph, x: Value) -> Value:
    return apply(g, Add(), linear(g, x), shaped(g, linear(g, shaped(g, x, *ROWS)), *PLANE))


@pytest.mark.parametrize("build", [twice, windows, joined, both_layers])
def test_what_would_save_nothing_stays(build: Callable[[Graph, Value], Value]) -> None:
    _, log = bound(make(build, PLANE))
    assert "sink_views" not in log.counts


@pytest.mark.parametrize("read_twice", [False, True])
def test_a_cast_of_pixels_that_were_channels_follows_their_layer(read_twice: bool) -> None:
    def build(g: Graph, x: Value) -> Value:
        y = apply(g, DepthToSpace(blocksize=2), conv(g, x))
        wide = apply(g, Relu(), apply(g, Cast(to=float64), y))
        narrow = apply(g, Cast(to=float32), wide)
        return apply(g, Mul(), narrow, apply(g, Cast(to=float32), y)) if read_twice else narrow

    graph = make(build, IMAGE)
    after, log = bound(graph)
    assert ("sink_views" in log.counts) != read_twice
    assert kinds(after)[:2] == (["Conv", "DepthToSpace"] if read_twice else ["Conv", "Cast"])
    assert_same(graph, after)
