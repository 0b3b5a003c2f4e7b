"""Weights of a product's terms move from the factor that products share to the other one."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import int64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Cast, Mul, Sigmoid
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Slice, Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.reduce import ReduceMax
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.passes.products import weigh_terms

from .graphs import apply, assert_same, kinds, make, normal, passed

SAMPLES, LENGTH, HEADS, SIZE, STATE = 2, 6, 3, 4, 5
SHAPE = (SAMPLES, LENGTH, HEADS, SIZE + 1 + STATE)


def part(g: Graph, x: Value, begin: int, end: int, heads: int = HEADS) -> Value:
    """Return columns of heads, of the first ones alone if there are fewer."""
    bounds = np.array([0, begin]), np.array([heads, end]), np.array([2, 3])
    return apply(g, Sigmoid(), apply(g, Slice(), x, *bounds))


def states(g: Graph, x: Value, *, left: bool, shared: int = 1, wide: bool = False) -> Value:
    """Sums over time of each head's elements times what heads share, which decays (Mamba2)."""
    own = part(g, x, 0, SIZE)  # [samples, time, heads, size]
    decay = part(g, x, SIZE, SIZE + 1)
    among = part(g, x, SIZE + 1, SIZE + 1 + STATE, shared)
    if wide:
        decay = apply(g, Mul(), decay, normal(SAMPLES, LENGTH, HEADS, STATE))
    weighed = apply(g, Mul(), among, decay)
    if left:
        a = apply(g, Transpose(perm=(0, 2, 3, 1)), weighed)
        return apply(g, MatMul(), a, apply(g, Transpose(perm=(0, 2, 1, 3)), own))
    a = apply(g, Transpose(perm=(0, 2, 3, 1)), own)
    return apply(g, MatMul(), a, apply(g, Transpose(perm=(0, 2, 1, 3)), weighed))


@pytest.mark.parametrize("left", [False, True])
def test_states_of_heads(left: bool) -> None:
    before = make(lambda g, x: states(g, x, left=left), SHAPE)
    after, said = passed(before, weigh_terms.run, "float32")
    assert len(said) == 1
    (product,) = (node for node in after.nodes if node.kind == "MatMul")
    assert product.operands[int(not left)].tensor.size == SAMPLES * LENGTH * STATE
    assert kinds(after).count("Mul") == 1
    assert_same(before, after)


def of_each_head(g: Graph, x: Value) -> Value:
    """What is weighed is different for each head: neither factor is smaller than before."""
    return states(g, x, left=False, shared=HEADS)


def of_columns(g: Graph, x: Value) -> Value:
    """Weights of columns as well as of terms."""
    return states(g, x, left=False, wide=True)


def of_lines(g: Graph, x: Value) -> Value:
    """Weights of lines, not of terms."""
    rows = apply(g, Reshape(), part(g, x, 0, SIZE), np.array([SAMPLES, LENGTH, HEADS * SIZE]))
    by = apply(g, Softmax(), shared_rows(g, x))
    among = apply(g, Mul(), by, np.full((SAMPLES, LENGTH, 1), 2, np.float32))
    return apply(g, MatMul(), apply(g, Transpose(perm=(0, 2, 1)), among), rows)


def of_equal_terms(g: Graph, x: Value) -> Value:
    """What is weighed has one term, which weights repeat."""
    a = apply(g, Transpose(perm=(0, 2, 3, 1)), part(g, x, 0, SIZE))
    decay = apply(g, Transpose(perm=(0, 2, 1, 3)), part(g, x, SIZE, SIZE + 1))
    line = apply(g, Reshape(), normal(SAMPLES, STATE), np.array([SAMPLES, 1, 1, STATE]))
    line = apply(g, Mul(), line, apply(g, ReduceMax(), x))
    return apply(g, MatMul(), a, apply(g, Mul(), decay, line))


def shared_rows(g: Graph, x: Value) -> Value:
    return apply(g, Reshape(), part(g, x, 0, STATE, 1), np.array([SAMPLES, LENGTH, STATE]))


@pytest.mark.parametrize("build", [of_each_head, of_columns, of_lines, of_equal_terms])
def test_other_weights_stay(build) -> None:
    assert not passed(make(build, SHAPE), weigh_terms.run, "float32")[1]


def test_weights_of_unknown_sizes_stay() -> None:
    """Sizes of a product follow from what its factors have; those of weights may be unknown."""
    numbers = np.array([0], np.int64)

    def build(g: Graph, x: Value) -> Value:
        ends = apply(g, Cast(to=int64), apply(g, ReduceMax(keepdims=0), x))
        by = apply(g, Slice(), normal(1), numbers, apply(g, Reshape(), ends, np.array([1])))
        among = apply(g, Mul(), x, apply(g, Sigmoid(), by))
        return apply(g, MatMul(), apply(g, Transpose(perm=(0, 1, 3, 2)), x), among)

    assert not passed(make(build, SHAPE), weigh_terms.run, "float32")[1]
