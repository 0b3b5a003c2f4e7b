"""Heads whose elements take turns are columns of layers, too, behind an Attention and in front."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Mul
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, assert_same, kinds, make, normal, optimised

HEADS, SIZE, LENGTH = 3, 6, 17
WIDTH = HEADS * SIZE


def attended(g: Graph, q: Value, k: Value, v: Value) -> Value:
    scores = apply(g, MatMul(), q, apply(g, Transpose(perm=(0, 1, 3, 2)), k))
    scores = apply(g, Mul(), scores, np.array(SIZE**-0.5, np.float32))
    return apply(g, MatMul(), apply(g, Softmax(axis=-1), scores), v)


def of_sound(g: Graph, x: Value, *, last: bool = True) -> Value:
    """SuperGlue: channels are [d, h], as in ``view(b, d, h, t)``."""

    def heads() -> Value:
        y = apply(g, Conv(), x, normal(WIDTH, WIDTH, 1), normal(WIDTH))
        y = apply(g, Reshape(), y, np.array([0, SIZE, HEADS, -1]))
        return apply(g, Transpose(perm=(0, 2, 3, 1)), y)

    y = apply(g, Transpose(perm=(0, 3, 1, 2)), attended(g, heads(), heads(), heads()))
    y = apply(g, Reshape(), y, np.array([0, WIDTH, -1]))
    return apply(g, Conv(), y, normal(7, WIDTH, 1)) if last else y


def of_rows(g: Graph, x: Value, *, last: bool = True) -> Value:
    """The same of rows, whose columns are [d, h]."""

    def heads() -> Value:
        y = apply(g, Add(), apply(g, MatMul(), x, normal(LENGTH, WIDTH)), normal(WIDTH))
        y = apply(g, Reshape(), y, np.array([0, -1, SIZE, HEADS]))
        return apply(g, Transpose(perm=(0, 3, 1, 2)), y)

    y = apply(g, Transpose(perm=(0, 2, 3, 1)), attended(g, heads(), heads(), heads()))
    y = apply(g, Reshape(), y, np.array([0, -1, WIDTH]))
    return apply(g, MatMul(), y, normal(WIDTH, 7)) if last else y


@pytest.mark.parametrize(("build", "batch"), [(of_sound, 2), (of_rows, 2), (of_rows, "batch")])
def test_weights_are_permuted(build: Callable[..., Value], batch: Dim) -> None:
    graph = make(build, (batch, WIDTH, LENGTH))
    after, log = optimised(graph)
    assert log.counts["order_heads"] == log.counts["join_heads"] == 1
    (attention,) = [node for node in after.nodes if node.kind == "Attention"]
    assert len(attention.operands[0].tensor.shape or ()) == 3, "rows of heads"
    assert kinds(after).count("Transpose") == (4 if build is of_sound else 0), "of images"
    assert_same(graph, after, 2, WIDTH, LENGTH)


@pytest.mark.parametrize("build", [of_sound, of_rows])
def test_what_no_layer_reads_stays(build: Callable[..., Value]) -> None:
    graph = make(lambda g, x: build(g, x, last=False), (2, WIDTH, LENGTH))
    after, log = optimised(graph)
    assert "order_heads" not in log.counts
    assert_same(graph, after)


def over_time(g: Graph, x: Value) -> Value:
    """TimeSformer: each pixel of some frames attends to itself; rows are those of frames again."""

    def heads() -> Value:
        y = apply(g, MatMul(), apply(g, Transpose(perm=(0, 2, 1, 3)), x), normal(WIDTH, WIDTH))
        y = apply(g, Reshape(), y, np.array([14, LENGTH, HEADS, SIZE]))
        return apply(g, Transpose(perm=(0, 2, 1, 3)), y)

    y = apply(
        g, Reshape(), attended(g, heads(), heads(), heads()), np.array([2, 7, HEADS, -1, SIZE])
    )
    y = apply(g, Transpose(perm=(0, 3, 1, 2, 4)), y)
    y = apply(g, Reshape(), y, np.array([2, LENGTH, 7, WIDTH]))
    return apply(g, Add(), x, apply(g, MatMul(), y, normal(WIDTH, WIDTH)))


def test_rows_are_joined_before_they_are_moved() -> None:
    graph = make(over_time, (2, LENGTH, 7, WIDTH))
    after, log = optimised(graph)
    assert log.counts["order_heads"] == log.counts["join_heads"] == 1
    (attention,) = [node for node in after.nodes if node.kind == "Attention"]
    assert len(attention.operands[0].tensor.dims) == 3, "rows of heads"
    assert_same(graph, after)


def of_sequences(g: Graph, x: Value) -> Value:
    """nn.MultiheadAttention: the first axis is that of places."""

    def heads() -> Value:
        rows = apply(g, MatMul(), x, normal(WIDTH, WIDTH))
        y = apply(g, Reshape(), rows, np.array([0, -1, HEADS, SIZE]))
        return apply(g, Transpose(perm=(1, 2, 0, 3)), y)

    y = apply(g, Transpose(perm=(2, 0, 1, 3)), attended(g, heads(), heads(), heads()))
    y = apply(g, Reshape(), y, np.array([0, -1, WIDTH]))
    return apply(g, Add(), x, apply(g, MatMul(), y, normal(WIDTH, WIDTH)))


@pytest.mark.parametrize("shape", [(LENGTH, 2), ("places", 2), ("places", "batch")])
def test_places_are_moved_before_heads_are_cut(shape: tuple[Dim, ...]) -> None:
    graph = make(of_sequences, (*shape, WIDTH))
    after, log = optimised(graph)
    assert log.counts["order_heads"] == 2
    assert log.counts["join_heads"] == 1
    orders = {node.op.perm for node in after.nodes if isinstance(node.op, Transpose)}
    assert orders == {(1, 0, 2)}, "of whole rows"
    assert_same(graph, after, LENGTH, 2, WIDTH)


def test_few_places_stay() -> None:
    graph = make(of_sequences, (8, 2, WIDTH))
    after, log = optimised(graph)
    assert "order_heads" not in log.counts
    assert_same(graph, after)
