"""Scores of relative positions are rows that are shifted."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.gather import GatherElements
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Tile, Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, assert_same, kinds, make, normal, optimised

HEADS, ROWS, TERMS, COLUMNS = 3, 5, 4, 16


def indices(places: int, how: str) -> np.ndarray:
    apart = np.arange(places) - np.arange(ROWS)[:, None]
    found = {
        "clipped": np.clip(apart + 6, 5, 9),
        "reversed": 8 - apart,
        "buckets": np.sign(apart) * np.log2(1 + np.abs(apart)).astype(int) + 8,
        "from the end": -1 - np.abs(apart),
        "columns": np.tile(np.arange(places), (ROWS, 1)),
        "too far": COLUMNS - 3 + apart,
        "too near": apart - COLUMNS,
        "one": np.full((ROWS, places), 3)
        + (np.arange(places) == 2) * (np.arange(ROWS) == 1)[:, None],
    }[how]
    return np.tile(found, (HEADS, 1, 1)).astype(np.int64)


def scores(g: Graph, x: Value, places: int, how: str, axis: int = -1) -> Value:
    y = apply(g, MatMul(), apply(g, Relu(), x), normal(HEADS, TERMS, COLUMNS))
    return apply(g, GatherElements(axis=axis), y, indices(places, how))


@pytest.mark.parametrize("how", ["clipped", "reversed", "buckets", "from the end"])
@pytest.mark.parametrize("places", [2, 5, 7])
def test_rows_are_shifted(places: int, how: str) -> None:
    graph = make(lambda g, x: scores(g, x, places, how), (HEADS, ROWS, TERMS))
    after, log = optimised(graph)
    assert log.counts["shift_rows"] == 1
    assert "GatherElements" not in kinds(after)
    assert after.outputs["y"].type == graph.outputs["y"].type
    assert_same(graph, after)


@pytest.mark.parametrize("folded", [True, False], ids=["folded", "computed"])
def test_repeated_constants_are_kept_once(folded: bool) -> None:
    """As of the heads of each sample, also where repeated constants are too large to be folded."""
    once = normal(HEADS, COLUMNS, TERMS)

    def build(g: Graph, x: Value) -> Value:
        weights = apply(g, Tile(), once, np.array([2, 1, 1]))
        weights = apply(g, Transpose(perm=(0, 2, 1)), weights)
        y = apply(g, MatMul(), apply(g, Relu(), x), weights)
        return apply(g, GatherElements(axis=-1), y, np.tile(indices(ROWS, "clipped"), (2, 1, 1)))

    graph = make(build, (2 * HEADS, ROWS, TERMS))
    after, log = optimised(graph, **({} if folded else {"fold_bytes": once.nbytes}))
    assert log.counts["shift_rows"] == 1
    (product,) = [node for node in after.nodes if isinstance(node.op, MatMul)]
    assert product.operands[1].tensor.dims[0] == HEADS
    assert "Tile" not in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize("how", ["columns", "one"])
def test_other_indices_stay(how: str) -> None:
    graph = make(lambda g, x: scores(g, x, 7, how), (HEADS, ROWS, TERMS))
    after, log = optimised(graph)
    assert "shift_rows" not in log.counts
    assert_same(graph, after)


def test_rows_that_all_matrices_multiply() -> None:
    """Constants that are repeated for them stay so."""

    def build(g: Graph, x: Value) -> Value:
        weights = np.tile(normal(HEADS, TERMS, COLUMNS), (2, 1, 1))
        y = apply(g, MatMul(), apply(g, Relu(), x), weights)
        return apply(g, GatherElements(axis=-1), y, np.tile(indices(ROWS, "clipped"), (2, 1, 1)))

    graph = make(build, (ROWS, TERMS))
    after, log = optimised(graph)
    assert log.counts["shift_rows"] == 1
    assert_same(graph, after)


@pytest.mark.parametrize("how", ["too far", "too near"])
def test_indices_outside_are_left_to_the_kernel_that_refuses_them(how: str) -> None:
    graph = make(lambda g, x: scores(g, x, 7, how), (HEADS, ROWS, TERMS))
    after, log = optimised(graph)
    assert "shift_rows" not in log.counts
    assert "GatherElements" in kinds(after)


def test_products_that_are_read_otherwise_stay() -> None:
    def build(g: Graph, x: Value) -> Value:
        y = scores(g, x, ROWS, "reversed")
        assert y.producer is not None
        left = y.producer.operands[0]
        return apply(g, MatMul(), left, apply(g, MatMul(), normal(COLUMNS, ROWS), y))

    graph = make(build, (HEADS, ROWS, TERMS))
    after, log = optimised(graph)
    assert "shift_rows" not in log.counts
    assert_same(graph, after)


def disentangled(g: Graph, x: Value) -> Value:
    """Attention as in DeBERTa: queries also multiply what relative positions are embedded as."""
    heads, size, length = 2, 4, ROWS

    def layer() -> Value:
        rows = apply(g, MatMul(), x, normal(heads * size, heads * size))
        rows = apply(g, Add(), rows, normal(heads * size))
        cut = apply(g, Reshape(), rows, np.array([2, length, heads, size]))
        return apply(g, Transpose(perm=(0, 2, 1, 3)), cut)

    q, k, v = layer(), layer(), layer()
    scores = apply(g, MatMul(), q, apply(g, Transpose(perm=(0, 1, 3, 2)), k))
    relative = apply(g, MatMul(), q, normal(heads, size, COLUMNS))
    chosen = np.tile(indices(length, "clipped")[:1], (2, heads, 1, 1))
    relative = apply(g, GatherElements(axis=-1), relative, chosen)
    weights = apply(g, Softmax(), apply(g, Add(), scores, relative))
    y = apply(g, Transpose(perm=(0, 2, 1, 3)), apply(g, MatMul(), weights, v))
    return apply(g, Reshape(), y, np.array([2, length, heads * size]))


def test_queries_that_products_read_beside_an_attention_are_merged() -> None:
    graph = make(disentangled, (2, ROWS, 8))
    after, log = optimised(graph)
    assert log.counts["shift_rows"] == log.counts["merge_products"] == 1
    constant = [node for node in after.nodes if isinstance(node.op, MatMul)]
    assert [node.operands[1].tensor.dims[-1] for node in constant] == [24, 16]
    assert_same(graph, after)
