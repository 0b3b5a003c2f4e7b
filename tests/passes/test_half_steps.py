"""Recurrences that exporters unroll have one type in all their steps."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Mul, Sigmoid
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Slice

from .graphs import apply, make, normal
from .test_to_half import halved, run

STEPS, WIDTH = 24, 8


def place(g: Graph, x: Value, step: int) -> Value:
    begin, end, axes = (np.array([each], np.int64) for each in (step, step + 1, 0))
    return apply(g, Slice(), x, begin, end, axes)


def states(g: Graph, x: Value, factor: float) -> Value:
    """Weigh the state before by a gate, and add a row, one step after the other (Mamba)."""
    gates = apply(g, Sigmoid(), apply(g, MatMul(), x, normal(WIDTH, WIDTH)))
    rows = apply(g, MatMul(), x, normal(WIDTH, WIDTH))
    rows = apply(g, Mul(), rows, np.full(1, factor, np.float32))
    state, found = place(g, rows, 0), list[Value]()
    for step in range(1, STEPS):
        weighed = apply(g, Mul(), state, place(g, gates, step))
        state = apply(g, Add(), weighed, place(g, rows, step))
        found.append(state)
    return apply(g, Concat(axis=0), *found)


@pytest.mark.parametrize(("factor", "dtype"), [(1, float16), (15, float32)])
def test_all_steps_have_one_type(factor: float, dtype: DType) -> None:
    """Sums of the last steps may be beyond float16 where those of the first ones are not."""

    def build(g: Graph, x: Value) -> Value:
        return states(g, x, factor)

    graph = make(build, (STEPS, WIDTH))
    after = halved(graph)
    sums = [node.output.tensor.dtype for node in after.nodes if isinstance(node.op, Add)]
    assert sums == [dtype] * (STEPS - 1)
    x = normal(STEPS, WIDTH)
    exact = run(graph, x=x)
    assert np.abs(run(after, x=x) - exact).max() < 5e-3 * np.abs(exact).max()
