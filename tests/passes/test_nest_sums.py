"""Sums of weighted sums are one sum of all addends."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Exp, Mul
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.reduce import ReduceSum
from tercet.runtime.passes import STATIC_PASSES

from .graphs import apply, assert_same, kinds, make, normal, optimised


def total(g: Graph, x: Value, *axes: int, keepdims: int = 0) -> Value:
    return apply(g, ReduceSum(keepdims=keepdims), x, np.array(axes))


@pytest.mark.parametrize("weights", [None, (4,), (5, 4), (6, 1, 1)])
@pytest.mark.parametrize("axes", [(-1,), (2, 1)])
def test_weighted_points(weights: tuple[int, ...] | None, axes: tuple[int, ...]) -> None:
    def build(g: Graph, x: Value) -> Value:
        found = total(g, apply(g, Mul(), x, x), -1)
        if weights is not None:
            found = apply(g, Mul(), factors, found)
        return total(g, found, *axes)

    factors = normal(*(weights or ()))
    graph = make(build, (6, 5, 4, 3))
    after, log = optimised(graph, STATIC_PASSES)
    assert log.counts["nest_sums"] == 1
    assert kinds(after).count("ReduceSum") == 1
    assert_same(graph, after)


@pytest.mark.parametrize("what", ["kept", "apart", "computed weights", "a product", "read"])
def test_what_stays(what: str) -> None:
    def build(g: Graph, x: Value) -> Value:
        terms = x if what == "a product" else apply(g, Mul(), x, x)
        if what == "a product":
            terms = apply(g, MatMul(), x, normal(3, 3))
        found = total(g, terms, 1 if what == "apart" else -1, keepdims=int(what == "kept"))
        if what == "computed weights":
            found = apply(g, Mul(), found, apply(g, Exp(), total(g, x, -1)))
        y = total(g, found, -1)
        return apply(g, Mul(), y, total(g, found, 2)) if what == "read" else y

    _, log = optimised(make(build, (6, 5, 4, 3)), STATIC_PASSES)
    assert "nest_sums" not in log.counts
