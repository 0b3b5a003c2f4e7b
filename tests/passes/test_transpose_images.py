"""Images made of the heads of rows, and heads of images, by a free Transpose of four axes."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Array
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Mul, Relu
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Pad, Slice, Transpose
from tercet.runtime.ops.norm import BatchNormalization, Softmax
from tercet.runtime.ops.shape import Reshape, Squeeze

from .graphs import apply, assert_same, make, normal, optimised

N, HEADS, SIZE, SIDE = 2, 3, 8, 4
TOKENS, WIDTH = SIDE * SIDE, HEADS * SIZE


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def depthwise(g: Graph, x: Value) -> Value:
    return apply(g, Conv(group=WIDTH, pads=(1, 1, 1, 1)), x, normal(WIDTH, 1, 3, 3))


def perms(graph: Graph) -> list[tuple[int, ...] | None]:
    return [node.op.perm for node in graph.nodes if isinstance(node.op, Transpose)]


@pytest.mark.parametrize("cut", [False, True])
def test_heads_of_an_image(cut: bool) -> None:
    """They are made of its pixels, unless linear attention cuts queries, keys and values."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Reshape(), depthwise(g, x), ints(N, HEADS, SIZE, TOKENS))
        heads = apply(g, Transpose(perm=(0, 1, 3, 2)), y)
        if cut:
            heads = apply(g, Slice(), heads, ints(0), ints(4), ints(3))
        return apply(g, Softmax(axis=-2), heads)

    graph = make(build, (N, WIDTH, SIDE, SIDE))
    after, _ = optimised(graph)
    assert ((0, 2, 3, 1) in perms(after)) != cut
    assert ((0, 1, 3, 2) in perms(after)) == cut
    assert_same(graph, after)


def test_an_image_of_heads() -> None:
    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Transpose(perm=(0, 2, 3, 1)), apply(g, Softmax(axis=1), x))
        return depthwise(g, apply(g, Reshape(), y, ints(N, WIDTH, SIDE, SIDE)))

    graph = make(build, (N, TOKENS, HEADS, SIZE))
    after, _ = optimised(graph)
    assert perms(after) == [(0, 3, 1, 2)]
    assert_same(graph, after)


@pytest.mark.parametrize("heads", [1, HEADS])
def test_positions_of_coat(heads: int) -> None:
    """Values are an image without the class token, and the convolved image weighs queries."""
    size = WIDTH // heads

    def build(g: Graph, x: Value) -> Value:
        rows = apply(g, Reshape(), x, ints(N, TOKENS + 1, 3, heads, size))
        transposed = apply(g, Transpose(perm=(2, 0, 3, 1, 4)), rows)
        parts = [apply(g, Slice(), transposed, ints(i), ints(i + 1), ints(0)) for i in range(3)]
        q, k, v = (apply(g, Squeeze(), part, ints(0)) for part in parts)
        q, v = (apply(g, Slice(), each, ints(1), ints(99), ints(2)) for each in (q, v))
        v = apply(g, Transpose(perm=(0, 1, 3, 2)), v)
        image = depthwise(g, apply(g, Reshape(), v, ints(N, WIDTH, SIDE, SIDE)))
        v = apply(g, Reshape(), image, ints(N, heads, size, TOKENS))
        weighted = apply(g, Mul(), q, apply(g, Transpose(perm=(0, 1, 3, 2)), v))
        padded = apply(g, Pad(), weighted, ints(0, 0, 1, 0, 0, 0, 0, 0))
        return apply(g, Mul(), padded, apply(g, Softmax(axis=2), k))

    graph = make(build, (N, TOKENS + 1, 3 * WIDTH))
    after, _ = optimised(graph)
    assert (2, 0, 3, 1, 4) not in perms(after)
    assert (0, 1, 3, 2) not in perms(after)
    assert_same(graph, after)


@pytest.mark.parametrize("heads", [1, HEADS])
def test_heads_of_a_video_are_images_of_pixels(heads: int) -> None:
    """Each head of MViT's queries is a video; whole pixels are copied, and the rest is free."""
    planes, width = 2, WIDTH // heads
    pixels = planes * TOKENS

    def build(g: Graph, x: Value) -> Value:
        rows = apply(g, Softmax(axis=1), x)
        rows = apply(g, Reshape(), rows, ints(N, pixels, heads, width))
        rows = apply(g, Transpose(perm=(0, 2, 1, 3)), rows)
        images = apply(g, Reshape(), rows, ints(N * heads, planes, SIDE, SIDE, width))
        images = apply(g, Transpose(perm=(0, 4, 1, 2, 3)), images)
        weights = normal(width, 1, 3, 3, 3)
        images = apply(g, Conv(group=width, pads=(1,) * 6), images, weights)
        back = apply(g, Reshape(), images, ints(N, heads, width, pixels))
        return apply(g, Softmax(axis=2), apply(g, Transpose(perm=(0, 1, 3, 2)), back))

    graph = make(build, (N, pixels, WIDTH))
    after, _ = optimised(graph)
    conv = next(node for node in after.nodes if isinstance(node.op, Conv))
    (behind,) = conv.output.consumers
    before = conv.operands[0].producer
    assert before is not None
    assert before.op == Transpose(perm=(0, 4, 1, 2, 3))
    assert behind.op == Transpose(perm=(0, 2, 3, 4, 1))
    assert_same(graph, after)


def test_heads_of_blocks_of_pixels() -> None:
    """Attention in blocks (HaloNet): heads are parts of pixels, also behind a batch norm."""
    half, heads = SIDE // 2, N * HEADS
    channels = [np.abs(normal(WIDTH)) + 1 for _ in range(4)]

    def build(g: Graph, x: Value) -> Value:
        cut = apply(g, Reshape(), depthwise(g, x), ints(heads, SIZE, 2, half, 2, half))
        blocks = apply(g, Transpose(perm=(0, 1, 3, 5, 2, 4)), cut)
        blocks = apply(g, Reshape(), blocks, ints(heads, SIZE, half * half, 4))
        rows = apply(g, Transpose(perm=(0, 3, 2, 1)), blocks)
        rows = apply(g, Transpose(perm=(0, 3, 2, 1)), apply(g, Softmax(axis=2), rows))
        back = apply(g, Reshape(), rows, ints(heads, SIZE, half, half, 2, 2))
        back = apply(g, Transpose(perm=(0, 1, 4, 2, 5, 3)), back)
        image = apply(g, Reshape(), back, ints(N, WIDTH, SIDE, SIDE))
        return depthwise(g, apply(g, Relu(), apply(g, BatchNormalization(), image, *channels)))

    graph = make(build, (N, WIDTH, SIDE, SIDE))
    after, _ = optimised(graph)
    found = perms(after)
    assert found.count((0, 2, 3, 1)) == found.count((0, 3, 1, 2)) == 1
    assert all(perm[-1] == len(perm) - 1 for perm in found if perm and len(perm) > 4)
    assert_same(graph, after)


def test_heads_that_are_only_swapped_with_pixels_stay() -> None:
    """A kernel of linear attention (EfficientViT) stores the image of its heads itself."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Transpose(perm=(0, 1, 3, 2)), apply(g, Softmax(axis=2), x))
        return depthwise(g, apply(g, Reshape(), y, ints(N, WIDTH, SIDE, SIDE)))

    graph = make(build, (N, HEADS, TOKENS, SIZE))
    after, _ = optimised(graph)
    assert perms(after) == [(0, 1, 3, 2)]
    assert_same(graph, after)


def test_rows_that_a_product_reads_are_no_pixels() -> None:
    """Channels of points as rows with one more axis, for neighbours (DGCNN)."""

    def build(g: Graph, x: Value) -> Value:
        rows = apply(g, Transpose(perm=(0, 2, 1)), x)
        points = apply(g, Reshape(), rows, ints(N, TOKENS, 1, WIDTH))
        return apply(g, Mul(), apply(g, MatMul(), points, normal(WIDTH, 5)), normal(4, 5))

    graph = make(build, (N, WIDTH, TOKENS))
    after, _ = optimised(graph)
    assert perms(after) == [(0, 2, 1)]
    assert_same(graph, after)


def unshuffled(
    g: Graph, x: Value, order: tuple[int, ...] = (0, 1, 3, 5, 2, 4), samples: int = N
) -> Value:
    """Pixels of blocks as channels, as exporters write PixelUnshuffle."""
    cut = apply(g, Reshape(), x, ints(samples, WIDTH, SIDE // 2, 2, SIDE // 2, 2))
    y = apply(g, Transpose(perm=order), cut)
    return apply(g, Reshape(), y, ints(samples, 4 * WIDTH, SIDE // 2, SIDE // 2))


@pytest.mark.parametrize("samples", [1, N])
@pytest.mark.parametrize("order", [(0, 1, 3, 5, 2, 4), (0, 3, 5, 1, 2, 4)])
def test_pixels_of_blocks_as_channels(order: tuple[int, ...], samples: int) -> None:
    """Between convolutions, one Transpose of rows moves them."""

    def build(g: Graph, x: Value) -> Value:
        y = unshuffled(g, apply(g, Relu(), depthwise(g, x)), order, samples)
        return apply(g, Conv(), y, normal(5, 4 * WIDTH, 1, 1))

    graph = make(build, (samples, WIDTH, SIDE, SIDE))
    after, _ = optimised(graph)
    first, moved, last = perms(after)
    assert (first, last) == ((0, 2, 3, 1), (0, 3, 1, 2))
    assert moved is not None
    assert moved[0] == 0
    assert_same(graph, after)


def test_blocks_of_what_is_in_order_stay() -> None:
    """An input of the network has channels first."""
    graph = make(lambda g, x: apply(g, Relu(), unshuffled(g, x)), (N, WIDTH, SIDE, SIDE))
    after, _ = optimised(graph)
    assert perms(after) == [(0, 1, 3, 5, 2, 4)]
    assert_same(graph, after)


def test_axes_of_one_sample_that_are_no_image_stay() -> None:
    """Channels last, whose groups are permuted with a side (Vision Permutator)."""

    def build(g: Graph, x: Value) -> Value:
        cut = apply(g, Reshape(), x, ints(1, SIDE, SIDE, HEADS, SIZE))
        y = apply(g, Transpose(perm=(0, 3, 2, 1, 4)), cut)
        return apply(g, Relu(), apply(g, Reshape(), y, ints(1, HEADS, SIDE, SIDE * SIZE)))

    graph = make(build, (1, SIDE, SIDE, WIDTH))
    after, _ = optimised(graph)
    assert perms(after) == [(0, 3, 2, 1, 4)]
    assert_same(graph, after)
