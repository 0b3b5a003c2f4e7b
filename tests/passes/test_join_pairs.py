"""Elementwise nodes of pairs of a few tensors are one node of gathered rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.elementwise import Mul, Sub
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat

from .graphs import apply, assert_same, kinds, make, normal, optimised

FIELDS, SIZE = 6, 4


def fields(graph: Graph, x: Value) -> list[Value]:
    return [apply(graph, Gather(axis=1), x, np.array(i)) for i in range(FIELDS)]


def bilinear(graph: Graph, x: Value) -> Value:
    """Each field's layer times every later field."""
    found = fields(graph, x)
    layers = [apply(graph, MatMul(), value, normal(SIZE, SIZE)) for value in found]
    pairs = [apply(graph, Mul(), layers[i], found[j]) for i, j in combinations(range(FIELDS), 2)]
    return apply(graph, Concat(axis=1), *pairs)


@pytest.mark.parametrize("batch", [3, "batch"])
def test_pairs(batch: Dim) -> None:
    graph = make(bilinear, (batch, FIELDS, SIZE))
    after, log = optimised(graph)
    assert log.counts["join_pairs"] == 1
    assert kinds(after).count("Mul") == 1
    assert_same(graph, after, *((3, FIELDS, SIZE) if batch == "batch" else ()))


def other_operators(graph: Graph, x: Value) -> Value:
    found = fields(graph, x)
    ops = [Mul(), Sub()] * FIELDS
    pairs = [
        apply(graph, op, found[i], found[j])
        for op, (i, j) in zip(ops, combinations(range(4), 2), strict=False)
    ]
    return apply(graph, Concat(axis=1), *pairs)


def own_operands(graph: Graph, x: Value) -> Value:
    found = fields(graph, x)
    scaled = [apply(graph, Mul(), value, normal(3, SIZE)) for value in found]
    return apply(graph, Concat(axis=1), *scaled)


@pytest.mark.parametrize("build", [other_operators, own_operands])
def test_what_stays(build: Callable[[Graph, Value], Value]) -> None:
    graph = make(build, (3, FIELDS, SIZE))
    after, log = optimised(graph)
    assert "join_pairs" not in log.counts
    assert_same(graph, after)
