"""What steps compute of their places of a tensor is computed of the whole."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Exp, Mul, Tanh
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.movement import Concat, Slice

from .graphs import apply, assert_same, kinds, make, optimised

STEPS = 8


def at(g: Graph, x: Value, step: int, *, sliced: bool) -> Value:
    if sliced:
        return apply(g, Slice(), x, *(np.array([n]) for n in (step, step + 1, 1)))
    return apply(g, Gather(axis=1), x, np.array(step))


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("count", [STEPS, STEPS // 2])
def test_one_node_for_all_places(sliced: bool, count: int) -> None:
    def build(g: Graph, x: Value) -> Value:
        state = g.constant(np.ones((2, 1, 6) if sliced else (2, 6), np.float32))
        for step in range(count):
            gate = apply(g, Exp(), at(g, x, step, sliced=sliced))
            state = apply(g, Mul(), apply(g, Add(), state, gate), gate)
        return state

    graph = make(build, (2, STEPS, 6))
    after, log = optimised(graph)
    assert log.counts["join_places"] == 1
    assert kinds(after).count("Exp") == 1
    assert_same(graph, after)


@pytest.mark.parametrize("why", ["few", "kinds", "read elsewhere"])
def test_places_that_stay(why: str) -> None:
    count = 3 if why == "few" else STEPS

    def build(g: Graph, x: Value) -> Value:
        state = g.constant(np.ones((2, 6), np.float32))
        for step in range(count):
            op = Tanh() if why == "kinds" and step % 3 else Exp()
            place = at(g, x, step, sliced=False)
            state = apply(g, Add(), apply(g, Mul(), state, apply(g, op, place)), state)
            if why == "read elsewhere":
                state = apply(g, Add(), state, place)
        return state

    graph = make(build, (2, STEPS, 6))
    after, log = optimised(graph)
    assert ("join_places" in log.counts) == (why == "kinds")
    assert kinds(after).count("Exp") == (count if why != "kinds" else 3)
    assert_same(graph, after)


def test_places_of_several_tensors_stay() -> None:
    """All of which are cut along the same axis, by one constant."""

    def build(g: Graph, x: Value) -> Value:
        axis, parts = g.constant(np.array([1])), list[Value]()
        for step in range(STEPS):
            whole = apply(g, Mul(), x, np.array(step + 1, np.float32))
            place = apply(g, Slice(), whole, np.array([step]), np.array([step + 1]), axis)
            parts.append(apply(g, Exp(), place))
        return apply(g, Concat(axis=1), *parts)

    graph = make(build, (2, STEPS, 6))
    after, log = optimised(graph)
    assert "join_places" not in log.counts
    assert_same(graph, after)
