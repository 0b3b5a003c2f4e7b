"""Rows that a number, or one for each column, scales or shifts before a constant matrix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx.parser
import pytest

import tercet
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.op import Op
from tercet.runtime.ops.elementwise import Add, Div, Mul, Relu, Sub
from tercet.runtime.ops.matmul import MatMul

from .graphs import apply, assert_same, kinds, make, normal, optimised

ROWS, TERMS, COLUMNS = 6, 5, 4


def network(op: Op, factor: np.ndarray, *, first: bool = True, again: bool = False) -> Graph:
    def build(g: Graph, x: Value) -> Value:
        x = apply(g, Relu(), x)
        scaled = apply(g, op, *((x, factor) if first else (factor, x)))
        y = apply(g, MatMul(), scaled, normal(TERMS, COLUMNS))
        return (
            apply(g, MatMul(), y, apply(g, MatMul(), normal(COLUMNS, ROWS), scaled)) if again else y
        )

    return make(build, (3, ROWS, TERMS))


NUMBER = np.array(0.35, np.float32)


def two_layers(g: Graph, x: Value) -> Value:
    """A layer of few columns, which is not merged with the next one."""
    y = apply(g, Add(), apply(g, MatMul(), x, normal(TERMS, 1)), normal(1))
    return apply(g, MatMul(), y, normal(1, COLUMNS))


@pytest.mark.parametrize(
    "graph",
    [
        network(Mul(), NUMBER),
        network(Mul(), NUMBER.reshape(1), first=False),
        network(Div(), NUMBER),
        network(Mul(), normal(TERMS), first=False),
        network(Div(), np.abs(normal(1, TERMS)) + np.float32(0.5)),
    ],
    ids=["product", "swapped", "quotient", "by column", "divided columns"],
)
def test_the_matrix_is_scaled(graph: Graph) -> None:
    after, log = optimised(graph)
    assert log.counts["fold_affine"] == 1
    assert kinds(after) == ["Relu", "MatMul"]
    assert_same(graph, after)


@pytest.mark.parametrize(
    "make_graph",
    [
        lambda: network(Mul(), NUMBER, again=True),
        lambda: network(Div(), NUMBER, first=False),
        lambda: network(Div(), np.array(0, np.float32)),
        lambda: network(Mul(), normal(ROWS, 1)),
        lambda: network(Add(), normal(ROWS, TERMS)),
        lambda: network(Sub(), normal(TERMS), first=False),
        lambda: make(two_layers, (3, ROWS, TERMS)),
        lambda: network(Mul(), np.array(1e38, np.float32)),
    ],
    ids=[
        "read elsewhere",
        "reciprocal",
        "zero",
        "by row",
        "added",
        "subtracted from",
        "bias",
        "overflow",
    ],
)
def test_what_stays(make_graph: Callable[[], Graph]) -> None:
    _, log = optimised(make_graph())
    assert "fold_affine" not in log.counts


@pytest.mark.parametrize(("op", "first"), [(Add(), False), (Sub(), True)])
def test_shifts_are_added_behind(op: Op, *, first: bool) -> None:
    graph = network(op, normal(TERMS), first=first)
    after, log = optimised(graph)
    assert log.counts["fold_affine"] == 1
    assert kinds(after) == ["Relu", "MatMul", "Add"]
    assert_same(graph, after)


def test_affine_layers_are_folded() -> None:
    """As ResMLP begins its layers; what it adds to tokens that it mixes is 0 before training."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Relu(), x)
        for shift in (normal(TERMS), np.zeros(TERMS, np.float32)):
            y = apply(g, Add(), shift, apply(g, Mul(), normal(TERMS), y))
            if shift.any():
                y = apply(g, Add(), apply(g, MatMul(), y, normal(TERMS, TERMS)), normal(TERMS))
        return apply(g, MatMul(), normal(ROWS, ROWS), y)

    graph = make(build, (3, ROWS, TERMS))
    after, _ = optimised(graph)
    assert kinds(after) == ["Relu", "MatMul", "Add", "MatMul"]
    assert_same(graph, after)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("s = Mul(x, three)  y = MatMul(s, w)", lambda x, w: 3 * x @ w),
        ("s = Div(x, three)  y = MatMul(s, w)", lambda x, w: (x / 3).astype(np.int32) @ w),
        ("p = MatMul(x, w)  y = Mul(p, three)", lambda x, w: 3 * (x @ w)),
        ("p = MatMul(x, w)  y = Div(p, three)", lambda x, w: (x @ w / 3).astype(np.int32)),
        ("p = Gemm(x, w)  y = Div(p, three)", lambda x, w: (x @ w / 3).astype(np.int32)),
        ("p = Gemm(x, w)  a = Add(p, three)  y = Mul(a, three)", lambda x, w: 3 * (x @ w + 3)),
    ],
)
def test_integers_are_multiplied_step_by_step(
    nodes: str, expected: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> None:
    """Quotients of theirs drop a rest, and no format of floats limits them."""
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
      g (int32[4, 5] x) => (int32[4, 3] y) <int32 three = {{3}}> {{ {nodes} }}"""
    proto = onnx.parser.parse_model(text)
    w, x = np.arange(-7, 8, dtype=np.int32).reshape(5, 3), np.arange(20, dtype=np.int32) - 6
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    x = x.reshape(4, 5)
    with tercet.load(proto) as model:
        np.testing.assert_array_equal(model.run({"x": x})["y"], expected(x, w))
