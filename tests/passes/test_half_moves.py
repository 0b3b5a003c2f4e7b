"""Where Casts to half precision are put beside nodes that move elements."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import float16
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Abs, Add, Div, Exp, Mul, Neg, Tanh
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Slice, Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.reduce import ArgMax, ReduceL2, ReduceMax, ReduceSum
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, kinds, make, normal
from .test_to_half import halved


@pytest.mark.parametrize("reshaped", [False, True])
def test_what_is_transposed_is_cast_before(reshaped: bool) -> None:
    """Lengths are divided by in float32, which stores 16 bits, and the Transpose moves these."""

    def build(g: Graph, x: Value) -> Value:
        lengths = apply(g, ReduceL2(), x, np.array([-1]))
        keys = apply(g, Transpose(perm=(0, 2, 1)), apply(g, Div(), x, lengths))
        if reshaped:
            keys = apply(g, Reshape(), keys, np.array([2, 8, 4]))
        return apply(g, MatMul(), apply(g, Softmax(), x), keys)

    after = [kind for kind in kinds(halved(make(build, (2, 4, 8)))) if kind != "Reshape"]
    at = after.index("Transpose")
    assert after[at - 1] == "Cast", after
    assert after[at + 1] == "MatMul", after


def test_what_several_layers_read_transposed_is_cast_before() -> None:
    """Rows that convolutions read as an image (SqueezeBERT), and a sum as they are."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Softmax(), x)
        image = apply(g, Transpose(perm=(0, 2, 1)), y)
        first, *others = (apply(g, Conv(), image, normal(4, 8, 1)) for _ in range(3))
        for other in others:
            first = apply(g, Mul(), first, other)
        return apply(g, MatMul(), first, apply(g, MatMul(), y, normal(8, 8)))

    after = kinds(halved(make(build, (2, 6, 8))))
    assert after[:3] == ["Softmax", "Cast", "Transpose"], after
    assert after.count("Cast") == 2, after


def test_what_is_also_read_in_float32_is_transposed_once() -> None:
    def build(g: Graph, x: Value) -> Value:
        lengths = apply(g, ReduceL2(), x, np.array([-1]))
        keys = apply(g, Transpose(perm=(0, 2, 1)), apply(g, Div(), x, lengths))
        rows = apply(g, Reshape(), keys, np.array([2, 4, 8]))
        return apply(g, MatMul(), apply(g, MatMul(), rows, normal(8, 8)), apply(g, Exp(), keys))

    assert kinds(halved(make(build, (2, 4, 8)))).count("Transpose") == 1


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("count", [2, 6])
def test_a_tensor_is_cast_before_many_parts_are_cut(count: int, gathered: bool) -> None:
    """The steps of a recurrence, which meet a layer's results, have one Cast instead of many."""

    def part(g: Graph, whole: Value, place: int) -> Value:
        if gathered:
            return apply(g, Gather(axis=1), whole, np.array(place))
        return apply(g, Slice(), whole, *(np.array([n]) for n in (place, place + 1, 1)))

    def build(g: Graph, x: Value) -> Value:
        gates = apply(g, Exp(), apply(g, Neg(), apply(g, Abs(), x)))
        terms = apply(g, MatMul(), x, normal(8, 8))
        state: Value | None = None
        for i in range(count):
            gate, term = (part(g, each, i) for each in (gates, terms))
            state = term if state is None else apply(g, Add(), apply(g, Mul(), gate, state), term)
        assert state is not None
        return state

    found = kinds(halved(make(build, (2, count, 4, 8))))
    assert found.count("Cast") == 3


def test_joined_parts_are_cast_as_they_are_computed() -> None:
    """A layer reads a sum beside rows of a table, as the step of a decoder with attention does."""

    def build(g: Graph, x: Value) -> Value:
        greatest = apply(g, ReduceMax(keepdims=0), x, np.array([1]))
        rows = apply(g, Gather(), normal(8, 8), apply(g, ArgMax(keepdims=0, axis=-1), greatest))
        total = apply(g, ReduceSum(keepdims=0), apply(g, Tanh(), x), np.array([1]))
        return apply(g, MatMul(), apply(g, Concat(axis=-1), rows, total), normal(16, 4))

    graph = halved(make(build, (2, 3, 8)))
    (join,) = (node for node in graph.nodes if node.kind == "Concat")
    assert {value.tensor.dtype for value in (*join.operands, join.output)} == {float16}
    table = next(node for node in graph.nodes if node.kind == "Gather").operands[0]
    assert table.data is not None
    assert table.data.dtype == float16
