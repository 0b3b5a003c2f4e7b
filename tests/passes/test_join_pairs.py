"""Elementwise nodes of pairs of a few tensors are one node of gathered rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import onnx
import pytest

import tercet
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.elementwise import Mul, Sub
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat

from .graphs import apply, assert_same, make, normal, optimised

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
    (made,) = (node for node in after.nodes if node.kind == "Mul")
    assert made.name in made.origin
    assert_same(graph, after, *((3, FIELDS, SIZE) if batch == "batch" else ()))


def test_operands_of_several_types_stay() -> None:
    """Comparisons of integers and of floats give the same type."""
    pairs = [(a, b) for names in ("ab", "cd") for a in names for b in names]
    nodes = " ".join(f"p{i} = Less ({a}, {b})" for i, (a, b) in enumerate(pairs))
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
      g (int32[2, 3] a, int32[2, 3] b, float[2, 3] c, float[2, 3] d) => (bool[16, 3] y)
      {{ {nodes} y = Concat <axis = 0> ({", ".join(f"p{i}" for i in range(8))}) }}"""
    feeds = {name: normal(2, 3) for name in "abcd"}
    feeds |= {name: (4 * feeds[name]).astype(np.int32) for name in "ab"}
    with tercet.load(onnx.parser.parse_model(text)) as model:
        found = model.run(feeds)["y"]
    np.testing.assert_array_equal(found, np.concatenate([feeds[a] < feeds[b] for a, b in pairs]))


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
