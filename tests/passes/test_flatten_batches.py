"""Attention in windows, whose samples and windows are separate axes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Mul, Relu
from tercet.runtime.ops.matmul import Einsum, MatMul
from tercet.runtime.ops.movement import Split, Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.reduce import ReduceMax
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, assert_same, kinds, make, normal, optimised

BATCH, WINDOWS, ROWS, HEADS, SIZE = 2, 4, 9, 3, 8
WIDTH = HEADS * SIZE
Scores = Callable[[Graph, Value, Value], Value]


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def scaled(g: Graph, x: Value) -> Value:
    return apply(g, Mul(), x, np.array(0.3, np.float32))


def keys_of(g: Graph, k: Value) -> Value:
    return apply(g, Transpose(perm=(0, 1, 2, 4, 3)), k)


SCORES: dict[str, Scores] = {
    "on scores": lambda g, q, k: scaled(g, apply(g, MatMul(), q, keys_of(g, k))),
    "with axes of its own": lambda g, q, k: apply(
        g, Mul(), apply(g, MatMul(), q, keys_of(g, k)), np.full((1,) * 5, 0.3, np.float32)
    ),
    "on queries": lambda g, q, k: apply(g, MatMul(), scaled(g, q), keys_of(g, k)),
    "on keys": lambda g, q, k: apply(g, MatMul(), q, keys_of(g, scaled(g, k))),
    "Einsum": lambda g, q, k: apply(g, Einsum(equation="bghid,bghjd->bghij"), q, scaled(g, k)),
}
MASKS = {
    "none": None,
    "bias": normal(1, HEADS, ROWS, ROWS),
    "of windows": normal(1, WINDOWS, 1, ROWS, ROWS),
}


def windows(scores: Scores, mask: np.ndarray | None) -> Graph:
    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Add(), apply(g, MatMul(), x, normal(WIDTH, 3 * WIDTH)), normal(3 * WIDTH))
        heads: list[Value] = []
        for part in g.insert(Split(axis=-1, num_outputs=3), [y], 3).outputs:
            rows = apply(g, Reshape(), part, ints(BATCH, WINDOWS, ROWS, HEADS, SIZE))
            heads.append(apply(g, Transpose(perm=(0, 1, 3, 2, 4)), rows))
        q, k, v = heads
        found = scores(g, q, k)
        found = found if mask is None else apply(g, Add(), found, mask)
        y = apply(g, MatMul(), apply(g, Softmax(axis=-1), found), v)
        y = apply(g, Transpose(perm=(0, 1, 3, 2, 4)), y)
        y = apply(g, Reshape(), y, ints(BATCH, WINDOWS, ROWS, WIDTH))
        return apply(g, Add(), x, y)

    return make(build, (BATCH, WINDOWS, ROWS, WIDTH))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("scores", SCORES)
def test_one_attention(scores: str, mask: str) -> None:
    graph = windows(SCORES[scores], MASKS[mask])
    after, log = optimised(graph)
    assert log.counts["fuse_attention"] == log.counts["join_heads"] == 1
    views = ("Reshape", "Expand", "Unsqueeze")
    found = [kind for kind in kinds(after) if kind not in views]
    assert found == ["MatMul", "Add", "Split", "Attention", "Add"]
    assert_same(graph, after, rel=5e-6)


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("scores", SCORES)
def test_one_window_behind_heads(scores: str, pooled: bool) -> None:
    """Where Hiera attends globally its windows, which follow heads, are an axis of one element."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Add(), apply(g, MatMul(), x, normal(WIDTH, 3 * WIDTH)), normal(3 * WIDTH))
        heads: list[Value] = []
        for part in g.insert(Split(axis=-1, num_outputs=3), [y], 3).outputs:
            rows = apply(g, Reshape(), part, ints(BATCH, ROWS, 1, HEADS, SIZE))
            heads.append(apply(g, Transpose(perm=(0, 3, 2, 1, 4)), rows))
        q, k, v = heads
        if pooled:
            q = apply(g, Reshape(), q, ints(BATCH, HEADS, 1, 3, 3, SIZE))
            q = apply(g, ReduceMax(keepdims=0), q, ints(3))
        weights = apply(g, Softmax(axis=-1), SCORES[scores](g, q, k))
        y = apply(g, Transpose(perm=(0, 3, 2, 1, 4)), apply(g, MatMul(), weights, v))
        y = apply(g, Reshape(), y, ints(BATCH, -1, WIDTH))
        return apply(g, MatMul(), y, normal(WIDTH, 4))

    graph = make(build, (BATCH, ROWS, WIDTH))
    after, log = optimised(graph)
    assert log.counts["fuse_attention"] == log.counts["join_heads"] == 1
    assert kinds(after).count("Transpose") == (2 if pooled else 0)
    assert_same(graph, after, rel=5e-6)


def test_windows_of_one_head_are_samples() -> None:
    """Their axis is in front of positions also behind the Attention."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, MatMul(), apply(g, Softmax(axis=-1), apply(g, MatMul(), x, keys_of(g, x))), x)
        y = apply(g, Transpose(perm=(0, 1, 3, 2, 4)), y)
        y = apply(g, Reshape(), y, ints(BATCH, WINDOWS, ROWS, SIZE))
        return apply(g, MatMul(), y, normal(SIZE, SIZE))

    graph = make(build, (BATCH, WINDOWS, 1, ROWS, SIZE))
    after, _ = optimised(graph)
    (attention,) = (node for node in after.nodes if isinstance(node.op, Attention))
    assert attention.output.tensor.dims[0] == BATCH * WINDOWS
    assert_same(graph, after, rel=5e-6)


def test_products_without_a_softmax_stay() -> None:
    def build(g: Graph, x: Value) -> Value:
        return apply(g, MatMul(), apply(g, MatMul(), x, keys_of(g, x)), x)

    _, log = optimised(make(build, (2, 3, 4, 5, 6)))
    assert "flatten_batches" not in log.counts


@pytest.mark.parametrize("grid", [False, True])
def test_windows_of_an_image_are_cut_with_channels_last(grid: bool) -> None:
    """What MaxViT cuts and joins costs a Transpose of whole pixels, the others move nothing."""
    cut, back = (0, 3, 5, 2, 4, 1), (0, 5, 3, 1, 4, 2)
    if not grid:
        cut, back = (0, 2, 4, 3, 5, 1), (0, 5, 1, 3, 2, 4)

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Reshape(), apply(g, Conv(), x, normal(8, 4, 1, 1)), ints(2, 8, 2, 3, 4, 2))
        y = apply(g, Reshape(), apply(g, Transpose(perm=cut), y), ints(-1, 8))
        y = apply(g, Softmax(axis=0), y)
        shape = ints(2, 3, 2, 2, 4, 8) if grid else ints(2, 2, 4, 3, 2, 8)
        y = apply(g, Transpose(perm=back), apply(g, Reshape(), y, shape))
        return apply(g, Conv(), apply(g, Reshape(), y, ints(2, 8, 6, 8)), normal(4, 8, 1, 1))

    graph = make(build, (2, 4, 6, 8))
    after, _ = optimised(graph)
    orders = [node.op.perm for node in after.nodes if isinstance(node.op, Transpose)]
    assert (0, 2, 3, 1) in orders
    assert (0, 3, 1, 2) in orders
    others = [order for order in orders if order and len(order) != 4]
    assert len(others) == 2
    assert all(order[-1] == len(order) - 1 for order in others)
    assert_same(graph, after, rel=5e-6)


def test_pixels_are_moved_with_channels_last() -> None:
    """What MobileViTv2 unfolds: pixels of patches are an axis of the image that it attends in."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Reshape(), apply(g, Conv(), x, normal(8, 4, 1, 1)), ints(2, 8, 3, 2, 4, 2))
        y = apply(g, Reshape(), apply(g, Transpose(perm=(0, 1, 3, 5, 2, 4)), y), ints(2, 8, 4, 12))
        y = apply(g, Reshape(), apply(g, Relu(), y), ints(2, 8, 2, 2, 3, 4))
        y = apply(g, Reshape(), apply(g, Transpose(perm=(0, 1, 4, 2, 5, 3)), y), ints(2, 8, 6, 8))
        return apply(g, Conv(), y, normal(4, 8, 1, 1))

    graph = make(build, (2, 4, 6, 8))
    after, _ = optimised(graph)
    orders = [node.op.perm for node in after.nodes if isinstance(node.op, Transpose)]
    others = [order for order in orders if order and len(order) != 4]
    assert len(others) == 2
    assert all(order[-1] == len(order) - 1 for order in others)
    assert_same(graph, after, rel=5e-6)
