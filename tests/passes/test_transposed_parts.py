"""Heads that onnxruntime's optimiser cuts and transposes one by one end as exporters write them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Div
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Split, Transpose
from tercet.runtime.ops.reduce import ReduceL2
from tercet.runtime.ops.shape import Reshape, Squeeze

from .graphs import apply, assert_same, kinds, make, normal, optimised

HEADS = Transpose(perm=(0, 2, 1, 3))
#: Queries, keys and values of rows of 24.
Heads = Callable[[Graph, Value], list[Value]]


def parts(graph: Graph, x: Value) -> list[Value]:
    """Return q, k and v of four heads in rows, [2, 6, 1, 4, 2] each."""
    rows = apply(graph, MatMul(), x, normal(24, 24))
    cut = apply(graph, Reshape(), rows, np.array([2, 6, 3, 4, 2]))
    sizes = graph.constant(np.array([1, 1, 1]))
    return list(graph.insert(Split(axis=2, num_outputs=3), [cut, sizes], 3).outputs)


def squeezed_first(graph: Graph, x: Value) -> list[Value]:
    axis = np.array([2])
    return [apply(graph, HEADS, apply(graph, Squeeze(), v, axis)) for v in parts(graph, x)]


def transposed_first(graph: Graph, x: Value) -> list[Value]:
    transpose, axis = Transpose(perm=(2, 0, 3, 1, 4)), np.array([0])
    return [apply(graph, Squeeze(), apply(graph, transpose, v), axis) for v in parts(graph, x)]


def with_lengths(graph: Graph, x: Value) -> list[Value]:
    """Divide queries and keys by their lengths, which are transposed apart from them."""
    found: list[Value] = []
    for i, part in enumerate(parts(graph, x)):
        heads = apply(graph, Squeeze(), part, np.array([2]))
        transposed = apply(graph, HEADS, heads)
        if i < 2:
            lengths = apply(graph, ReduceL2(), heads, np.array([-1]))
            transposed = apply(graph, Div(), transposed, apply(graph, HEADS, lengths))
        found.append(transposed)
    return found


def summed(build: Heads) -> Graph:
    """Return what adds the three, which nothing joins further."""

    def whole(graph: Graph, x: Value) -> Value:
        q, k, v = build(graph, x)
        return apply(graph, Add(), apply(graph, Add(), q, k), v)

    return make(whole, (2, 6, 24))


#: Passes that go on from there.
OTHERS = ("merge_products", "compose_moves", "sink_transposes", "hoist_reshapes")


@pytest.mark.parametrize("build", [squeezed_first, transposed_first, with_lengths])
def test_one_transpose_of_everything(build: Heads) -> None:
    graph = summed(build)
    after, log = optimised(graph, skip=OTHERS)
    assert kinds(graph).count("Transpose") >= 3
    assert kinds(after).count("Transpose") == 1
    assert log.counts["compose_views"]
    assert_same(graph, after, 2, 6, 24)


def test_parts_in_different_orders_stay() -> None:
    def whole(graph: Graph, x: Value) -> Value:
        q, k, v = (apply(graph, Squeeze(), part, np.array([2])) for part in parts(graph, x))
        scores = apply(
            graph, MatMul(), apply(graph, HEADS, q), apply(graph, Transpose(perm=(0, 2, 3, 1)), k)
        )
        return apply(graph, MatMul(), scores, apply(graph, HEADS, v))

    graph = make(whole, (2, 6, 24))
    after, _ = optimised(graph, skip=("fuse_attention", *OTHERS))
    assert kinds(after).count("Transpose") == 3
    assert_same(graph, after, 2, 6, 24)


def test_columns_are_cut_from_rows() -> None:
    """Where parts are not transposed, they are adjacent columns."""

    def whole(graph: Graph, x: Value) -> Value:
        q, k, v = parts(graph, x)
        return apply(graph, Add(), apply(graph, Add(), q, k), v)

    graph = make(whole, (2, 6, 24))
    after, log = optimised(graph, skip=OTHERS)
    assert log.counts["compose_views"]
    (split,) = (node for node in after.nodes if isinstance(node.op, Split))
    assert split.outputs[0].tensor.dims == (2, 6, 8)
    assert_same(graph, after, 2, 6, 24)
