"""What is added to transposed tensors that are transposed back is transposed instead."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Mul, Sub
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, assert_same, kinds, make, normal, optimised

B, T, H, D = 3, 5, 2, 4
Build = Callable[[Graph, Value], Value]


def heads(g: Graph, x: Value) -> Value:
    cut = apply(g, Reshape(), x, np.array([B, T, H, D]))
    return apply(g, Transpose(perm=(0, 2, 1, 3)), cut)


def rows(g: Graph, x: Value) -> Value:
    transposed = apply(g, Transpose(perm=(0, 2, 1, 3)), x)
    return apply(g, Reshape(), transposed, np.array([B, T, H * D]))


def mixed(g: Graph, x: Value) -> Value:
    return apply(g, MatMul(), normal(T, T), heads(g, x))


def added(g: Graph, x: Value) -> Value:
    return rows(g, apply(g, Add(), heads(g, x), mixed(g, x)))


def subtracted(g: Graph, x: Value) -> Value:
    return rows(g, apply(g, Sub(), mixed(g, x), heads(g, x)))


def scaled(g: Graph, x: Value) -> Value:
    return rows(g, apply(g, Mul(), mixed(g, x), normal(B, H, T, D)))


@pytest.mark.parametrize("build", [added, subtracted, scaled])
def test_rows_are_added_to(build: Build) -> None:
    graph = make(build, (B, T, H * D))
    after, log = optimised(graph, skip=("sink_transposes", "compose_moves"))
    assert log.counts["compose_views"] >= 1
    assert kinds(after)[-1] in ("Add", "Sub", "Mul")  # nothing is transposed behind the sum
    assert_same(graph, after)


def other_order(g: Graph, x: Value) -> Value:
    transposed = apply(g, Transpose(perm=(0, 1, 3, 2)), apply(g, Add(), heads(g, x), mixed(g, x)))
    return apply(g, Reshape(), transposed, np.array([B, T, H * D]))


def read_twice(g: Graph, x: Value) -> Value:
    both = apply(g, Add(), heads(g, x), mixed(g, x))
    return apply(g, Add(), rows(g, both), apply(g, Reshape(), both, np.array([B, T, H * D])))


def repeated(g: Graph, x: Value) -> Value:
    return rows(g, apply(g, Add(), heads(g, x), normal(1, H, 1, D)))


def made_heads(g: Graph, x: Value) -> Value:
    """Rows of [t, b, c], added before they become heads (Conditional DETR)."""
    transposed = apply(g, Transpose(perm=(1, 0, 2)), x)
    total = apply(g, Add(), transposed, normal(T, B, H * D))
    back = apply(g, Transpose(perm=(1, 0, 2)), total)
    return apply(g, Reshape(), back, np.array([B, T, H, D]))


@pytest.mark.parametrize("build", [other_order, read_twice, repeated, made_heads])
def test_what_stays(build: Build) -> None:
    graph = make(build, (B, T, H * D))
    after, log = optimised(graph, skip=("sink_transposes", "compose_moves"))
    assert "before it is transposed" not in " ".join(each.text for each in log)
    assert_same(graph, after)
