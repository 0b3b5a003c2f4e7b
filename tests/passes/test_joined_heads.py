"""Attention of two sequences at once: rows of both are read, normalized and joined in place."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Mul
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Slice, Split, Transpose
from tercet.runtime.ops.norm import RMSNormalization, Softmax
from tercet.runtime.ops.shape import Reshape, Squeeze

from .graphs import apply, assert_same, kinds, make, normal, optimised

TEXT, IMAGE, HEADS, SIZE = 5, 9, 3, 8
WIDTH = HEADS * SIZE


def heads_of(g: Graph, x: Value, length: int, *, normalized: bool) -> list[Value]:
    """Queries, keys and values [1, heads, length, size], of which the first two are normalized."""
    rows = apply(g, Add(), apply(g, MatMul(), x, normal(WIDTH, 3 * WIDTH)), normal(3 * WIDTH))
    parts = g.insert(Split(axis=-1, num_outputs=3), [rows], 3).outputs
    shape = np.array([1, length, HEADS, SIZE])
    found = [apply(g, Transpose(perm=(0, 2, 1, 3)), apply(g, Reshape(), p, shape)) for p in parts]
    if normalized:
        found[:2] = [apply(g, RMSNormalization(axis=-1), p, normal(SIZE)) for p in found[:2]]
    return found


def places_of(g: Graph, x: Value, length: int, *, how: str) -> list[Value]:
    """The same, as places of one tensor that is transposed as a whole (Flux)."""
    rows = apply(g, Add(), apply(g, MatMul(), x, normal(WIDTH, 3 * WIDTH)), normal(3 * WIDTH))
    cut = apply(g, Reshape(), rows, np.array([1, length, 3, HEADS, SIZE]))
    transposed = apply(g, Transpose(perm=(2, 0, 3, 1, 4)), cut)
    if how == "gathered":
        found = [apply(g, Gather(), transposed, np.array(i)) for i in range(3)]
    else:
        if how == "split":
            cuts = list(g.insert(Split(axis=0, num_outputs=3), [transposed], 3).outputs)
        else:
            bounds = [(np.array([i]), np.array([i + 1])) for i in range(3)]
            cuts = [apply(g, Slice(), transposed, *bound, np.array([0])) for bound in bounds]
        found = [apply(g, Squeeze(), part, np.array([0])) for part in cuts]
    found[:2] = [apply(g, RMSNormalization(axis=-1), p, normal(SIZE)) for p in found[:2]]
    return found


def joint(
    g: Graph, x: Value, *, normalized: bool = True, axis: int = 2, how: str = "split rows"
) -> Value:
    """An attention of the first rows and the others, each with layers of its own (SD3, Flux)."""
    ends = (0, TEXT, TEXT + IMAGE)
    cut = [apply(g, Slice(), x, *(np.array([n]) for n in (a, b, 1))) for a, b in pairwise(ends)]
    heads = partial(places_of, how=how)
    if how == "split rows":
        heads = partial(heads_of, normalized=normalized)
    parts = [heads(g, each, n) for each, n in zip(cut, (TEXT, IMAGE), strict=True)]
    q, k, v = (apply(g, Concat(axis=axis), *each) for each in zip(*parts, strict=True))
    scores = apply(g, MatMul(), q, apply(g, Transpose(perm=(0, 1, 3, 2)), k))
    weights = apply(g, Softmax(), apply(g, Mul(), scores, np.array(SIZE**-0.5, np.float32)))
    y = apply(g, Transpose(perm=(0, 2, 1, 3)), apply(g, MatMul(), weights, v))
    return apply(g, Reshape(), y, np.array([1, TEXT + IMAGE, WIDTH]))


@pytest.mark.parametrize("how", ["gathered", "split", "sliced"])
def test_places_are_split_as_rows(how: str) -> None:
    graph = make(lambda g, x: joint(g, x, how=how), (1, TEXT + IMAGE, WIDTH))
    after, _ = optimised(graph)
    found = kinds(after)
    assert "Transpose" not in found
    assert found.count("Concat") == 3
    assert all(len(node.output.tensor.dims) == 3 for node in after.nodes if node.kind == "Concat")
    norms = [node for node in after.nodes if isinstance(node.op, RMSNormalization)]
    views = [node.operands[0].producer for node in norms]
    makers = [view.operands[0].producer for view in views if view is not None]
    # Columns of the Split are read in place.
    assert [maker.kind for maker in makers if maker is not None] == ["Split"] * len(norms)
    assert norms
    assert_same(graph, after)


@pytest.mark.parametrize("normalized", [True, False])
def test_heads_are_joined_as_rows(normalized: bool) -> None:
    graph = make(lambda g, x: joint(g, x, normalized=normalized), (1, TEXT + IMAGE, WIDTH))
    after, log = optimised(graph)
    found = kinds(after)
    assert found.count("Attention") == 1
    assert "Transpose" not in found
    assert found.count("Concat") == 3
    assert all(len(node.output.tensor.dims) == 3 for node in after.nodes if node.kind == "Concat")
    assert log.counts["compose_views"]
    assert_same(graph, after)


def test_a_norm_that_is_read_twice_stays() -> None:
    def build(g: Graph, x: Value) -> Value:
        heads = apply(g, Transpose(perm=(0, 2, 1, 3)), x)
        normalized = apply(g, RMSNormalization(axis=-1), heads, normal(SIZE))
        joined = apply(g, Concat(axis=2), normalized, apply(g, Mul(), normalized, normal(SIZE)))
        return apply(g, Transpose(perm=(0, 1, 3, 2)), joined)

    graph = make(build, (2, 4, HEADS, SIZE))
    after, _ = optimised(graph)
    order = kinds(after)
    assert order.index("Transpose") < order.index("RMSNormalization")
    assert_same(graph, after)
