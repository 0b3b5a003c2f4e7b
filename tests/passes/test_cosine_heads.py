"""Queries and keys that are divided by their norms at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.elementwise import Add, Clip, Div, Max
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Split
from tercet.runtime.ops.reduce import ReduceL2
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.passes.attention import cosine_heads

from .graphs import Build, apply, assert_same, kinds, make, normal, optimised, passed

SHAPE, HEADS, SIZE = (2, 7, 12), 3, 8
WIDTH = HEADS * SIZE


def normalized(
    g: Graph,
    rows: Value,
    *,
    heads: int = HEADS,
    least: float = 1e-12,
    maximum: bool = False,
    dims: Sequence[int] = (),
) -> Value:
    """Divide heads by their norms, as torch's normalize does."""
    infer(g)
    dims = dims or (0, 0, heads, rows.tensor.dims[-1] // heads)
    x = apply(g, Reshape(), rows, np.array(dims))
    norm = apply(g, ReduceL2(), x, np.array([-1]))
    norm = apply(g, Max() if maximum else Clip(), norm, np.array(least, np.float32))
    return apply(g, Reshape(), apply(g, Div(), x, norm), np.array([*dims[:2], -1]))


def parts(g: Graph, x: Value, *sizes: int) -> list[Value]:
    whole = apply(g, MatMul(), x, normal(SHAPE[-1], sum(sizes)))
    given = g.constant(np.array(sizes))
    op = Split(axis=-1, num_outputs=len(sizes))
    values = list(g.insert(op, [whole, given], len(sizes)).outputs)
    infer(g)
    return values


def attended(g: Graph, q: Value, k: Value, v: Value) -> Value:
    op = Attention(q_num_heads=HEADS, kv_num_heads=HEADS, scale=4.0)
    return apply(g, op, q, k, v)


def packed(g: Graph, x: Value, **options: Any) -> Value:
    q, k, v = parts(g, x, WIDTH, WIDTH, WIDTH)
    return attended(g, normalized(g, q, **options), normalized(g, k, **options), v)


def behind_values(g: Graph, x: Value) -> Value:
    """Queries and keys are the last two of four parts."""
    v, more, q, k = parts(g, x, WIDTH, 5, WIDTH, WIDTH)
    y = attended(g, normalized(g, q), normalized(g, k), v)
    return apply(g, Add(), apply(g, MatMul(), more, normal(5, WIDTH)), y)


def of_two(g: Graph, x: Value) -> Value:
    """Queries and keys are all that is cut."""
    q, k = parts(g, x, WIDTH, WIDTH)
    v = apply(g, MatMul(), x, normal(SHAPE[-1], WIDTH))
    return attended(g, normalized(g, q), normalized(g, k), v)


def with_maximum(g: Graph, x: Value) -> Value:
    return packed(g, x, maximum=True)


@pytest.mark.parametrize("build", [packed, behind_values, of_two, with_maximum])
def test_one_norm_for_both(build: Build) -> None:
    graph = make(build, SHAPE)
    after, said = passed(graph, cosine_heads.run, "float32")
    assert len(said) == 1
    assert kinds(after).count("ReduceL2") == kinds(after).count("Div") == 1
    assert_same(graph, after)


def test_halves_are_joined_behind_their_casts() -> None:
    after, log = optimised(make(packed, SHAPE), precision="float16")
    assert log.counts["cosine_heads"] == 1
    assert kinds(after).count("ReduceL2") == 1


def keys_first(g: Graph, x: Value) -> Value:
    k, q, v = parts(g, x, WIDTH, WIDTH, WIDTH)
    return attended(g, normalized(g, q), normalized(g, k), v)


def other_bounds(g: Graph, x: Value) -> Value:
    q, k, v = parts(g, x, WIDTH, WIDTH, WIDTH)
    return attended(g, normalized(g, q), normalized(g, k, least=0.5), v)


def one_alone(g: Graph, x: Value) -> Value:
    q, k, v = parts(g, x, WIDTH, WIDTH, WIDTH)
    return attended(g, normalized(g, q), k, v)


def other_heads(g: Graph, x: Value) -> Value:
    q, k, v = parts(g, x, WIDTH, WIDTH, WIDTH)
    return attended(g, normalized(g, q), normalized(g, k, heads=2 * HEADS), v)


def read_twice(g: Graph, x: Value) -> Value:
    q, k, v = parts(g, x, WIDTH, WIDTH, WIDTH)
    return apply(g, Add(), attended(g, normalized(g, q), normalized(g, k), v), q)


def other_rows(g: Graph, x: Value) -> Value:
    """Heads are cut from halves of rows."""
    batch, rows, size = SHAPE[0], 2 * SHAPE[1], SIZE // 2
    q, k, v = parts(g, x, WIDTH, WIDTH, WIDTH)
    q, k = (normalized(g, each, dims=(batch, rows, HEADS, size)) for each in (q, k))
    return attended(g, q, k, apply(g, Reshape(), v, np.array([batch, rows, -1])))


def in_rows(g: Graph, part: Value, cut: list[int], rows: list[int]) -> Value:
    """Divide what is cut in one way by its norms, and join it in another."""
    x = apply(g, Reshape(), part, np.array(cut))
    norm = apply(g, Clip(), apply(g, ReduceL2(), x, np.array([-1])), np.array(0.1, np.float32))
    return apply(g, Reshape(), apply(g, Div(), x, norm), np.array(rows))


def heads_as_rows(g: Graph, x: Value) -> Value:
    """Heads attend to each other, too."""
    q, k, v = parts(g, x, WIDTH, WIDTH, WIDTH)
    cut, rows = [2, 7, HEADS, SIZE], [2, 7 * HEADS, SIZE]
    q, k = (in_rows(g, part, cut, rows) for part in (q, k))
    v = apply(g, Reshape(), v, np.array(rows))
    return apply(g, Attention(q_num_heads=1, kv_num_heads=1), q, k, v)


def longer_rows(g: Graph, x: Value) -> Value:
    """Parts of several rows are behind each other where norms are computed."""
    q, k, v = parts(g, x, WIDTH, WIDTH, WIDTH)
    cut, rows = [2, 1, 7 * HEADS, SIZE], [2, 7, WIDTH]
    q, k = (in_rows(g, part, cut, rows) for part in (q, k))
    return attended(g, q, k, v)


@pytest.mark.parametrize(
    "build",
    [
        keys_first,
        other_bounds,
        one_alone,
        other_heads,
        other_rows,
        read_twice,
        heads_as_rows,
        longer_rows,
    ],
)
def test_others_stay(build: Build) -> None:
    assert not passed(make(build, SHAPE), cosine_heads.run, "float32")[1]
