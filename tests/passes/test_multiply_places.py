"""Products of heads with a matrix for each place of an axis of their positions (MViT)."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.matmul import Einsum, MatMul
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, assert_same, make, normal, optimised

SIZE, COLUMNS = 6, 5
EQUATIONS = {"t": "bnthwc,tkc->bnthwk", "h": "bnthwc,hkc->bnthwk", "w": "bnthwc,wkc->bnthwk"}


def positions(axis: str, heads: int, pixels: tuple[int, ...], order=(0, 2, 1, 3)):
    width, length = heads * SIZE, int(np.prod(pixels))
    places = pixels["thw".index(axis)]

    def build(g: Graph, x: Value) -> Value:
        rows = apply(g, MatMul(), x, normal(width, width) / 4)
        split = apply(g, Reshape(), rows, np.array([0, length, heads, SIZE]))
        turned = apply(g, Transpose(perm=order), split)
        image = apply(g, Reshape(), turned, np.array([-1, heads, *pixels, SIZE]))
        table = normal(places, COLUMNS, SIZE)
        return apply(g, Einsum(equation=EQUATIONS[axis]), image, table)

    return build, (length, width)


@pytest.mark.parametrize("count", [1, 3, "batch"])
@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("axis", "thw")
def test_no_rows_are_moved_in_front_of_the_product(axis: str, heads: int, count: Dim) -> None:
    build, shape = positions(axis, heads, (5, 7, 32))
    graph = make(build, (count, *shape))
    after, log = optimised(graph)
    assert log.counts["multiply_places"] == 1
    last = [node for node in after.nodes if node.kind == "MatMul"][-1]
    before = list(after.nodes)[: list(after.nodes).index(last)]
    turns = [node.op for node in before if node.kind == "Transpose"]
    assert turns == ([Transpose(perm=(1, 0, 2))] if axis == "w" else [])
    assert_same(graph, after, count if isinstance(count, int) else 3, *shape)


FEW = {"few columns": ("h", 2, (8, 4, 4)), "few rows": ("w", 2, (2, 3, 9))}


@pytest.mark.parametrize("name", FEW)
def test_small_products_stay(name: str) -> None:
    axis, heads, pixels = FEW[name]
    build, shape = positions(axis, heads, pixels)
    _, log = optimised(make(build, (2, *shape)))
    assert "multiply_places" not in log.counts


def test_other_orders_stay() -> None:
    build, (length, width) = positions("h", 1, (5, 7, 32), (0, 2, 3, 1))
    graph = make(build, (2, length, width))
    after, log = optimised(graph)
    assert "multiply_places" not in log.counts
    assert_same(graph, after, 2, length, width)
