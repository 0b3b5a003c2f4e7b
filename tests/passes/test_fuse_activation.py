"""Activations that exporters spell out become one node, and nothing else does."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import (
    Add,
    Clip,
    Div,
    Erf,
    Greater,
    HardSigmoid,
    Mul,
    Neg,
    Pow,
    Sigmoid,
    Softplus,
    Sub,
    Swish,
    Tanh,
    Where,
)

from .graphs import Build, apply, assert_same, kinds, make, optimised, run


def scalar(number: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(number, dtype)


class Formula:
    """Writes arithmetic on values as nodes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __call__(self, op: Op, *inputs: Value | float) -> Value:
        found = [x if isinstance(x, Value) else scalar(x) for x in inputs]
        return apply(self.graph, op, *found)

    def add(self, a: Value | float, b: Value | float) -> Value:
        return self(Add(), a, b)

    def mul(self, a: Value | float, b: Value | float) -> Value:
        return self(Mul(), a, b)

    def div(self, a: Value | float, b: Value | float) -> Value:
        return self(Div(), a, b)

    def soft(self, x: Value) -> Value:
        return self(Softplus(), x)

    def scaled_soft(self, x: Value, beta: float, divisor: float) -> Value:
        """Write Softplus as PyTorch does."""
        scaled = self.mul(x, beta)
        soft = self.div(self.soft(scaled), divisor)
        return self(Where(), self(Greater(), scaled, 15.0), x, soft)

    def gelu_half(self, x: Value) -> Value:
        return self.add(self(Erf(), self.div(x, sqrt(2))), 1.0)

    def cube(self, x: Value) -> Value:
        return self(Pow(), x, 3.0)

    def tanh_half(self, x: Value, inner: Value) -> Value:
        return self.mul(x, self.mul(0.5, self.add(1.0, self(Tanh(), inner))))


def written(formula: Any) -> Build:
    return lambda graph, x: formula(Formula(graph), x)


C = sqrt(2 / pi)

FUSED: dict[str, tuple[Any, str]] = {
    "gelu, half last": (lambda f, x: f.mul(f.mul(x, f.gelu_half(x)), 0.5), "Gelu"),
    "gelu, half first": (lambda f, x: f.mul(f.mul(x, 0.5), f.gelu_half(x)), "Gelu"),
    "gelu, half in the middle": (lambda f, x: f.mul(x, f.mul(0.5, f.gelu_half(x))), "Gelu"),
    "gelu, a division by two": (lambda f, x: f.div(f.mul(f.gelu_half(x), x), 2.0), "Gelu"),
    "gelu, the inverse root": (
        lambda f, x: f.mul(f.mul(f.add(1.0, f(Erf(), f.mul(sqrt(0.5), x))), x), 0.5),
        "Gelu",
    ),
    "gelu, distributed": (
        lambda f, x: f.mul(x, f.add(f.mul(f(Erf(), f.div(x, sqrt(2))), 0.5), 0.5)),
        "Gelu",
    ),
    "gelu, a sum of products": (
        lambda f, x: f.add(f.mul(0.5, x), f.mul(f.mul(x, 0.5), f(Erf(), f.div(x, sqrt(2))))),
        "Gelu",
    ),
    "gelu, the complement of erf": (
        lambda f, x: f.mul(f.mul(x, 0.5), f(Sub(), 1.0, f(Erf(), f.div(f(Neg(), x), sqrt(2))))),
        "Gelu",
    ),
    "tanh gelu, a power": (
        lambda f, x: f.tanh_half(x, f.mul(f.add(x, f.mul(f.cube(x), 0.044715)), C)),
        "Gelu",
    ),
    "tanh gelu, products": (
        lambda f, x: f.tanh_half(x, f.mul(C, f.add(f.mul(0.044715, f.mul(x, f.mul(x, x))), x))),
        "Gelu",
    ),
    "tanh gelu, factored": (
        lambda f, x: f.tanh_half(x, f.mul(f.mul(C, x), f.add(1.0, f.mul(0.044715, f.mul(x, x))))),
        "Gelu",
    ),
    "swish": (lambda f, x: f.mul(x, f(Sigmoid(), x)), "Swish"),
    "swish, commuted": (lambda f, x: f.mul(f(Sigmoid(), x), x), "Swish"),
    "quick gelu": (lambda f, x: f.mul(x, f(Sigmoid(), f.mul(x, 1.702))), "Swish"),
    "hard swish": (lambda f, x: f.mul(x, f(HardSigmoid(alpha=1 / 6, beta=0.5), x)), "HardSwish"),
    "hard swish, limits": (
        lambda f, x: f.div(f.mul(x, f(Clip(), f.add(x, 3.0), 0.0, 6.0)), 6.0),
        "HardSwish",
    ),
    "hard swish, a sixth": (
        lambda f, x: f.mul(f.mul(f(Clip(), f.add(3.0, x), 0.0, 6.0), 1 / 6), x),
        "HardSwish",
    ),
    "hard sigmoid": (lambda f, x: f.div(f(Clip(), f.add(x, 3.0), 0.0, 6.0), 6.0), "HardSigmoid"),
    "mish": (lambda f, x: f.mul(x, f(Tanh(), f(Softplus(), x))), "Mish"),
    "softplus": (
        lambda f, x: f(Where(), f(Greater(), x, 20.0), x, f(Softplus(), x)),
        "Softplus",
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_formula_becomes_one_node(name: str) -> None:
    formula, kind = FUSED[name]
    graph = make(written(formula), (2, 3, 40))
    after, log = optimised(graph)
    assert kinds(after) == [kind]
    assert log.counts["fuse_activation"] == 1
    assert_same(graph, after, 2, 3, 40)


@pytest.mark.parametrize("name", FUSED)
def test_x_may_be_a_result(name: str) -> None:
    formula, kind = FUSED[name]

    def build(graph: Graph, x: Value) -> Value:
        return formula(Formula(graph), apply(graph, Neg(), x))

    graph = make(build, (3, 40))
    after, _ = optimised(graph)
    assert kinds(after) == ["Neg", kind]
    assert_same(graph, after, 3, 40)


def test_alpha_of_swish() -> None:
    graph = make(written(lambda f, x: f.mul(x, f(Sigmoid(), f.mul(1.702, x)))), (4,))
    after, _ = optimised(graph)
    op = after.nodes[0].op
    assert isinstance(op, Swish)
    assert op.alpha == pytest.approx(1.702)


@pytest.mark.parametrize("beta", [0.5, 3.0])
def test_a_scaled_softplus_has_no_threshold(beta: float) -> None:
    graph = make(written(lambda f, x: f.scaled_soft(x, beta, beta)), (6,))
    after, log = optimised(graph)
    assert kinds(after) == ["Mul", "Softplus", "Mul"]
    assert log.counts["fuse_activation"] == 1
    x = np.array([-np.inf, -3, 0, 4, 90, np.inf], np.float32)
    expected = np.logaddexp(0, np.float64(beta) * x) / beta
    np.testing.assert_allclose(run(after, x, np.float32), expected, rtol=1e-6)


KEPT: dict[str, Any] = {
    "another root": lambda f, x: f.mul(f.mul(x, f.add(f(Erf(), f.div(x, 1.5)), 1.0)), 0.5),
    "another factor": lambda f, x: f.mul(f.mul(x, f.gelu_half(x)), 0.25),
    "another addend": lambda f, x: f.mul(f.mul(x, f.add(f(Erf(), f.div(x, sqrt(2))), 2.0)), 0.5),
    "another cube": lambda f, x: f.tanh_half(x, f.mul(f.add(x, f.mul(f.cube(x), 0.05)), C)),
    "the square of x": lambda f, x: f.mul(f.mul(f.mul(x, x), f.gelu_half(x)), 0.5),
    "another x": lambda f, x: f.mul(f.mul(f(Neg(), x), f.gelu_half(x)), 0.5),
    "a constant of more axes": lambda f, x: f.mul(
        f.mul(x, f.gelu_half(x)), f.graph.constant(np.full((1, 1, 1), 0.5, np.float32))
    ),
    "a sigmoid of a shifted x": lambda f, x: f.mul(x, f(Sigmoid(), f.add(x, 1.0))),
    "a gate": lambda f, x: f.mul(f(Neg(), x), f(Sigmoid(), x)),
    "another hard sigmoid": lambda f, x: f.mul(x, f(HardSigmoid(), x)),
    "other limits": lambda f, x: f.div(f.mul(x, f(Clip(), f.add(x, 3.0), 0.0, 5.0)), 6.0),
    "a softplus that ends early": lambda f, x: f(
        Where(), f(Greater(), x, 5.0), x, f(Softplus(), x)
    ),
    "a softplus of another": lambda f, x: f(Where(), f(Greater(), x, 20.0), x, f.soft(f(Neg(), x))),
    "another slope": lambda f, x: f.scaled_soft(x, 2.0, 3.0),
    "a difference": lambda f, x: f(Sub(), x, f(Sigmoid(), x)),
}


@pytest.mark.parametrize("name", KEPT)
def test_other_formulas_stay(name: str) -> None:
    graph = make(written(KEPT[name]), (3, 40))
    after, log = optimised(graph)
    assert "fuse_activation" not in log.counts
    assert len(after.nodes) == len(graph.nodes)


@pytest.mark.parametrize("is_output", [False, True])
def test_what_others_read_stays(is_output: bool) -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, (3, 4)))
    f = Formula(graph)
    erf = f(Erf(), f.div(x, sqrt(2)))
    y = f.mul(f.mul(x, f.add(erf, 1.0)), 0.5)
    graph.set_outputs({"y": y, "z": erf if is_output else f(Neg(), erf)})
    infer(graph)
    _, log = optimised(graph)
    assert "fuse_activation" not in log.counts


def test_half_floats_round_their_constants() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(float16, (3, 4)))
    constants = [scalar(c, np.float16) for c in (sqrt(2), 1, 0.5)]
    erf = apply(graph, Erf(), apply(graph, Div(), x, constants[0]))
    product = apply(graph, Mul(), x, apply(graph, Add(), erf, constants[1]))
    graph.set_outputs({"y": apply(graph, Mul(), product, constants[2])})
    infer(graph)
    after, _ = optimised(graph)
    assert kinds(after) == ["Gelu"]


def test_integers_have_no_activations() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(np.dtype(np.int32), (3, 4)))
    three, low, high, six = (scalar(c, np.int32) for c in (3, 0, 6, 6))
    clip = apply(graph, Clip(), apply(graph, Add(), x, three), low, high)
    graph.set_outputs({"y": apply(graph, Div(), apply(graph, Mul(), x, clip), six)})
    infer(graph)
    _, log = optimised(graph)
    assert "fuse_activation" not in log.counts


def test_names_of_the_nodes_are_kept() -> None:
    graph = make(written(lambda f, x: f.mul(x, f(Sigmoid(), x))), (3,))
    before = [node.name for node in graph.nodes]
    after, log = optimised(graph)
    (node,) = after.nodes
    assert set(node.origin) == set(before)
    assert all(part in next(iter(log)).text for part in ("Swish", "2 nodes"))
