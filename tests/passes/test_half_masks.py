"""The pass to 16-bit floats: masks of attention that become half, and those that stay."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.elementwise import (
    Mul,
    Sigmoid,
)
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Expand
from tercet.runtime.ops.reduce import ReduceSum
from tercet.runtime.ops.shape import Reshape

from .graphs import Build, apply, make, normal
from .test_to_half import halved, run


def test_a_mask_that_is_computed_in_half_precision_is_read_so() -> None:
    """Relative positions of DeBERTa and MViTv2 are products: widened, they have no more digits."""

    def build(g: Graph, x: Value) -> Value:
        return apply(g, Attention(), x, x, x, apply(g, MatMul(), x, normal(8, 3)))

    graph = make(build, (1, 2, 3, 8))
    after = halved(graph)
    (node,) = (node for node in after.nodes if isinstance(node.op, Attention))
    assert [v.tensor.dtype for v in node.inputs if v is not None] == [float16] * 4
    x = normal(1, 2, 3, 8)
    want, got = run(graph, x=x), run(after, x=x)
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


def test_the_mask_of_an_attention_stays() -> None:
    """float16 has no number for what hides keys; a row of it alone would give 0, not a mean."""
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, (1, 2, 3, 8)))
    mask = graph.add_input("mask", TensorType(float32, (1, 1, 3, 3)))
    graph.set_outputs({"y": apply(graph, Attention(), x, x, x, mask)})
    infer(graph)
    (node,) = (node for node in halved(graph).nodes if isinstance(node.op, Attention))
    assert [v.tensor.dtype for v in node.inputs if v is not None] == [float16] * 3 + [float32]
    assert node.output.tensor.dtype == float16


def assert_mask_is(dtype: DType, build: Build) -> None:
    """Check the type of an Attention's mask, and the result."""
    graph = make(build, (1, 2, 7, 8))
    after = halved(graph)
    (node,) = (node for node in after.nodes if isinstance(node.op, Attention))
    assert node.operands[3].tensor.dtype == dtype
    x = normal(1, 2, 7, 8)
    want, got = run(graph, x=x), run(after, x=x)
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


@pytest.mark.parametrize(("factor", "dtype"), [(3, float16), (100, float32)])
def test_a_computed_mask_that_float16_holds(factor: float, dtype: DType) -> None:
    """As WavLM: gates between 0 and 1 times a bias of positions."""

    def build(g: Graph, x: Value) -> Value:
        gates = apply(g, Sigmoid(), apply(g, ReduceSum(keepdims=1), x, np.array([-1])))
        bias = factor * np.sin(np.arange(21, dtype=np.float32)).reshape(3, 7)
        return apply(g, Attention(), x, x, x, apply(g, Mul(), gates, np.resize(bias, (7, 7))))

    assert_mask_is(dtype, build)


NEAR = np.arange(-3, 4, dtype=np.float32)[:, None] / 7 + np.zeros(7, np.float32)
HIDDEN = np.where(np.tri(7, dtype=np.bool_), NEAR, np.float32(-100) + NEAR)
#: The positions of keys times a slope, as ALiBi: rounded, those of neighbours would be equal.
SLOPES = np.arange(7, dtype=np.float32) / 7 + np.float32(300)


@pytest.mark.parametrize(
    ("mask", "causal", "dtype"),
    [
        (NEAR, 0, float16),
        (NEAR, 1, float16),
        (HIDDEN, 0, float16),
        (HIDDEN, 1, float32),
        (np.where(np.tri(7, dtype=np.bool_), np.float32(0), np.float32(-np.inf)), 1, float16),
        (SLOPES[None], 0, float32),
        (HIDDEN * np.float32(1e4), 0, float32),
    ],
    ids=["near", "causal", "hidden", "causal and hidden", "infinite", "slopes", "beyond"],
)
@pytest.mark.parametrize("repeated", [False, True])
def test_a_constant_mask_that_float16_holds(
    repeated: bool, mask: Array, causal: int, dtype: DType
) -> None:
    def build(g: Graph, x: Value) -> Value:
        given: Array | Value = mask
        if repeated:  # for all samples, which would be too many bytes for a constant
            wide = apply(g, Expand(), mask, np.array([1, 2, 1, 7, 7]))
            given = apply(g, Reshape(), wide, np.array([1, 2, 7, 7]))
        return apply(g, Attention(is_causal=causal), x, x, x, given)

    assert_mask_is(dtype, build)


def test_a_computed_mask_of_unknown_sizes_stays() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, ("b", 2, "n", 8)))
    mask = graph.add_input("mask", TensorType(float32, ("n", "n")))
    wide = apply(graph, Mul(), mask, graph.constant(np.array(1e6, np.float32)))
    graph.set_outputs({"y": apply(graph, Attention(), x, x, x, wide)})
    infer(graph)
    (node,) = (node for node in halved(graph).nodes if isinstance(node.op, Attention))
    assert node.operands[3].type == TensorType(float32, ("n", "n"))
