"""Small products that one Concat joins are a stack."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Mul
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat
from tercet.runtime.ops.shape import Unsqueeze

from .graphs import apply, assert_same, kinds, make, normal, optimised

STEPS, WIDTH, STATE = 9, 12, 8


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_states_of_an_unrolled_recurrence(axis: int) -> None:
    """Mamba: the state after each step times a vector that the step cuts out of a tensor."""

    def build(g: Graph, x: Value) -> Value:
        gates, terms, vectors = (apply(g, Mul(), x, normal(STATE)) for _ in range(3))
        state: Value | None = None
        parts: list[Value] = []
        for i in range(STEPS):
            gate, term, vector = (
                apply(g, Gather(axis=2), each, np.array(i)) for each in (gates, terms, vectors)
            )
            state = term if state is None else apply(g, Add(), apply(g, Mul(), gate, state), term)
            vector = apply(
                g, Unsqueeze(), apply(g, Gather(axis=1), vector, np.array(0)), np.array([-1])
            )
            y = apply(g, MatMul(), state, vector)
            parts.append(
                apply(g, Unsqueeze(), apply(g, Gather(axis=2), y, np.array(0)), np.array([axis]))
            )
        return apply(g, Concat(axis=axis), *parts)

    graph = make(build, (2, WIDTH, STEPS, STATE))
    after, log = optimised(graph)
    assert log.counts["stack_products"] == 1
    assert kinds(after).count("MatMul") == 1
    assert_same(graph, after)


@pytest.mark.parametrize("width", [STATE, 300])
def test_states_of_chunks_behind_zeros(width: int) -> None:
    """Linear attention: queries of each chunk but the first times the state before it."""

    def build(g: Graph, x: Value) -> Value:
        queries, terms = (apply(g, Mul(), x, normal(width)) for _ in range(2))
        state: Value | None = None
        parts = [g.constant(np.zeros((2, WIDTH, width), np.float32))]
        for i in range(STEPS - 1):
            query, term = (
                apply(g, Gather(axis=1), each, np.array(place))
                for each, place in ((queries, i + 1), (terms, i))
            )
            square = apply(g, Mul(), apply(g, Unsqueeze(), term, np.array([-1])), normal(width))
            square = apply(g, Gather(axis=1), square, np.array(0))
            state = square if state is None else apply(g, Add(), state, square)
            parts.append(apply(g, MatMul(), query, state))
        stacked = [apply(g, Unsqueeze(), part, np.array([1])) for part in parts]
        return apply(g, Concat(axis=1), *stacked)

    graph = make(build, (2, STEPS, WIDTH, width))
    after, log = optimised(graph)
    assert log.counts["stack_products"] == 1
    assert kinds(after).count("MatMul") == 1
    assert_same(graph, after)


@pytest.mark.parametrize("why", ["few", "weights", "read elsewhere"])
def test_products_that_stay(why: str) -> None:
    count = 3 if why == "few" else STEPS

    def build(g: Graph, x: Value) -> Value:
        parts: list[Value] = []
        for i in range(count):
            row = apply(g, Gather(axis=1), x, np.array([i]))
            other: Value | np.ndarray = normal(STATE, STATE)
            if why != "weights":
                other = apply(g, MatMul(), normal(STATE, STEPS), x)
            parts.append(apply(g, MatMul(), row, other))
        joined = apply(g, Concat(axis=1), *parts)
        return apply(g, Add(), joined, parts[STEPS // 2]) if why == "read elsewhere" else joined

    graph = make(build, (2, STEPS, STATE))
    after, log = optimised(graph)
    assert "stack_products" not in log.counts
    assert_same(graph, after)
