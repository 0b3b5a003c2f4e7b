"""Heads of attentions between linear layers are padded to words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.elementwise import Abs, Add, Clip, Div, Mul
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Split
from tercet.runtime.ops.reduce import ReduceL2
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.options import Precision
from tercet.runtime.passes.attention import pad_heads

from .graphs import Build, apply, make, normal, passed, run

SHAPE = (2, 7, 12)


def layer(g: Graph, x: Value, width: int, *, bias: bool = True) -> Value:
    infer(g)
    y = apply(g, MatMul(), x, normal(x.tensor.dims[-1], width))
    return apply(g, Add(), y, normal(width)) if bias else y


def joined(g: Graph, x: Value, sizes: tuple[int, int, int], *, bias: bool = True) -> list[Value]:
    whole = layer(g, x, sum(sizes), bias=bias)
    given = g.constant(np.array(sizes))
    parts = g.insert(Split(axis=-1, num_outputs=3), [whole, given], 3).outputs
    infer(g)
    return list(parts)


def packed(g: Graph, x: Value) -> Value:
    y = apply(g, Attention(q_num_heads=3, kv_num_heads=3), *joined(g, x, (30, 30, 30)))
    return layer(g, y, 12)


def without_bias(g: Graph, x: Value) -> Value:
    parts = joined(g, x, (36, 36, 36), bias=False)
    y = apply(g, Attention(q_num_heads=3, kv_num_heads=3, scale=0.3), *parts, normal(3, 7, 7))
    return layer(g, y, 8, bias=False)


def grouped(g: Graph, x: Value) -> Value:
    """Two queries share keys, and values have another size."""
    y = apply(g, Attention(q_num_heads=4, kv_num_heads=2), *joined(g, x, (40, 20, 12)))
    return layer(g, y, 12)


def apart(g: Graph, x: Value) -> Value:
    """Queries have a separate layer; words of keys and values are whole already but for 12."""
    q, k, v = (layer(g, x, width) for width in (24, 24, 16))
    return layer(g, apply(g, Attention(q_num_heads=2, kv_num_heads=2), q, k, v), 12)


def normalized(
    g: Graph,
    rows: Value,
    *,
    axis: int = -1,
    least: float | None = 1e-12,
    alone: bool = True,
    count: int = 3,
) -> Value:
    """Divide each of so many heads by its norm."""
    infer(g)
    size = rows.tensor.dims[-1] // count
    heads = apply(g, Reshape(), rows, np.array([0, 0, count, size]))
    norm = apply(g, ReduceL2(), heads, np.array([axis]))
    if least is not None:
        norm = apply(g, Clip(), norm, np.array(least, np.float32))
    y = apply(g, Div(), heads if alone else apply(g, Abs(), heads), norm)
    return apply(g, Reshape(), y, np.array([0, 0, -1]))


def cosines(g: Graph, x: Value, **options: Any) -> Value:
    """Attention of SwinV2."""
    q, k, v = joined(g, x, (30, 30, 36))
    q, k = (normalized(g, part, **options) for part in (q, k))
    op = Attention(q_num_heads=3, kv_num_heads=3, scale=4.0)
    return layer(g, apply(g, op, q, k, v), 12)


def of_queries(g: Graph, x: Value) -> Value:
    """Attention with layers of their own, of which only queries are divided."""
    q, k, v = (layer(g, x, width) for width in (30, 30, 24))
    op = Attention(q_num_heads=3, kv_num_heads=3)
    return layer(g, apply(g, op, normalized(g, q), k, v), 12)


def padded(graph: Graph, precision: Precision = "float16") -> tuple[Graph, list[str]]:
    return passed(graph, pad_heads.run, precision)


@pytest.mark.parametrize("build", [packed, without_bias, grouped, apart, cosines, of_queries])
def test_results_stay(build: Build) -> None:
    graph = make(build, SHAPE)
    copy, said = padded(graph)
    assert len(said) == 1
    (node,) = (node for node in copy.nodes if isinstance(node.op, Attention))
    op = node.op
    assert isinstance(op, Attention)
    heads = (op.q_num_heads, op.kv_num_heads, op.kv_num_heads)
    for value, count in zip(node.operands, heads, strict=False):
        assert value.tensor.dims[-1] % (8 * (count or 0)) == 0
    x = normal(*SHAPE)
    expected, found = (run(each, x, np.float64) for each in (graph, copy))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def words(g: Graph, x: Value) -> Value:
    y = apply(g, Attention(q_num_heads=3, kv_num_heads=3), *joined(g, x, (48, 48, 24)))
    return layer(g, y, 12)


def tiny(g: Graph, x: Value) -> Value:
    """Heads would become more than twice as large."""
    y = apply(g, Attention(q_num_heads=3, kv_num_heads=3), *joined(g, x, (9, 9, 9)))
    return layer(g, y, 12)


def read_elsewhere(g: Graph, x: Value) -> Value:
    parts = joined(g, x, (30, 30, 30))
    y = apply(g, Attention(q_num_heads=3, kv_num_heads=3), *parts)
    return layer(g, apply(g, Mul(), y, parts[0]), 12)


def same(g: Graph, x: Value) -> Value:
    """Keys are the values."""
    q, k = layer(g, x, 30), layer(g, x, 30)
    return layer(g, apply(g, Attention(q_num_heads=3, kv_num_heads=3), q, k, k), 12)


def of_places(g: Graph, x: Value) -> Value:
    return cosines(g, x, axis=1)


def without_bound(g: Graph, x: Value) -> Value:
    return cosines(g, x, least=None)


def of_others(g: Graph, x: Value) -> Value:
    return cosines(g, x, alone=False)


def of_rows(g: Graph, x: Value) -> Value:
    """Norms of all heads at once."""
    return cosines(g, x, count=1)


def of_parts(g: Graph, x: Value) -> Value:
    return cosines(g, x, count=6)


@pytest.mark.parametrize(
    "build",
    [words, tiny, read_elsewhere, same, of_places, without_bound, of_others, of_rows, of_parts],
)
def test_others_stay(build: Build) -> None:
    assert not padded(make(build, SHAPE))[1]


def test_keys_that_are_results_stay() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, SHAPE))
    op = Attention(q_num_heads=3, kv_num_heads=3)
    node = graph.insert(op, joined(graph, x, (30, 30, 30)), 3)
    graph.set_outputs({"y": layer(graph, node.output, 12), "keys": node.outputs[1]})
    infer(graph)
    assert not padded(graph)[1]


def test_float32_reads_elements() -> None:
    assert not padded(make(packed, SHAPE), "float32")[1]
