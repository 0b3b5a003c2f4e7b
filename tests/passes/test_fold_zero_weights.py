"""Products with weights of zero leave their bias (row B22)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.backends.numpy import evaluate
from tercet.runtime.dtypes import float32
from tercet.runtime.infer import infer
from tercet.runtime.ir import Graph, Value
from tercet.runtime.op import Op
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.options import Options
from tercet.runtime.passes import AFTER_SHAPES, Rewrites, fold_zero_weights, optimise
from tercet.runtime.passes.driver import Context
from tercet.runtime.types import Dim, TensorType

from .graphs import apply, assert_same, kinds, make, normal, optimised


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def left_out(graph: Graph) -> tuple[Graph, list[str]]:
    """Return the graph without the products, and what was done."""
    copy = graph.clone()
    said = list(fold_zero_weights.run(copy, Context(Options(finite=True), evaluate)))
    copy.verify()
    infer(copy)
    return copy, said


PRODUCTS: dict[str, tuple[Op, tuple[int, ...], tuple[np.ndarray, ...]]] = {
    "conv": (Conv(pads=(1, 1, 1, 1)), (2, 3, 5, 6), (zeros(4, 3, 3, 3), normal(4))),
    "conv without bias": (Conv(), (2, 3, 5, 6), (zeros(4, 3, 3, 3),)),
    "strided conv": (Conv(strides=(2, 2)), (2, 3, 5, 6), (zeros(4, 3, 1, 1), normal(4))),
    "grouped conv": (Conv(group=3), (2, 3, 5, 6), (zeros(6, 1, 3, 3), normal(6))),
    "1-D conv": (Conv(), (2, 3, 7), (zeros(4, 3, 3), normal(4))),
    "transposed conv": (ConvTranspose(), (2, 3, 5, 6), (zeros(3, 4, 2, 2), normal(4))),
    "gemm": (Gemm(transB=1), (3, 4), (zeros(6, 4), normal(6))),
    "gemm, beta": (Gemm(alpha=2.0, beta=0.5), (3, 4), (zeros(4, 6), normal(3, 1))),
    "gemm, no beta": (Gemm(beta=0.0), (3, 4), (zeros(4, 6), normal(6))),
    "gemm without addend": (Gemm(), (3, 4), (zeros(4, 6),)),
    "matmul": (MatMul(), (2, 3, 4), (zeros(4, 6),)),
    "minus zero": (MatMul(), (2, 3, 4), (-zeros(4, 6),)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_what_is_left_is_the_bias(name: str) -> None:
    op, shape, weights = PRODUCTS[name]
    graph = make(lambda g, x: apply(g, op, x, *weights), shape)
    after, said = left_out(graph)
    assert kinds(after) == ["Expand"]
    assert len(said) == 1
    assert_same(graph, after, *shape)


def test_the_slide() -> None:
    """Row B22: 4 x 4 weights of zero; the output is the bias."""
    bias = np.array([0.1762, -0.2388, 0.0012, 0.0019], np.float32)
    graph = make(lambda g, x: apply(g, Gemm(), x, zeros(4, 4), bias), (1, 4))
    after, _ = left_out(graph)
    log = Rewrites()
    optimise(after, AFTER_SHAPES, Options(), evaluate, log)
    assert not after.nodes
    found = after.outputs["y"].data
    assert found is not None
    assert np.array_equal(found, bias[np.newaxis])


def test_a_bias_that_is_computed() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, (2, 3, 5, 6)))
    b = graph.add_input("b", TensorType(float32, (4,)))
    graph.set_outputs({"y": apply(graph, Conv(), x, zeros(4, 3, 1, 1), b)})
    infer(graph)
    after, _ = left_out(graph)
    assert kinds(after) == ["Unsqueeze", "Expand"]
    assert after.outputs["y"].tensor.dims == (2, 4, 5, 6)


def test_a_sum_takes_the_bias_as_it_is() -> None:
    def build(graph: Graph, x: Value) -> Value:
        zero = apply(graph, Conv(), x, zeros(3, 3, 1, 1), normal(3))
        return apply(graph, Relu(), apply(graph, Add(), zero, x))

    graph = make(build, (2, 3, 5, 6))
    after, _ = left_out(graph)
    assert kinds(after) == ["Add", "Relu"]
    assert_same(graph, after, 2, 3, 5, 6)


KEPT: dict[str, tuple[Op, tuple[Dim, ...], Any]] = {
    "one weight is not zero": (Gemm(), (3, 4), np.eye(4, dtype=np.float32)),
    "not a number": (Gemm(), (3, 4), np.full((4, 4), np.nan, np.float32)),
    "unknown shape": (MatMul(), ("batch", 4), zeros(4, 6)),
}


@pytest.mark.parametrize("name", KEPT)
def test_other_products_stay(name: str) -> None:
    op, shape, weights = KEPT[name]
    graph = make(lambda g, x: apply(g, op, x, weights), shape)
    after, said = left_out(graph)
    assert not said
    assert kinds(after) == kinds(graph)


def test_it_is_not_done_unasked() -> None:
    """0 times infinity is not a number: that is what the model says."""
    graph = make(lambda g, x: apply(g, MatMul(), x, zeros(4, 6)), (3, 4))
    after, log = optimised(graph)
    assert kinds(after) == ["MatMul"]
    assert "fold_zero_weights" not in log.counts
