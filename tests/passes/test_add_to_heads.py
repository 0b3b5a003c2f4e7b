"""What is added to heads of an attention is added by the layer that computes them."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.elementwise import Add, Mul
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Split, Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, assert_same, kinds, make, normal, optimised

HEADS, SIZE = 2, 4
WIDTH = HEADS * SIZE


def heads(g: Graph, rows: Value, *perm: int) -> Value:
    cut = apply(g, Reshape(), rows, np.array([0, 0, HEADS, SIZE]))
    return apply(g, Transpose(perm=perm or (0, 2, 1, 3)), cut) if perm != (0, 1, 2, 3) else cut


def layer(g: Graph, x: Value, width: int, *, bias: bool = True) -> Value:
    y = apply(g, MatMul(), x, normal(WIDTH, width))
    return apply(g, Add(), y, normal(width)) if bias else y


def relative(g: Graph, q: Value, k: Value, v: Value, *, early: bool) -> Value:
    """Attention with a constant for contents and one for positions (Transformer-XL)."""
    if early:
        cut = heads(g, q, 0, 1, 2, 3)
        sums = [apply(g, Add(), cut, normal(HEADS, SIZE)) for _ in range(2)]
        first, second = (apply(g, Transpose(perm=(0, 2, 1, 3)), each) for each in sums)
    else:
        cut = heads(g, q)
        first, second = (apply(g, Add(), normal(HEADS, 1, SIZE), cut) for _ in range(2))
    contents = apply(g, MatMul(), first, heads(g, k, 0, 2, 3, 1))
    places = apply(g, MatMul(), second, normal(HEADS, SIZE, 5))
    scores = apply(g, Mul(), apply(g, Add(), contents, places), np.array(0.5, np.float32))
    mixed = apply(g, MatMul(), apply(g, Softmax(axis=-1), scores), heads(g, v))
    return apply(g, Reshape(), apply(g, Transpose(perm=(0, 2, 1, 3)), mixed), np.array([0, 0, -1]))


@pytest.mark.parametrize("early", [False, True], ids=["transposed", "rows"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batch", [3, "batch"])
def test_queries_by_contents_and_positions(early: bool, bias: bool, batch: Dim) -> None:
    def build(g: Graph, x: Value) -> Value:
        rows = layer(g, x, 3 * WIDTH, bias=bias)
        parts = g.insert(Split(axis=-1, num_outputs=3), [rows], 3).outputs
        return relative(g, *parts, early=early)

    graph = make(build, (batch, 5, WIDTH))
    after, log = optimised(graph)
    assert log.counts["add_to_heads"] == 1
    # That of the layer's bias, and the scores'.
    assert kinds(after).count("Add") <= 2
    assert_same(graph, after, 3, 5, WIDTH)


def test_layers_of_their_own() -> None:
    def build(g: Graph, x: Value) -> Value:
        return relative(g, *(layer(g, x, WIDTH) for _ in range(3)), early=False)

    graph = make(build, (3, 5, WIDTH))
    after, log = optimised(graph)
    assert log.counts["add_to_heads"] == 1
    assert_same(graph, after)


@pytest.mark.parametrize("shape", [(5, 1), (5, SIZE), (3, 1, 1, 1)], ids=str)
def test_what_depends_on_rows_stays(shape: tuple[int, ...]) -> None:
    def build(g: Graph, x: Value) -> Value:
        cut = heads(g, layer(g, x, WIDTH))
        return apply(g, Softmax(axis=-1), apply(g, Add(), cut, normal(*shape)))

    graph = make(build, (3, 5, WIDTH))
    after, log = optimised(graph)
    assert "add_to_heads" not in log.counts
    assert_same(graph, after)


def test_heads_that_are_read_without_addends_stay() -> None:
    def build(g: Graph, x: Value) -> Value:
        cut = heads(g, layer(g, x, WIDTH))
        return apply(g, Mul(), apply(g, Add(), cut, normal(HEADS, 1, SIZE)), cut)

    graph = make(build, (3, 5, WIDTH))
    after, log = optimised(graph)
    assert "add_to_heads" not in log.counts
    assert_same(graph, after)
