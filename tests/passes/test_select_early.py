"""Rows that are selected behind what computes them are selected before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.elementwise import Add, Gelu, Mul, Sigmoid
from tercet.runtime.ops.gather import Gather, GatherND
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.movement import Concat, Slice, Split, Transpose
from tercet.runtime.ops.norm import LayerNormalization, RMSNormalization, Softmax
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.passes.products import select_early

from .graphs import Build, apply, assert_same, kinds, make, normal, optimised, passed

BATCH, ROWS, WIDTH = 2, 10, 8


def first(g: Graph, x: Value) -> Value:
    return apply(g, Gather(axis=1), x, np.array(0))


def several(g: Graph, x: Value) -> Value:
    return apply(g, Gather(axis=1), x, np.array([3, -1, 3]))


def last(g: Graph, x: Value) -> Value:
    return apply(g, Slice(), x, np.array([-1]), np.array([2**63 - 1]), np.array([1]))


def in_int32(g: Graph, x: Value) -> Value:
    bounds = (np.array([n], np.int32) for n in (2, 3, 1, 1))
    return apply(g, Slice(), x, *bounds)


def of_each(g: Graph, x: Value) -> Value:
    return apply(g, GatherND(batch_dims=1), x, np.array([[[3]], [[7]]]))


SELECTIONS = [first, several, last, in_int32, of_each]


def layer(g: Graph, x: Value) -> Value:
    y = apply(
        g,
        MatMul(),
        apply(g, LayerNormalization(), x, normal(WIDTH), normal(WIDTH)),
        normal(WIDTH, 24),
    )
    y = apply(g, Gelu(), apply(g, Add(), y, normal(24)))
    return apply(g, Add(), x, apply(g, MatMul(), y, normal(24, WIDTH)))


def attention(g: Graph, x: Value, mask: np.ndarray | None = None, **how: Any) -> Value:
    n = apply(g, RMSNormalization(), x, normal(WIDTH))
    q, k, v = (apply(g, MatMul(), n, normal(WIDTH, WIDTH)) for _ in range(3))
    op = Attention(q_num_heads=2, kv_num_heads=2, **how)
    y = apply(g, op, q, k, v, mask)
    return apply(g, Add(), apply(g, MatMul(), y, normal(WIDTH, WIDTH)), x)


def rows_of(graph: Graph, kind: str) -> list[object]:
    """Return the number of rows of the results of all nodes of a kind."""
    return [node.output.tensor.dims[1] for node in graph.nodes if node.kind == kind]


@pytest.mark.parametrize("select", SELECTIONS, ids=lambda f: f.__name__)
def test_a_layer_computes_the_rows_that_are_read(select: Build) -> None:
    graph = make(lambda g, x: select(g, layer(g, x)), (BATCH, ROWS, WIDTH))
    after, _ = optimised(graph)
    count = 3 if select is several else 1
    assert rows_of(after, "MatMul") == [count, count]
    assert rows_of(after, "LayerNormalization") == [count]
    assert_same(graph, after)


@pytest.mark.parametrize("select", [first, last], ids=lambda f: f.__name__)
@pytest.mark.parametrize("mask", [None, (ROWS,), (1, 1, ROWS), (1, ROWS, ROWS)], ids=str)
def test_an_attention_computes_the_queries_that_are_read(
    select: Build, mask: tuple[int, ...] | None
) -> None:
    bias = None if mask is None else normal(*mask)
    if bias is not None and bias.ndim == 1:
        bias = np.tile(bias, (ROWS, 1))
    graph = make(lambda g, x: select(g, attention(g, x, bias)), (BATCH, ROWS, WIDTH))
    after, _ = optimised(graph)
    assert rows_of(after, "Attention") == [1]
    assert sorted(map(str, rows_of(after, "MatMul")))[:2] == ["1", "1"]
    assert_same(graph, after)


@pytest.mark.parametrize("select", [first, several, last], ids=lambda f: f.__name__)
def test_queries_among_keys_and_values(select: Build) -> None:
    """One product computes all three of every row; only some queries attend."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, MatMul(), x, normal(WIDTH, 3 * WIDTH))
        q, k, v = g.insert(Split(axis=-1, num_outputs=3), [y], 3).outputs
        y = apply(g, Attention(q_num_heads=2, kv_num_heads=2), q, k, v)
        return select(g, apply(g, Add(), apply(g, MatMul(), y, normal(WIDTH, WIDTH)), x))

    graph = make(build, (BATCH, ROWS, WIDTH))
    after, _ = optimised(graph)
    count = 3 if select is several else 1
    assert rows_of(after, "Attention") == [count]
    assert rows_of(after, "MatMul") == [ROWS, count]
    assert_same(graph, after)


@pytest.mark.parametrize("norm", [LayerNormalization(axis=2), RMSNormalization()], ids=str)
def test_a_classifier_reads_a_norm_without_a_view(norm: Op) -> None:
    """The axis of a single row is dropped in front of the norm."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, norm, apply(g, Gelu(), x), normal(WIDTH))
        return apply(g, Gemm(transB=1), first(g, y), normal(5, WIDTH))

    graph = make(build, (BATCH, ROWS, WIDTH))
    after, _ = optimised(graph)
    assert kinds(after) == ["Gather", "Gelu", "Squeeze", type(norm).__name__, "Gemm"]
    assert_same(graph, after)


@pytest.mark.parametrize("how", [{"is_causal": 1}, {"left_window_size": 2}], ids=str)
def test_queries_that_know_where_they_stand_are_all_computed(how: dict[str, Any]) -> None:
    graph = make(lambda g, x: first(g, attention(g, x, **how)), (BATCH, ROWS, WIDTH))
    after, _ = optimised(graph)
    assert rows_of(after, "Attention") == [ROWS]
    assert_same(graph, after)


def test_unknown_lengths() -> None:
    graph = make(lambda g, x: last(g, layer(g, x)), ("batch", "rows", WIDTH))
    after, log = optimised(graph)
    assert log.counts["select_early"] >= 5
    assert_same(graph, after, 3, 5, WIDTH)
    assert_same(graph, after, 1, 1, WIDTH)


def viewed(g: Graph, x: Value) -> Value:
    parts = apply(g, Reshape(), x, np.array([0, 0, 2, -1]))
    return apply(g, Softmax(), parts)


def transposed(g: Graph, x: Value) -> Value:
    return apply(g, Sigmoid(), apply(g, Transpose(perm=(0, 2, 1)), x))


def joined(g: Graph, x: Value) -> Value:
    return apply(g, Concat(axis=2), apply(g, Sigmoid(), x), x)


def broadcast(g: Graph, x: Value) -> Value:
    y = apply(g, Mul(), x, normal(ROWS, 1))
    return apply(g, Add(), apply(g, Sigmoid(), y), normal(BATCH, 1, WIDTH))


@pytest.mark.parametrize("build", [viewed, transposed, joined, broadcast], ids=lambda f: f.__name__)
@pytest.mark.parametrize("select", [first, several, last], ids=lambda f: f.__name__)
def test_other_nodes_that_are_passed(build: Build, select: Build) -> None:
    shape = (BATCH, WIDTH, ROWS) if build is transposed else (BATCH, ROWS, WIDTH)
    graph = make(lambda g, x: select(g, build(g, x)), shape)
    after, log = optimised(graph)
    assert log.counts["select_early"]
    assert_same(graph, after)


@pytest.mark.parametrize("select", SELECTIONS, ids=lambda f: f.__name__)
def test_both_parts_of_a_gated_layer(select: Build) -> None:
    """The selection passes the Split, so that both parts become products of their own."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, MatMul(), x, normal(WIDTH, 48))
        a, b = g.insert(Split(axis=-1, num_outputs=2), [y], 2).outputs
        y = apply(g, Mul(), apply(g, Mul(), a, apply(g, Sigmoid(), a)), b)
        return select(g, apply(g, MatMul(), y, normal(24, WIDTH)))

    graph = make(build, (BATCH, ROWS, WIDTH))
    after, _ = optimised(graph)
    assert "Split" not in kinds(after)
    assert rows_of(after, "MatMul") == [3 if select is several else 1] * 3
    assert_same(graph, after)


@pytest.mark.parametrize("places", [(2, [2]), ([2], 2), (-1, -1), ([-1], [-1])], ids=str)
def test_rows_of_all_parts_of_a_split(places: tuple[Any, Any]) -> None:
    """One may drop the axis that another keeps."""
    graph = make(lambda g, x: apply(g, Sigmoid(), x), (BATCH, ROWS, WIDTH))
    parts = graph.insert(Split(axis=-1, num_outputs=2), [graph.outputs["y"]], 2).outputs
    chosen = (
        apply(graph, Gather(axis=1), part, np.array(place))
        for part, place in zip(parts, places, strict=True)
    )
    graph.set_outputs(dict(zip("yz", chosen, strict=True)))
    infer(graph)
    after, said = passed(graph, select_early.run, "float32")
    assert len(said) == 2
    assert_same(graph, after)


def test_rows_of_a_gemm() -> None:
    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Gemm(transB=1), x, normal(5, WIDTH), normal(ROWS, 1))
        return apply(g, Gather(axis=0), y, np.array([4]))

    graph = make(build, (ROWS, WIDTH))
    after, _ = optimised(graph)
    assert_same(graph, after)
    assert all(
        node.output.tensor.dims == (1, 5) for node in after.nodes if node.kind in ("Gemm", "MatMul")
    )


def kept(select: Build, build: Callable[[Graph, Value], Value]) -> bool:
    graph = make(lambda g, x: select(g, build(g, x)), (BATCH, ROWS, WIDTH))
    after, log = optimised(graph)
    assert_same(graph, after)
    return not log.counts.get("select_early")


def test_most_rows_are_not_selected_early() -> None:
    def most(g: Graph, x: Value) -> Value:
        return apply(g, Slice(), x, np.array([1]), np.array([ROWS]), np.array([1]))

    assert kept(most, layer)


def test_no_rows_of_one_that_operands_are_broadcast_to() -> None:
    def build(g: Graph, x: Value) -> Value:
        none = np.array([], np.int64)
        return apply(g, Gather(axis=1), apply(g, Sigmoid(), x), none)

    graph = make(build, (BATCH, 1, WIDTH))
    after, _ = optimised(graph)
    assert after.outputs["y"].tensor.shape == (BATCH, 0, WIDTH)
    assert_same(graph, after)


def test_rows_that_others_read_are_computed() -> None:
    def build(g: Graph, x: Value) -> Value:
        y = layer(g, x)
        return apply(g, Add(), y, first_row(g, y))

    def first_row(g: Graph, y: Value) -> Value:
        return apply(g, Gather(axis=1), y, np.array([0]))

    assert kept(lambda g, x: x, build)


def test_columns_of_norms_depend_on_one_another() -> None:
    def column(g: Graph, x: Value) -> Value:
        return apply(g, Gather(axis=2), x, np.array([0]))

    assert kept(column, lambda g, x: apply(g, LayerNormalization(), x, normal(WIDTH)))


def test_layers_in_a_row() -> None:
    """A residual is read twice; both selections are one, which then passes the layer before."""

    def build(g: Graph, x: Value) -> Value:
        return first(g, layer(g, layer(g, attention(g, x))))

    graph = make(build, (BATCH, ROWS, WIDTH))
    after, _ = optimised(graph)
    assert rows_of(after, "MatMul").count(ROWS) == 1  # keys and values, together
    assert kinds(after).count("Gather") == 2  # of the normalized rows, and of the residual
    assert_same(graph, after)


@pytest.mark.parametrize("rows", [ROWS, "rows"])
@pytest.mark.parametrize(("start", "end"), [(ROWS - 1, ROWS + 2), (-1, ROWS + 5), (ROWS, ROWS + 1)])
def test_a_slice_may_end_behind_the_last_row(rows: Any, start: int, end: int) -> None:
    """A Reshape keeps as many rows as there are, none of them included."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Reshape(), apply(g, Gelu(), x), np.array([0, 0, 2, WIDTH // 2]))
        return apply(g, Slice(), y, np.array([start]), np.array([end]), np.array([1]))

    graph = make(build, (BATCH, rows, WIDTH))
    after, _ = optimised(graph)
    assert_same(graph, after, BATCH, ROWS, WIDTH)
