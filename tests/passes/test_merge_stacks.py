"""Stacks of matrices that share the right one become rows of one matrix."""

from __future__ import annotations

import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.passes import STATIC_PASSES, Rewrites

from .graphs import apply, assert_same, kinds, make, normal, optimised


def product(left: tuple[int, ...], right: tuple[int, ...]) -> Graph:
    def build(graph: Graph, x: Value) -> Value:
        return apply(graph, Relu(), apply(graph, MatMul(), x, normal(*right)))

    return make(build, left)


def rewritten(graph: Graph) -> tuple[Graph, Rewrites]:
    return optimised(graph, STATIC_PASSES)


@pytest.mark.parametrize(
    ("left", "right", "transposed"),
    [
        ((2, 4, 5, 1, 3), (2, 1, 5, 3, 6), 2),  # lambda layers: positions by heads
        ((2, 5, 4, 7, 3), (2, 5, 1, 3, 6), 0),
        ((2, 4, 20, 3), (2, 1, 3, 6), 0),  # one head of keys
        ((4, 2, 7, 3), (2, 3, 6), 2),
        ((2, 3, 4, 2, 3), (2, 1, 1, 3, 6), 0),
    ],
)
def test_rows(left: tuple[int, ...], right: tuple[int, ...], transposed: int) -> None:
    graph = product(left, right)
    after, log = rewritten(graph)
    assert log.counts["merge_stacks"] == 1
    assert kinds(after).count("Transpose") == transposed
    (made,) = (node for node in after.nodes if isinstance(node.op, MatMul))
    a, b = (value.tensor.dims for value in made.inputs if value is not None)
    assert a[:-2] == b[:-2]
    assert_same(graph, after)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 4, 5, 3), (3, 6)),
        ((2, 4, 5, 3), (1, 1, 3, 6)),
        ((2, 4, 5, 3), (2, 4, 3, 6)),
        ((4, 2, 20, 3), (2, 3, 6)),  # rows enough: not worth the transposes
        ((2, 1, 5, 3), (2, 4, 3, 6)),
    ],
)
def test_what_stays(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    graph = product(left, right)
    after, log = rewritten(graph)
    assert "merge_stacks" not in log.counts
    assert_same(graph, after)
