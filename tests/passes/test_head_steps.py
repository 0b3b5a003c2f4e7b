"""What works on heads behind an Attention, which are columns of rows nevertheless."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Array, Dim
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.elementwise import Mul
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.norm import LayerNormalization, RMSNormalization
from tercet.runtime.ops.reduce import ReduceMean
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, assert_same, kinds, make, normal, optimised

LENGTH, HEADS, SIZE = 5, 3, 4
WIDTH = HEADS * SIZE
BEHIND = Transpose(perm=(0, 2, 1, 3))
Step = Callable[[Graph, Value], Value]


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def network(step: Step, shape: tuple[Dim, ...] = (2, LENGTH, WIDTH)) -> Graph:
    """Return an attention whose heads a step reads before they are joined."""

    def build(g: Graph, x: Value) -> Value:
        def heads() -> Value:
            rows = apply(g, MatMul(), x, normal(WIDTH, WIDTH))
            return apply(g, BEHIND, apply(g, Reshape(), rows, ints(0, -1, HEADS, SIZE)))

        y = step(g, apply(g, Attention(), heads(), heads(), heads()))
        y = apply(g, Reshape(), apply(g, BEHIND, y), ints(0, -1, WIDTH))
        return apply(g, MatMul(), y, normal(WIDTH, WIDTH))

    return make(build, shape)


def times(*shape: int) -> Step:
    return lambda g, y: apply(g, Mul(), y, normal(*shape))


def by_row(g: Graph, y: Value) -> Value:
    """A number for each row of a head, as a gate gives it."""
    return apply(g, Mul(), y, apply(g, ReduceMean(keepdims=1), y, ints(-1)))


STEPS: dict[str, Step] = {
    "a number for each head": times(HEADS, 1, 1),
    "a number for each element of a head": times(SIZE),
    "of all axes": times(1, HEADS, 1, SIZE),
    "RMSNormalization": lambda g, y: apply(g, RMSNormalization(axis=-1), y, normal(SIZE)),
    "LayerNormalization": lambda g, y: apply(
        g, LayerNormalization(axis=3), y, normal(SIZE), normal(SIZE)
    ),
}


@pytest.mark.parametrize("shape", [(2, LENGTH, WIDTH), ("batch", LENGTH, WIDTH)])
@pytest.mark.parametrize("name", STEPS)
def test_heads_are_columns(name: str, shape: tuple[Dim, ...]) -> None:
    graph = network(STEPS[name], shape)
    after, log = optimised(graph)
    assert log.counts["join_heads"] == 1
    assert "Transpose" not in kinds(after)
    assert_same(graph, after, 2, LENGTH, WIDTH)


STAYING: dict[str, Step] = {
    "rows differ": times(1, 1, LENGTH, 1),
    "samples differ": times(2, 1, 1, 1),
    "several read the heads": by_row,
    "a norm of more axes": lambda g, y: apply(
        g, LayerNormalization(axis=2), y, normal(LENGTH, SIZE)
    ),
}


@pytest.mark.parametrize("name", STAYING)
def test_what_stays_apart(name: str) -> None:
    graph = network(STAYING[name])
    after, log = optimised(graph)
    assert "join_heads" not in log.counts
    assert_same(graph, after)


@pytest.mark.parametrize("factor", [(HEADS, 1, 1), (1, HEADS, 1, SIZE), (1, 1, LENGTH, 1)])
def test_queries_times_numbers_of_heads(factor: tuple[int, ...]) -> None:
    """Temperatures that Swin v2 learns; a number for each row is none of columns."""

    def build(g: Graph, x: Value) -> Value:
        def heads() -> Value:
            rows = apply(g, MatMul(), x, normal(WIDTH, WIDTH))
            return apply(g, BEHIND, apply(g, Reshape(), rows, ints(0, -1, HEADS, SIZE)))

        q = apply(
            g, Mul(), apply(g, RMSNormalization(axis=-1), heads(), normal(SIZE)), normal(*factor)
        )
        y = apply(g, BEHIND, apply(g, Attention(), q, heads(), heads()))
        return apply(g, Reshape(), y, ints(0, -1, WIDTH))

    graph = make(build, (2, LENGTH, WIDTH))
    after, log = optimised(graph)
    is_alike = LENGTH not in factor
    assert log.counts["join_heads"] == 1
    assert ("Transpose" not in kinds(after)) == is_alike
    assert_same(graph, after)
