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
        return apply(g, Add(), joined, parts[0]) if why == "read elsewhere" else joined

    graph = make(build, (2, STEPS, STATE))
    after, log = optimised(graph)
    assert "stack_products" not in log.counts
    assert_same(graph, after)
