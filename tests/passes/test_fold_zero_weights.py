"""Products with weights of zero leave their bias, units of zero the next layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import Dim, TensorType
from tercet.runtime.ir.verify import verify
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.elementwise import Add, Relu, Sigmoid, Tanh
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.options import Options
from tercet.runtime.passes import STATIC_PASSES, Rewrites, optimise
from tercet.runtime.passes.driver import Context
from tercet.runtime.passes.products import drop_zero_units, fold_zero_weights

from .graphs import apply, assert_same, kinds, make, normal, optimised


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def left_out(graph: Graph) -> tuple[Graph, list[str]]:
    """Return the graph without the products, and what was done."""
    copy, context = graph.clone(), Context(Options(finite=True), evaluate)
    said = [*fold_zero_weights.run(copy, context), *drop_zero_units.run(copy, context)]
    verify(copy)
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
    """4 x 4 weights of zero; the output is the bias."""
    bias = np.array([0.1762, -0.2388, 0.0012, 0.0019], np.float32)
    graph = make(lambda g, x: apply(g, Gemm(), x, zeros(4, 4), bias), (1, 4))
    after, _ = left_out(graph)
    log = Rewrites()
    optimise(after, STATIC_PASSES, Options(), evaluate, log)
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


def zeroed(weights: np.ndarray, *units: int, axis: int = 0) -> np.ndarray:
    """Return weights of which some units are zero."""
    index: list[Any] = [slice(None)] * weights.ndim
    index[axis] = list(units)
    weights[tuple(index)] = 0
    return weights


Unit = tuple[Any, tuple[int, ...]]
UNITS: dict[str, Unit] = {
    "gemm": (
        lambda g, x: apply(
            g,
            Gemm(alpha=0.5),
            apply(g, Tanh(), apply(g, Gemm(transB=1), x, zeroed(normal(6, 4), 1, 4), normal(6))),
            normal(6, 5),
            normal(5),
        ),
        (3, 4),
    ),
    "gemm, columns": (
        lambda g, x: apply(
            g,
            Gemm(transB=1),
            apply(
                g, Relu(), apply(g, Gemm(beta=2.0), x, zeroed(normal(4, 6), 2, axis=1), normal(6))
            ),
            normal(5, 6),
        ),
        (3, 4),
    ),
    "conv": (
        lambda g, x: apply(
            g,
            Conv(),
            apply(
                g,
                Sigmoid(),
                apply(g, Conv(pads=(1, 1, 1, 1)), x, zeroed(normal(6, 3, 3, 3), 0, 5), normal(6)),
            ),
            normal(4, 6, 3, 3),
            normal(4),
        ),
        (2, 3, 7, 6),
    ),
    "conv behind zeros": (
        lambda g, x: apply(
            g,
            Conv(pads=(1, 1, 1, 1)),
            apply(
                g,
                Relu(),
                apply(g, Conv(), x, zeroed(normal(6, 3, 3, 3), 0, 5), -np.abs(normal(6))),
            ),
            normal(4, 6, 3, 3),
        ),
        (2, 3, 7, 6),
    ),
}


@pytest.mark.parametrize("name", UNITS)
def test_zero_units_join_the_next_bias(name: str) -> None:
    build, shape = UNITS[name]
    graph = make(build, shape)
    after, said = left_out(graph)
    assert len(said) == 1
    assert kinds(after) == kinds(graph)
    before, now = (next(iter(g.nodes)).output.tensor.dims[1] for g in (graph, after))
    assert now == before - (1 if name == "gemm, columns" else 2)
    assert_same(graph, after, *shape)


KEPT_UNITS: dict[str, Unit] = {
    "constants beside padding": (
        lambda g, x: apply(
            g,
            Conv(pads=(1, 1, 1, 1)),
            apply(g, Sigmoid(), apply(g, Conv(), x, zeroed(normal(6, 3, 3, 3), 0), normal(6))),
            normal(4, 6, 3, 3),
        ),
        (2, 3, 7, 6),
    ),
    "groups": (
        lambda g, x: apply(
            g,
            Conv(group=2),
            apply(g, Relu(), apply(g, Conv(), x, zeroed(normal(6, 3, 3, 3), 0), normal(6))),
            normal(4, 3, 3, 3),
        ),
        (2, 3, 7, 6),
    ),
    "another reader": (
        lambda g, x: (
            lambda a: apply(g, Add(), apply(g, Gemm(), apply(g, Relu(), a), normal(4, 4)), a)
        )(apply(g, Gemm(), x, zeroed(normal(4, 4), 1, axis=1), normal(4))),
        (3, 4),
    ),
    "an addend by row": (
        lambda g, x: apply(
            g,
            Gemm(),
            apply(g, Relu(), apply(g, Gemm(), x, zeroed(normal(4, 6), 1, axis=1), normal(3, 1))),
            normal(6, 5),
        ),
        (3, 4),
    ),
}


@pytest.mark.parametrize("name", KEPT_UNITS)
def test_other_units_stay(name: str) -> None:
    build, shape = KEPT_UNITS[name]
    _, said = left_out(make(build, shape))
    assert not said
