"""Views between elementwise nodes go behind them."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import float16, float32, int64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import (
    Add,
    Cast,
    CastLike,
    Clip,
    Exp,
    Mul,
    Relu,
    Sigmoid,
    Sub,
    Tanh,
)
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Slice, Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.reduce import CumSum, ReduceMax
from tercet.runtime.ops.shape import Reshape, Squeeze, Unsqueeze
from tercet.runtime.passes.layouts import join_chains

from .graphs import Build, apply, assert_same, make, normal, passed

SHAPE = (2, 6, 12)


def shaped(g: Graph, x: Value, *sizes: int) -> Value:
    return apply(g, Reshape(), x, np.array(sizes, np.int64))


def merged(g: Graph, x: Value) -> Value:
    """Heads become columns of rows, which others are added to; these are scaled first."""
    heads = apply(g, Exp(), shaped(g, apply(g, Softmax(), x), 2, 6, 3, 4))
    beside = apply(g, Mul(), apply(g, Sigmoid(), apply(g, Softmax(), x)), np.full(1, 2, np.float32))
    return apply(g, Tanh(), apply(g, Add(), shaped(g, heads, 2, 6, 12), beside))


def viewed_twice(g: Graph, x: Value) -> Value:
    """The other operand has been a view of the same sizes: both views go."""
    a, b = (shaped(g, apply(g, Softmax(axis=axis), x), 2, 6, 3, 4) for axis in (1, 2))
    rows = shaped(g, apply(g, Sub(), apply(g, Exp(), a), normal(1, 6, 3, 4)), 2, 6, 12)
    return apply(g, Mul(), rows, shaped(g, apply(g, Relu(), b), 2, 6, 12))


def moved_units(g: Graph, x: Value) -> Value:
    """Decay of a chunk: running sums times what all heads share (Mamba2, of one chunk)."""
    a = apply(g, Unsqueeze(), apply(g, Softmax(), x), np.array([2]))  # [2, 6, 1, 12]
    decay = apply(g, Exp(), apply(g, CumSum(), a, np.array(3)))
    chunks = apply(g, Transpose(perm=(0, 2, 1, 3)), decay)  # [2, 1, 6, 12]
    return apply(g, Mul(), chunks, apply(g, Softmax(), shared(g, x)))


def shared(g: Graph, x: Value) -> Value:
    part = apply(g, Slice(), x, np.array([0]), np.array([1]), np.array([1]))
    return apply(g, Unsqueeze(), part, np.array([1]))  # [2, 1, 1, 12]


def summed(g: Graph, x: Value) -> Value:
    """A running sum alone."""
    total = apply(g, CumSum(), apply(g, Softmax(), x), np.array(2))
    rows = apply(g, Squeeze(), shaped(g, total, 2, 6, 1, 12), np.array([2]))
    return apply(g, Mul(), shaped(g, rows, 2, 72), shaped(g, apply(g, Softmax(), x), 2, 72))


def by_column(g: Graph, x: Value) -> Value:
    """A factor by column of merged axes."""
    heads = apply(g, Exp(), shaped(g, apply(g, Softmax(), x), 2, 6, 3, 4))
    return apply(g, Mul(), shaped(g, heads, 2, 6, 12), normal(12))


def stacked(g: Graph, x: Value) -> Value:
    """Products of blocks of columns, with biases of their own, which an Einsum brings in order."""
    rows = apply(g, Transpose(perm=(1, 0, 2)), shaped(g, apply(g, Softmax(), x), 12, 3, 4))
    a, b = (shaped(g, apply(g, MatMul(), rows, normal(3, 4, 4)), 3, 2, 6, 4) for _ in range(2))
    return apply(g, Exp(), apply(g, Add(), apply(g, Sub(), a, b), normal(3, 1, 1, 4)))


def by_number(g: Graph, x: Value) -> Value:
    """A number with as many axes as the view gives, which are more than there were."""
    rows = apply(g, Exp(), shaped(g, apply(g, Softmax(), x), 12, 12))
    return apply(g, Add(), shaped(g, rows, 2, 6, 3, 4), np.full((1, 1, 1, 1), 2, np.float32))


def as_another(g: Graph, x: Value) -> Value:
    """The type of another tensor, whose sizes do not matter."""
    viewed = shaped(g, apply(g, Exp(), apply(g, Softmax(), x)), 2, 1, 6, 12)
    return apply(g, CastLike(), viewed, normal(2, 4, 6, 12))


@pytest.mark.parametrize(
    "build", [merged, viewed_twice, moved_units, summed, by_column, stacked, by_number, as_another]
)
def test_elementwise_nodes_are_adjacent(build: Build) -> None:
    before = make(build, SHAPE)
    after, said = passed(before, join_chains.run, "float32")
    assert said
    *_, last, view = after.nodes
    read = {value.producer.kind for value in last.distinct_reads if value.producer is not None}
    assert view.kind == "Reshape"
    assert read & {"Add", "Sub", "Exp", "CumSum"}
    assert_same(before, after)


def image(g: Graph, x: Value) -> Value:
    """Convolutions store channels last, which is no order of a view."""
    y = apply(g, Relu(), apply(g, Conv(), shaped(g, x, 2, 6, 3, 4), normal(6, 6, 1, 1)))
    return apply(g, Mul(), shaped(g, y, 2, 6, 12), apply(g, Softmax(), x))


def part(g: Graph, x: Value) -> Value:
    """Part of a layer's rows is read in place; views of it would be copied."""
    layer = apply(g, MatMul(), x, normal(12, 24))
    gate = apply(g, Slice(), layer, np.array([0]), np.array([12]), np.array([2]))
    heads = apply(g, Exp(), shaped(g, apply(g, Softmax(), x), 2, 6, 3, 4))
    return apply(g, Mul(), shaped(g, heads, 2, 6, 12), gate)


def by_head(g: Graph, x: Value) -> Value:
    """A factor by one of two axes that were one has no sizes that broadcast before."""
    rows = apply(g, Exp(), apply(g, Softmax(), x))
    return apply(g, Mul(), shaped(g, rows, 2, 6, 3, 4), normal(3, 1))


def beside_layer(g: Graph, x: Value) -> Value:
    """A layer multiplies what it computes by the other tensor as it stores it."""
    heads = apply(g, Exp(), shaped(g, apply(g, Softmax(), x), 2, 6, 3, 4))
    gate = apply(g, Sigmoid(), apply(g, MatMul(), x, normal(12, 12)))
    return apply(g, Mul(), shaped(g, heads, 2, 6, 12), gate)


def widened(g: Graph, x: Value) -> Value:
    """What reads wide numbers converts them as it reads them."""
    half = apply(g, Cast(to=float16), apply(g, Softmax(), x))
    return apply(g, Cast(to=float32), shaped(g, half, 2, 6, 3, 4))


def beside_image(g: Graph, x: Value) -> Value:
    """What meets an image has its order (EfficientViM)."""
    y = apply(g, Conv(), shaped(g, x, 2, 6, 3, 4), normal(6, 6, 1, 1))
    image = apply(g, Add(), apply(g, Relu(), y), apply(g, Sigmoid(), y))
    return apply(g, Sub(), shaped(g, apply(g, Exp(), apply(g, Softmax(), x)), 2, 6, 3, 4), image)


def rounded(g: Graph, x: Value) -> Value:
    """A product stores a Cast with its result."""
    half = apply(g, Cast(to=float16), apply(g, MatMul(), x, normal(12, 12)))
    beside = apply(g, Cast(to=float16), shaped(g, apply(g, Softmax(), x), 2, 6, 3, 4))
    sums = apply(g, Sub(), shaped(g, half, 2, 6, 3, 4), apply(g, Relu(), beside))
    return apply(g, Cast(to=float32), sums)


def of_layer(g: Graph, x: Value) -> Value:
    """Nothing elementwise is before the view."""
    heads = shaped(g, apply(g, MatMul(), x, normal(12, 12)), 2, 6, 3, 4)
    return apply(g, Mul(), heads, shaped(g, apply(g, Softmax(), x), 2, 6, 3, 4))


@pytest.mark.parametrize(
    "build",
    [image, part, by_head, beside_layer, beside_image, rounded, widened, of_layer],
)
def test_other_views_stay(build: Build) -> None:
    assert not passed(make(build, SHAPE), join_chains.run, "float32")[1]


def test_limits_stay_scalars() -> None:
    """Also those of a single element, which has as many as they."""

    def build(g: Graph, x: Value) -> Value:
        low = apply(g, ReduceMax(keepdims=0), apply(g, Sigmoid(), x))
        y = shaped(g, apply(g, Tanh(), apply(g, ReduceMax(keepdims=1), x)))
        return apply(g, Clip(), y, low)

    before = make(build, (2, 3))
    after, said = passed(before, join_chains.run, "float32")
    assert said
    assert_same(before, after)


def test_views_of_a_part_as_a_scalar_stay() -> None:
    """As in `part`: a scalar has no last axis."""

    def build(g: Graph, x: Value) -> Value:
        one = apply(g, Slice(), apply(g, Softmax(), x), np.array([0]), np.array([1]))
        other = apply(g, Tanh(), apply(g, ReduceMax(), x))
        return apply(g, Mul(), shaped(g, other), shaped(g, one))

    assert not passed(make(build, (2,)), join_chains.run, "float32")[1]


def test_views_of_unknown_sizes_stay() -> None:
    """A product with a tensor of known ones may have these."""

    def build(g: Graph, x: Value) -> Value:
        axis = apply(g, Cast(to=int64), apply(g, ReduceMax(keepdims=0), x))
        axis = apply(g, Reshape(), axis, np.array([1]))
        return apply(g, Mul(), normal(2, 6, 12), apply(g, Unsqueeze(), apply(g, Tanh(), x), axis))

    assert not passed(make(build, (6, 12)), join_chains.run, "float32")[1]


def test_operands_that_are_computed_of_unknown_sizes_are_viewed() -> None:
    def build(g: Graph, x: Value) -> Value:
        end = apply(g, Cast(to=int64), apply(g, ReduceMax(keepdims=0), x))
        end = apply(g, Reshape(), end, np.array([1]))
        part = apply(g, Slice(), shaped(g, x, 1, 72), np.array([0]), end, np.array([1]))
        unknown = apply(g, Add(), apply(g, Softmax(), shaped(g, x, 1, 72)), part)
        return apply(g, Mul(), shaped(g, apply(g, Tanh(), x), 1, 72), unknown)

    assert passed(make(build, (6, 12)), join_chains.run, "float32")[1]


def test_products_of_an_unknown_number_of_terms_are_no_known_stack() -> None:
    """As scores of a cache that grows (BLOOM), whose second operand has no static shape."""

    def build(g: Graph, x: Value) -> Value:
        product = apply(g, MatMul(), x, apply(g, Transpose(perm=(0, 2, 1)), x))  # [2, 6, 6]
        return apply(g, Relu(), shaped(g, product, 12, 6))

    graph = make(build, (2, 6, "k"))
    after, said = passed(graph, join_chains.run, "float32")
    assert len(said) == 1
    assert_same(graph, after, 2, 6, 5)
