"""Elementwise operators with a rule of their own, wherever passes move what they read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ops.elementwise import CastLike, Clip, Exp, Mul, Neg, PRelu, Sigmoid, SwiGLU
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.movement import Concat, Expand, Slice, Transpose
from tercet.runtime.ops.reduce import ReduceMax, ReduceMin
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, assert_same, make, normal, optimised

SHAPE = (2, 3, 4, 6)
#: Computes a tensor of the same sizes of one, and of the input.
Rule = Callable[[Graph, Value, Value], Value]


def computed_limits(g: Graph, value: Value, x: Value) -> Value:
    low, high = (apply(g, kind(keepdims=0), x) for kind in (ReduceMin, ReduceMax))
    half = np.array(0.5, np.float32)
    return apply(g, Clip(), value, *(apply(g, Mul(), limit, half) for limit in (low, high)))


def upper_limit(g: Graph, value: Value, x: Value) -> Value:
    return apply(g, Clip(), value, None, np.array([0.75], np.float32))


def type_of_another(g: Graph, value: Value, x: Value) -> Value:
    """Whose sizes do not matter."""
    return apply(g, CastLike(), value, apply(g, Exp(), normal(5, 1, 4, 1, 6)))


def gated(g: Graph, value: Value, x: Value) -> Value:
    return apply(g, SwiGLU(), value, apply(g, Neg(), value))


def sloped(g: Graph, value: Value, x: Value) -> Value:
    """One slope for each row."""
    infer(g)
    return apply(g, PRelu(), value, normal(value.tensor.dims[-2], 1))


RULES: list[Rule] = [computed_limits, upper_limit, type_of_another, gated, sloped]
#: What becomes of the input, around an operator.
Place = Callable[[Graph, Value, Rule], Value]


def between_transposes(g: Graph, x: Value, rule: Rule) -> Value:
    there = apply(g, Transpose(perm=(0, 2, 3, 1)), apply(g, Sigmoid(), x))
    return apply(g, Transpose(perm=(0, 3, 1, 2)), rule(g, there, x))


def behind_a_view(g: Graph, x: Value, rule: Rule) -> Value:
    viewed = apply(g, Reshape(), apply(g, Sigmoid(), x), np.array([6, 2, 12]))
    return apply(g, Sigmoid(), rule(g, viewed, x))


def before_a_slice(g: Graph, x: Value, rule: Rule) -> Value:
    y = rule(g, apply(g, Sigmoid(), x), x)
    return apply(g, Slice(), y, *(np.array([n]) for n in (1, 2, 2)))


def before_a_place(g: Graph, x: Value, rule: Rule) -> Value:
    return apply(g, Gather(axis=3), rule(g, apply(g, Sigmoid(), x), x), np.array(2))


def behind_an_expand(g: Graph, x: Value, rule: Rule) -> Value:
    rows = apply(g, Sigmoid(), apply(g, ReduceMax(keepdims=1), x, np.array([2])))
    return rule(g, apply(g, Expand(), rows, np.array(SHAPE)), x)


def behind_a_viewed_expand(g: Graph, x: Value, rule: Rule) -> Value:
    wide = apply(g, Expand(), apply(g, Sigmoid(), x), np.array([5, *SHAPE]))
    viewed = apply(g, Reshape(), wide, np.array([5, 2, 12, 6]))
    return apply(g, Mul(), rule(g, viewed, x), normal(5, 1, 1, 6))


def in_a_stack(g: Graph, x: Value, rule: Rule) -> Value:
    columns = [apply(g, Gather(axis=3), x, np.array(n)) for n in range(2)]
    parts = [rule(g, apply(g, Sigmoid(), each), x) for each in columns]
    return apply(
        g, Concat(axis=3), *(apply(g, Reshape(), p, np.array([2, 3, 4, 1])) for p in parts)
    )


PLACES: list[Place] = [
    *(between_transposes, behind_a_view, before_a_slice, before_a_place),
    *(behind_an_expand, behind_a_viewed_expand, in_a_stack),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", RULES)
def test_results_stay(rule: Rule, place: Place) -> None:
    before = make(lambda g, x: place(g, x, rule), SHAPE)
    after, _ = optimised(before)
    assert_same(before, after)


@pytest.mark.parametrize("rule", RULES)
def test_transposes_vanish(rule: Rule) -> None:
    """Limits and types have no axes, and slopes are constants that are transposed."""
    after, _ = optimised(make(lambda g, x: between_transposes(g, x, rule), SHAPE))
    assert not any(isinstance(node.op, Transpose) for node in after.nodes)
