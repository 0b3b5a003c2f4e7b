"""What is repeated is repeated behind views, Transposes and products, or only broadcast."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

import tercet
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Exp, Mul
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Expand, Transpose
from tercet.runtime.ops.reduce import ReduceSum
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.passes import STATIC_PASSES

from .graphs import apply, assert_same, kinds, make, normal, optimised

HEADS, LENGTH, SIZE = 4, 6, 8


def repeated(g: Graph, x: Value, *sizes: int) -> Value:
    return apply(g, Expand(), x, np.array(sizes))


def viewed(g: Graph, x: Value, *sizes: int) -> Value:
    return apply(g, Reshape(), x, np.array(sizes))


def products(graph: Graph) -> list[list[tuple[int, ...]]]:
    return [
        [value.tensor.dims for value in node.operands]
        for node in graph.nodes
        if isinstance(node.op, MatMul)
    ]


def shared_factors(g: Graph, x: Value) -> Value:
    """As Mamba2: queries and keys of all heads are equal, decays and values are not."""

    def of_heads(y: Value) -> Value:
        whole = repeated(g, viewed(g, y, 2, LENGTH, 1, 1, SIZE), 2, LENGTH, 1, HEADS, SIZE)
        return viewed(g, whole, 2, LENGTH, HEADS, SIZE)

    b, c = of_heads(apply(g, Exp(), x)), of_heads(x)
    rows = apply(g, Transpose(perm=(0, 2, 1, 3)), c)
    columns = apply(g, Transpose(perm=(0, 2, 3, 1)), b)
    scores = apply(g, MatMul(), rows, columns)
    decayed = apply(g, Mul(), scores, normal(HEADS, LENGTH, LENGTH))
    total = apply(g, ReduceSum(keepdims=1), x, np.array([2]))
    values = apply(g, Mul(), viewed(g, total, 2, 1, LENGTH, 1), normal(1, HEADS, 1, 3))
    return apply(g, MatMul(), decayed, values)


def test_a_product_of_what_all_heads_share_is_computed_once() -> None:
    before = make(shared_factors, (2, LENGTH, SIZE))
    after, _ = optimised(before, STATIC_PASSES)
    assert "Expand" not in kinds(after)
    assert products(after)[0] == [(2, 1, LENGTH, SIZE), (2, 1, SIZE, LENGTH)]
    assert_same(before, after, 2, LENGTH, SIZE)


def test_one_factor_is_broadcast() -> None:
    def build(g: Graph, x: Value) -> Value:
        whole = repeated(g, viewed(g, x, 2, 1, LENGTH, SIZE), 2, HEADS, LENGTH, SIZE)
        return apply(g, MatMul(), whole, normal(1, HEADS, SIZE, 5))

    before = make(build, (2, LENGTH, SIZE))
    after, _ = optimised(before, STATIC_PASSES)
    assert "Expand" not in kinds(after)
    assert_same(before, after, 2, LENGTH, SIZE)


@pytest.mark.parametrize("of_samples", [False, True])
def test_a_bias_for_all_samples_is_broadcast(of_samples: bool) -> None:
    """As WavLM: samples and heads are one axis of the bias and of its gates."""

    def build(g: Graph, x: Value) -> Value:
        bias = apply(g, Exp(), apply(g, Add(), normal(1, HEADS, LENGTH, LENGTH), normal(1)))
        if not of_samples:
            bias = apply(g, Mul(), bias, apply(g, ReduceSum(keepdims=1), x))
        else:
            bias = apply(g, Mul(), bias, viewed(g, x, 1, 1, LENGTH, 1))
        size = 3 * HEADS
        whole = viewed(g, repeated(g, bias, 3, HEADS, LENGTH, LENGTH), size, LENGTH, LENGTH)
        gates = normal(size, LENGTH, 1)
        gates = apply(g, Mul(), gates, viewed(g, x, 1, LENGTH, 1))
        rows = apply(g, Exp(), apply(g, Mul(), gates, whole))
        return viewed(g, rows, 3, HEADS, LENGTH, LENGTH)

    before = make(build, (LENGTH,))
    after, _ = optimised(before, STATIC_PASSES)
    assert "Expand" not in kinds(after)
    assert_same(before, after, LENGTH)


def test_elementwise_nodes_are_passed() -> None:
    def build(g: Graph, x: Value) -> Value:
        whole = repeated(g, viewed(g, x, 2, 1, LENGTH, SIZE), 2, HEADS, LENGTH, SIZE)
        powers = apply(g, Exp(), apply(g, Transpose(perm=(0, 1, 3, 2)), whole))
        return apply(g, MatMul(), powers, normal(1, HEADS, LENGTH, 5))

    before = make(build, (2, LENGTH, SIZE))
    after, _ = optimised(before, STATIC_PASSES)
    assert "Expand" not in kinds(after)
    assert_same(before, after, 2, LENGTH, SIZE)


def test_summed_axes_and_what_is_joined_stay_repeated() -> None:
    def summed(g: Graph, x: Value) -> Value:
        whole = repeated(g, viewed(g, x, LENGTH, 1), LENGTH, SIZE)
        return apply(g, MatMul(), whole, normal(SIZE, 3))

    def joined(g: Graph, x: Value) -> Value:
        whole = repeated(g, viewed(g, x, 1, LENGTH), SIZE, LENGTH)
        turned = apply(g, Transpose(perm=(1, 0)), whole)
        return apply(g, Concat(axis=1), turned, apply(g, Exp(), viewed(g, x, LENGTH, 1)))

    for build in (summed, joined):
        before = make(build, (LENGTH,))
        after, _ = optimised(before, STATIC_PASSES)
        assert kinds(after).count("Expand") == 1
        assert_same(before, after, LENGTH)


def test_views_to_computed_shapes_stay() -> None:
    text = """<ir_version: 8, opset_import: ["": 21]>
    g (float[2, 1, 4] x, int64[2] shape, float[4] b) => (float[m, n] y)
      <int64[3] sizes = {2, 3, 4}> {
      whole = Expand (x, sizes)
      rows = Reshape (whole, shape)
      y = Add (rows, b)
    }"""
    feeds = {"x": normal(2, 1, 4), "shape": np.array([6, 4]), "b": normal(4)}
    wanted = feeds["x"].repeat(3, 1).reshape(6, 4) + feeds["b"]
    with tercet.load(parse_model(text)) as model:
        np.testing.assert_array_equal(model.run(feeds)["y"], wanted)
