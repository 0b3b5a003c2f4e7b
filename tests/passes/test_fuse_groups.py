"""GroupNormalization that exporters write as an InstanceNormalization of groups."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Mul
from tercet.runtime.ops.norm import InstanceNormalization
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, assert_same, kinds, make, normal, optimised

SHAPE = (2, 6, 5, 4)


def grouped(g: Graph, x: Value, number: int, back: tuple[int, ...] = SHAPE) -> Value:
    inner = apply(g, Reshape(), x, np.array([0, number, -1]))
    scale, shift = normal(number), normal(number)
    y = apply(g, InstanceNormalization(epsilon=1e-3), inner, scale, shift)
    return apply(g, Reshape(), y, np.array(back))


@pytest.mark.parametrize("number", [1, 2, 6])
@pytest.mark.parametrize("steps", ["", "*", "*+", "+"])
@pytest.mark.parametrize("row", [(6, 1, 1), (1, 6, 1, 1), (1,)], ids=str)
def test_scale_and_shift_are_its_own(number: int, steps: str, row: tuple[int, ...]) -> None:
    def build(g: Graph, x: Value) -> Value:
        y = grouped(g, x, number)
        for step in steps:
            y = apply(g, Mul() if step == "*" else Add(), y, normal(*row))
        return y

    graph = make(build, SHAPE)
    after, log = optimised(graph)
    assert kinds(after) == ["GroupNormalization"]
    assert log.counts["fuse_groups"] == 1
    assert_same(graph, after)


def test_heads_merged_to_rows_are_groups() -> None:
    """Channels of rows are what heads were (retention, xLSTM, RWKV)."""

    def build(g: Graph, x: Value) -> Value:
        rows = apply(g, Reshape(), x, np.array([10, 12]))
        y = grouped(g, rows, 3, (10, 12))
        return apply(g, Add(), apply(g, Mul(), y, normal(12)), normal(12))

    graph = make(build, (2, 5, 3, 4))
    after, _ = optimised(graph)
    assert sorted(kinds(after)) == ["GroupNormalization", "Reshape"]
    assert_same(graph, after)


def test_another_shape_is_no_group_norm() -> None:
    graph = make(lambda g, x: grouped(g, x, 2, (2, 3, 10, 4)), SHAPE)
    after, _ = optimised(graph)
    assert "GroupNormalization" not in kinds(after)
    assert_same(graph, after)


def test_what_varies_over_pixels_stays_behind() -> None:
    graph = make(lambda g, x: apply(g, Mul(), grouped(g, x, 2), normal(6, 5, 1)), SHAPE)
    after, _ = optimised(graph)
    assert kinds(after) == ["GroupNormalization", "Mul"]
    assert_same(graph, after)
