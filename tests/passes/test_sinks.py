"""Attention with sinks as decoders spell it: one Attention, and what weighs its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import float16
from tercet.runtime.ir.graph import Graph, Node, Value
from tercet.runtime.ir.types import Array, Dim
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.elementwise import Add, Mul, Sigmoid, Sub
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Expand, Slice, Transpose
from tercet.runtime.ops.norm import LogSoftmax, Softmax
from tercet.runtime.ops.reduce import ReduceLogSumExp, ReduceMax
from tercet.runtime.ops.shape import Reshape, Unsqueeze

from .graphs import apply, assert_same, kinds, make, normal, optimised

HEADS, SIZE, LENGTH = 3, 8, 5
WIDTH = HEADS * SIZE
CAUSAL = np.where(np.tril(np.ones((LENGTH, LENGTH), bool)), 0, -np.inf).astype(np.float32)
#: Returns what weights of scores and values give.
Spelling = Callable[[Graph, Value, Value], Value]


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def sinks(*shape: int) -> Array:
    """Numbers of each head as large as scores."""
    return np.broadcast_to(2 * normal(1, HEADS, 1, 1), shape or (1, HEADS, 1, 1)).copy()


def appended(
    last: Array, *, expands: bool = False, subtracts: bool = False, cuts: tuple[int, int] = (0, -1)
) -> Spelling:
    def weigh(graph: Graph, scores: Value, v: Value) -> Value:
        sink: Any = last
        if expands:
            sink = apply(graph, Expand(), last, ints(2, HEADS, LENGTH, 1))
        x = apply(graph, Concat(axis=-1), scores, sink)
        if subtracts:
            x = apply(graph, Sub(), x, apply(graph, ReduceMax(keepdims=1), x, ints(-1)))
        weights = apply(graph, Softmax(axis=-1), x)
        weights = apply(graph, Slice(), weights, *(ints(n) for n in (*cuts, 3, 1)))
        return apply(graph, MatMul(), weights, v)

    return weigh


def multiplied(last: Array, axes: tuple[int, ...] = (-1,), *, keeps: bool = False) -> Spelling:
    def weigh(graph: Graph, scores: Value, v: Value) -> Value:
        total = apply(graph, ReduceLogSumExp(keepdims=int(keeps)), scores, ints(*axes))
        share = apply(graph, Sigmoid(), apply(graph, Sub(), total, last))
        if not keeps:
            share = apply(graph, Unsqueeze(), share, ints(-1))
        y = apply(graph, MatMul(), apply(graph, Softmax(axis=-1), scores), v)
        return apply(graph, Mul(), y, share)

    return weigh


def network(spelling: Spelling, shape: tuple[Dim, ...] = (2, LENGTH, WIDTH)) -> Graph:
    """Return a causal attention of x [b, t, n] with three linear layers."""

    def by_head(graph: Graph, x: Value, *perm: int) -> Value:
        y = apply(graph, MatMul(), x, normal(WIDTH, WIDTH))
        y = apply(graph, Reshape(), y, ints(0, -1, HEADS, SIZE))
        return apply(graph, Transpose(perm=perm), y)

    def build(graph: Graph, x: Value) -> Value:
        q, v = (by_head(graph, x, 0, 2, 1, 3) for _ in range(2))
        scores = apply(graph, MatMul(), q, by_head(graph, x, 0, 2, 3, 1))
        scores = apply(graph, Mul(), scores, np.array(SIZE**-0.5, np.float32))
        y = spelling(graph, apply(graph, Add(), scores, CAUSAL), v)
        y = apply(graph, Transpose(perm=(0, 2, 1, 3)), y)
        return apply(graph, Reshape(), y, ints(0, -1, WIDTH))

    return make(build, shape)


SPELLINGS = {
    "appended": appended(sinks(2, HEADS, LENGTH, 1)),
    "with an end": appended(sinks(2, HEADS, LENGTH, 1), cuts=(0, LENGTH)),
    "expanded": appended(sinks(), expands=True),
    "gpt-oss": appended(sinks(2, HEADS, LENGTH, 1), subtracts=True),
    "Granite": multiplied(sinks()[..., 0]),
    "with axes": multiplied(sinks(), keeps=True),
}


def the_attention(graph: Graph) -> Node:
    (found,) = (node for node in graph.nodes if isinstance(node.op, Attention))
    return found


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str) -> None:
    graph = network(SPELLINGS[name])
    after, log = optimised(graph)
    assert log.counts["fuse_attention"] == 1
    assert not {"Softmax", "Concat", "Slice", "ReduceMax"} & set(kinds(after))
    op = the_attention(after).op
    assert isinstance(op, Attention)
    assert op.q_num_heads == HEADS
    assert the_attention(after).operands[0].tensor.rank == 3  # heads are columns of rows
    assert_same(graph, after)


def test_symbolic_sizes() -> None:
    graph = network(appended(sinks(2, HEADS, LENGTH, 1), cuts=(0, -1)), ("batch", LENGTH, WIDTH))
    after, log = optimised(graph)
    assert log.counts["fuse_attention"] == 1
    assert_same(graph, after, 2, LENGTH, WIDTH)


def test_a_row_that_sees_nothing_is_zero() -> None:
    def hidden(graph: Graph, scores: Value, v: Value) -> Value:
        mask = np.zeros((LENGTH, LENGTH), np.float32)
        mask[1] = -np.inf
        scores = apply(graph, Add(), scores, mask)
        return appended(sinks(2, HEADS, LENGTH, 1))(graph, scores, v)

    graph = network(hidden)
    after, _ = optimised(graph)
    assert "Softmax" not in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize("name", ["gpt-oss", "Granite"])
def test_half_precision(name: str) -> None:
    after, _ = optimised(network(SPELLINGS[name]), precision="float16")
    assert {value.tensor.dtype for value in the_attention(after).operands[:3]} == {float16}


STAYING = {
    "sinks of rows": appended(normal(2, HEADS, LENGTH, 1)),
    "sinks of samples": appended(sinks() + normal(2, 1, 1, 1) * np.ones((1, 1, LENGTH, 1), "f")),
    "the first key is dropped": appended(sinks(2, HEADS, LENGTH, 1), cuts=(1, LENGTH + 1)),
    "two sinks": appended(np.repeat(sinks(2, HEADS, LENGTH, 1), 2, -1), cuts=(0, -2)),
    "sums over rows": multiplied(sinks()[..., 0], (-2,)),
    "sinks of rows that multiply": multiplied(normal(1, HEADS, LENGTH, 1), keeps=True),
}


@pytest.mark.parametrize("name", STAYING)
def test_what_is_no_sink(name: str) -> None:
    graph = network(STAYING[name])
    after, log = optimised(graph)
    assert "fuse_attention" not in log.counts
    assert "Attention" not in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize("op", [Softmax(axis=1), LogSoftmax(axis=1)])
@pytest.mark.parametrize(("axis", "drops"), [(1, True), (-2, True), (2, False)])
def test_the_maxima_of_other_axes_stay(op: Softmax | LogSoftmax, axis: int, drops: bool) -> None:
    def build(graph: Graph, x: Value) -> Value:
        maxima = apply(graph, ReduceMax(keepdims=1), x, ints(axis))
        return apply(graph, op, apply(graph, Sub(), x, maxima))

    graph = make(build, (2, 5, 4))
    after, log = optimised(graph)
    assert ("unflatten_softmax" in log.counts) == drops
    assert ("ReduceMax" not in kinds(after)) == drops
    assert_same(graph, after)
