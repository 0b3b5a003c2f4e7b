"""Linear attention over chunks: sums that one Concat joins, and products of each chunk."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import int64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Cast, Mul, Relu, Sigmoid, Sum, Tanh
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.movement import Concat, Transpose
from tercet.runtime.ops.reduce import ArgMax
from tercet.runtime.ops.shape import Unsqueeze

from .graphs import apply, assert_same, kinds, make, normal, optimised, run

CHUNKS, ROWS, WIDTH = 6, 5, 4


def place(g: Graph, x: Value, i: int) -> Value:
    return apply(g, Gather(axis=1), x, np.array(i))


@pytest.mark.parametrize("inside", ["a part", "a product"])
@pytest.mark.parametrize("swapped", [False, True])
def test_chunks_of_linear_attention(inside: str, swapped: bool) -> None:
    def build(g: Graph, x: Value) -> Value:
        q, k, v, gate, o = (
            apply(g, op, x) for op in (Relu(), Sigmoid(), Relu(), Sigmoid(), Relu())
        )
        q, k, v, o = (apply(g, Mul(), y, normal(WIDTH)) for y in (q, k, v, o))
        state = g.constant(np.zeros((2, WIDTH, WIDTH), np.float32))
        parts = []
        for i in range(CHUNKS):
            own = place(g, o, i)
            if inside == "a product":
                own = apply(g, MatMul(), own, apply(g, Mul(), state, normal(1)))
            terms = own, apply(g, MatMul(), place(g, q, i), state)
            y = apply(g, Add(), *terms[:: -1 if swapped else 1])
            parts.append(apply(g, Unsqueeze(), y, np.array([1])))
            keys = apply(g, Transpose(perm=(0, 2, 1)), place(g, k, i))
            decay = apply(g, Gather(axis=1), place(g, gate, i), np.array([0]))
            state = apply(
                g,
                Add(),
                apply(g, Mul(), state, decay),
                apply(g, MatMul(), keys, place(g, v, i)),
            )
        return apply(g, Concat(axis=1), *parts)

    graph = make(build, (2, CHUNKS, ROWS, WIDTH))
    after, log = optimised(graph)
    assert log.counts["join_sums"] == 1
    assert log.counts["join_steps"] == 1
    # Products of keys and values, and of queries and states.
    assert kinds(after).count("MatMul") == (2 if inside == "a part" else 3)
    assert_same(graph, after, rel=5e-6)


def test_weights_that_all_steps_read_multiply_their_inputs_at_once() -> None:
    def build(g: Graph, x: Value) -> Value:
        w, u = g.constant(normal(WIDTH, 7)), g.constant(normal(7, 7))
        x = apply(g, Relu(), x)
        state: Value | None = None
        for i in range(CHUNKS):
            y = apply(g, MatMul(), place(g, x, i), w)
            last = y if state is None else apply(g, Add(), y, apply(g, MatMul(), state, u))
            state = apply(g, Sigmoid(), last)
        assert state is not None
        return state

    graph = make(build, (2, CHUNKS, WIDTH))
    after, log = optimised(graph)
    assert log.counts["join_steps"] == 1
    assert kinds(after).count("MatMul") == CHUNKS
    assert_same(graph, after, rel=5e-6)


@pytest.mark.parametrize("is_token", [False, True])
@pytest.mark.parametrize("transposed", [0, 1])
def test_layers_with_a_bias_multiply_their_inputs_at_once(transposed: int, is_token: bool) -> None:
    """Gates of a cell that a loop calls (DIEN), and of one that is given tokens."""
    table = normal(9, WIDTH)

    def build(g: Graph, x: Value) -> Value:
        w, b, u = (g.constant(each) for each in (normal(WIDTH, 7), normal(7), normal(7, 7)))
        w = g.constant(normal(7, WIDTH)) if transposed else w
        read, rows = apply(g, Relu(), x), g.constant(table)
        if is_token:
            read = apply(g, ArgMax(axis=-1, keepdims=0), read)
        state: Value | None = None
        for i in range(CHUNKS):
            own = place(g, read, i)
            own = apply(g, Gather(), rows, own) if is_token else own
            y = apply(g, Gemm(transB=transposed), own, w, b)
            last = y if state is None else apply(g, Add(), y, apply(g, MatMul(), state, u))
            state = apply(g, Sigmoid(), last)
        assert state is not None
        return state

    graph = make(build, (2, CHUNKS, WIDTH))
    after, log = optimised(graph)
    assert log.counts["join_steps"] == 1 + is_token
    assert kinds(after).count("MatMul") == CHUNKS
    assert "Gemm" not in kinds(after)
    assert_same(graph, after, rel=5e-6)


def test_tokens_that_no_step_looks_up_may_be_outside_of_the_table() -> None:
    """The last one of a sentence that a decoder is to repeat, padded with -100."""

    def build(g: Graph, x: Value) -> Value:
        tokens, rows = apply(g, Cast(to=int64), x), g.constant(normal(9, WIDTH))
        w = g.constant(normal(WIDTH, 7))
        steps = [apply(g, Gather(), rows, place(g, tokens, i)) for i in range(1, CHUNKS)]
        return apply(g, Sum(), *(apply(g, Tanh(), apply(g, MatMul(), x, w)) for x in steps))

    graph = make(build, (2, CHUNKS + 1))
    after, log = optimised(graph)
    assert log.counts["join_steps"] == 2
    tokens = np.full((2, CHUNKS + 1), -100, np.float32)
    tokens[:, 1:CHUNKS] = np.arange(2 * CHUNKS - 2).reshape(2, -1) % 9
    found, wanted = (run(each, tokens, np.float32) for each in (after, graph))
    np.testing.assert_allclose(found, wanted, rtol=5e-6)


@pytest.mark.parametrize("why", ["few", "other places", "other axes", "rows", "more places"])
def test_products_of_steps_that_stay(why: str) -> None:
    def build(g: Graph, x: Value) -> Value:
        a, b = apply(g, Relu(), x), apply(g, Sigmoid(), x)
        if why == "more places":
            b = apply(g, Concat(axis=1), b, x)
        parts = []
        for i in range(2 if why == "few" else CHUNKS):
            j = (i + 1) % CHUNKS if why == "other places" and i % 2 else i
            axis = 2 if why in ("other axes", "rows") else 1
            left = apply(g, Gather(axis=2 if why == "rows" else 1), a, np.array(i))
            right = apply(g, Gather(axis=axis), b, np.array(j))
            y = apply(g, MatMul(), left, apply(g, Transpose(perm=(0, 2, 1)), right))
            parts.append(apply(g, Relu(), y))
        return apply(g, Concat(axis=0), *parts)

    graph = make(build, (2, CHUNKS, CHUNKS, WIDTH))
    after, log = optimised(graph)
    assert "join_steps" not in log.counts
    assert_same(graph, after, rel=5e-6)


@pytest.mark.parametrize("why", ["read elsewhere", "no product", "a sum that repeats"])
def test_sums_that_stay(why: str) -> None:
    def build(g: Graph, x: Value) -> Value:
        q, o = apply(g, Relu(), x), apply(g, Sigmoid(), x)
        state = apply(g, MatMul(), normal(WIDTH, ROWS), place(g, x, 0))
        parts, sums = [], []
        for i in range(CHUNKS):
            own = place(g, o, i)
            if why == "a sum that repeats":
                own = apply(g, Gather(axis=1), own, np.array([0]))
            term = place(g, q, CHUNKS - 1 - i)
            if why != "no product":
                term = apply(g, MatMul(), term, state)
                state = apply(g, Mul(), state, normal(WIDTH, WIDTH))
            sums.append(apply(g, Add(), own, term))
            parts.append(apply(g, Unsqueeze(), sums[-1], np.array([1])))
        y = apply(g, Concat(axis=1), *parts)
        other = apply(g, Unsqueeze(), sums[2], np.array([1]))
        return apply(g, Mul(), y, other) if why == "read elsewhere" else y

    graph = make(build, (2, CHUNKS, ROWS, WIDTH))
    after, log = optimised(graph)
    assert "join_sums" not in log.counts
    assert_same(graph, after, rel=5e-6)
