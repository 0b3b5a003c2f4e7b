"""Casts of what a Concat joins."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import DType, float8e4m3fn, float16, float32, int4, int8
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Cast, Neg, Tanh
from tercet.runtime.ops.movement import Concat
from tercet.runtime.options import Options
from tercet.runtime.passes import SYMBOLIC_PASSES
from tercet.runtime.passes.half import join_casts

from .graphs import apply, kinds, make, normal, passed, results


def states(kinds: str) -> Graph:
    """Return joined states: "w" widened and read by the next one, "a" widened alone, "f" wide."""

    def build(g: Graph, x: Value) -> Value:
        state = apply(g, Cast(to=float16), x)
        parts: list[Value] = []
        for kind in kinds:
            after = apply(g, Tanh(), apply(g, Add(), state, normal(3).astype(np.float16)))
            state = after if kind == "w" else state
            parts.append(apply(g, Tanh(), x) if kind == "f" else apply(g, Cast(to=float32), after))
        last = apply(g, Cast(to=float32), apply(g, Tanh(), state))
        return apply(g, Add(), apply(g, Concat(axis=0), *parts), last)

    return make(build, (1, 3))


@pytest.mark.parametrize(("given", "casts"), [("www", 1), ("wwf", 1), ("fwwfww", 2), ("wwaw", 3)])
def test_states_are_widened_at_once(given: str, casts: int) -> None:
    graph = states(given)
    after, said = passed(graph, join_casts.run, "float32")
    assert len(said) == 1
    assert kinds(after).count("Cast") == 2 + casts
    np.testing.assert_array_equal(results(after)[0], results(graph)[0])
    (own,) = (each for each in SYMBOLIC_PASSES if each.name == "join_casts")
    assert not own.has_nothing({*kinds(graph)}, Options()), "files may be in half precision"


@pytest.mark.parametrize("given", ["wf", "aaa", "wfw"])
def test_others_stay(given: str) -> None:
    assert not passed(states(given), join_casts.run, "float32")[1]


@pytest.mark.parametrize("dtype", [int4, float8e4m3fn, int8], ids=str)
def test_parts_that_only_a_cast_lets_a_concat_take(dtype: DType) -> None:
    def build(g: Graph, x: Value) -> Value:
        given = [apply(g, Cast(to=dtype), apply(g, op, x)) for op in (Tanh(), Neg())]
        parts, others = ([apply(g, Cast(to=float32), v) for v in given] for _ in range(2))
        return apply(g, Concat(axis=0), *parts, apply(g, Add(), *others))

    graph = make(build, (1, 3))
    after, said = passed(graph, join_casts.run, "float32")
    assert len(said) == (dtype == int8)
    np.testing.assert_array_equal(results(after)[0], results(graph)[0])
