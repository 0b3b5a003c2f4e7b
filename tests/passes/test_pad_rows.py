"""Rows of a class token beside those of patches are rows of the same product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Expand, Transpose
from tercet.runtime.ops.shape import Reshape, Shape

from .graphs import apply, assert_same, kinds, make, normal, optimised

WIDTH, ROWS = 8, 16


def patches(g: Graph, x: Value, weights: np.ndarray, *, bias: bool = True) -> Value:
    """Return rows of patches of 2x2 pixels of an image, multiplied by filters."""
    op = Conv(strides=(2, 2))
    y = apply(g, op, x, weights, *([normal(WIDTH)] if bias else []))
    y = apply(g, Reshape(), y, np.array([0, WIDTH, -1]))
    return apply(g, Transpose(perm=(0, 2, 1)), y)


def tokens(
    *,
    shape: tuple[Dim, ...] = (2, 3, 8, 8),
    front: int = 1,
    behind: int = 0,
    positions: str = "behind",
    expanded: bool = False,
    bias: bool = True,
    axis: int = 1,
    between: bool = False,
    twice: bool = False,
    weight: float = 1.0,
) -> Graph:
    """Return what a vision transformer begins with."""

    def token(g: Graph, x: Value, count: int) -> Value | np.ndarray:
        data = normal(1, count, WIDTH)
        if not expanded:
            return np.repeat(data, 2, 0)
        batch = apply(g, Shape(end=1), x)
        sizes = apply(g, Concat(axis=0), batch, np.array([count, WIDTH]))
        return apply(g, Expand(), g.constant(data), sizes)

    def build(g: Graph, x: Value) -> Value:
        weights = normal(WIDTH, 3, 2, 2)
        weights[0, 0, 0, 0] *= weight
        rows = patches(g, x, weights, bias=bias)
        if between:
            rows = apply(g, Relu(), rows)
        if positions == "before":
            rows = apply(g, Add(), rows, normal(1, ROWS, WIDTH))
        counts = [front] if front else []
        parts: list[Any] = [*(token(g, x, n) for n in counts), rows]
        parts += [token(g, x, behind)] if behind else []
        y = apply(g, Concat(axis=axis), *parts)
        if positions == "behind":
            y = apply(g, Add(), y, normal(1, front + ROWS + behind, WIDTH))
        y = apply(g, MatMul(), y, normal(WIDTH, 5))
        return (
            apply(g, Concat(axis=1), y, apply(g, MatMul(), rows, normal(WIDTH, 5))) if twice else y
        )

    return make(build, shape)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"expanded": True},
        {"expanded": True, "shape": ("batch", 3, 8, 8)},
        {"positions": "before"},
        {"positions": "none", "bias": False},
        {"front": 2},
        {"front": 0, "behind": 1},
        {"behind": 1},
    ],
    ids=str,
)
def test_a_class_token(how: dict[str, Any]) -> None:
    graph = tokens(**how)
    after, log = optimised(graph)
    assert log.counts["pad_rows"] == 1
    wanted = ["Reshape", "Transpose", "Reshape", "Pad", "MatMul", "Add", "MatMul"]
    assert [kind for kind in kinds(after) if kind != "Shape"] == wanted
    assert_same(graph, after, 2, 3, 8, 8)


@pytest.mark.parametrize(
    "how",
    [
        {"front": 3},
        {"axis": 0, "positions": "none"},
        {"between": True},
        {"twice": True},
        {"weight": float("inf")},
    ],
    ids=str,
)
def test_what_stays(how: dict[str, Any]) -> None:
    if how.get("axis") == 0:
        how = {**how, "front": ROWS}
    _, log = optimised(tokens(**how))
    assert "pad_rows" not in log.counts
    assert log.counts["unfold_patches"] == 1 or how.get("between")


def test_tokens_of_each_sample_stay() -> None:
    def build(g: Graph, x: Value) -> Value:
        rows = patches(g, x, normal(WIDTH, 3, 2, 2))
        return apply(g, Concat(axis=1), normal(2, 1, WIDTH), rows)

    graph = make(build, (2, 3, 8, 8))
    after, log = optimised(graph)
    assert "pad_rows" not in log.counts
    assert_same(graph, after, 2, 3, 8, 8)
