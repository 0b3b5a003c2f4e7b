"""What holds of every fusion: no value is lost, origins are kept, refusals have a reason."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ir.verify import verify
from tercet.runtime.ops.elementwise import Add, Div, Exp, Mul, Neg, Relu, Sub, Tanh
from tercet.runtime.options import Options
from tercet.runtime.passes.driver import Context, Reason, RewriteRefusal
from tercet.runtime.passes.fusion import Found, Fusion, Outcome, Replacement, fuse, obstacle
from tercet.runtime.passes.pattern import Apply, Match, Number, OneOf, Pattern, Poly, Scaled, Var
from tercet.runtime.passes.rounding import Unfit

from .graphs import apply, kinds, make

SHAPE = (2, 3)


def scalar(number: float) -> np.ndarray:
    return np.array(number, np.float32)


def graph_of(build: Callable[[Graph, Value], Value]) -> Graph:
    return make(build, SHAPE)


def fused(graph: Graph, *fusions: Fusion) -> tuple[list[str], list[RewriteRefusal]]:
    context = Context(Options(), evaluate)
    said = list(fuse(graph, context, fusions))
    verify(graph)
    infer(graph)
    return said, context.refused


def a_relu(found: Found) -> Outcome:
    return Replacement(Relu(), (found["x"],))


#: Tanh(Exp(x)), which is called a Relu here.
RULE = Fusion(Apply(Tanh, Apply(Exp, "x")), a_relu)


def chain(graph: Graph, x: Value) -> Value:
    return apply(graph, Tanh(), apply(graph, Exp(), x))


def test_one_node_stands_for_all() -> None:
    graph = graph_of(chain)
    said, refused = fused(graph, RULE)
    (node,) = graph.nodes
    assert (node.kind, node.name, node.origin) == ("Relu", "Tanh", ("Exp", "Tanh"))
    assert node.output.type == graph.inputs[0].type
    assert said == ["Relu 'Tanh' is what 2 nodes around 'Tanh' compute"]
    assert not refused


@pytest.mark.parametrize("reason", [Reason.SHARED, Reason.RESULT])
def test_what_others_want_stays(reason: Reason) -> None:
    graph = graph_of(chain)
    inner = graph.nodes[0].output
    other = apply(graph, Neg(), inner) if reason is Reason.SHARED else inner
    graph.set_outputs({**graph.outputs, "z": other})
    before = kinds(graph)
    said, refused = fused(graph, RULE)
    assert not said
    assert kinds(graph) == before
    (why,) = refused
    assert (why.reason, why.nodes) == (reason, ("Exp", "Tanh"))
    assert why.text.startswith("Exp 'Exp' and Tanh 'Tanh' stay apart: ")


@pytest.mark.parametrize("reason", [Reason.SHAPE, Reason.NUMBERS])
def test_a_condition_has_a_reason(reason: Reason) -> None:
    def no(found: Found) -> Outcome:
        if reason is Reason.NUMBERS:
            raise Unfit("too great")
        return found.refuse(reason, "too long")

    graph = graph_of(chain)
    said, (why,) = fused(graph, Fusion(RULE.around, no))
    assert not said
    assert kinds(graph) == ["Exp", "Tanh"]
    assert why.reason is reason
    assert "too" in why.text


def test_the_longest_match_counts() -> None:
    around = Apply(Exp, "x", name="t")
    longer = OneOf(Apply(Neg, Apply(Tanh, "t")), Apply(Tanh, "t"))
    graph = graph_of(lambda g, x: apply(g, Neg(), chain(g, x)))
    fused(graph, Fusion(around, a_relu, longer, 2))
    assert kinds(graph) == ["Relu"]
    # where the value in between has another reader, the shorter one is left
    graph = graph_of(lambda g, x: apply(g, Neg(), chain(g, x)))
    graph.set_outputs({**graph.outputs, "z": graph.nodes[1].output})
    _, refused = fused(graph, Fusion(around, a_relu, longer, 2))
    assert kinds(graph) == ["Relu", "Neg"]
    assert not refused


def test_a_sum_of_anything_matches_once() -> None:
    graph = graph_of(lambda g, x: apply(g, Add(), apply(g, Exp(), x), apply(g, Tanh(), x)))
    (total,) = graph.outputs.values()
    for pattern, ways in ((Apply(Add), 1), (Apply(Add, "a"), 2), (Apply(Add, Apply(Exp, "x")), 1)):
        assert len(list(pattern.find(total, Match()))) == ways


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_reasons_the_first_of_the_graph_counts(order: int) -> None:
    graph = Graph()
    first = apply(graph, Exp(), graph.add_input("x", TensorType(float32, (2, 3))))
    second = apply(graph, Neg(), first)
    top = apply(graph, Tanh(), second)
    graph.set_outputs({"y": top, "first": first, "second": second})
    infer(graph)
    refused = obstacle(graph, list(graph.nodes)[::order], list(graph.nodes)[-1])
    assert refused is not None
    assert refused.text.endswith(f"'{first.name}' is a result of the model")


def test_what_stays_may_be_shared() -> None:
    rule = Fusion(Apply(Tanh, Apply(Exp, "x", stays=True)), a_relu)
    graph = graph_of(chain)
    graph.set_outputs({**graph.outputs, "z": graph.nodes[0].output})
    fused(graph, rule)
    assert kinds(graph) == ["Exp", "Relu"]
    graph = graph_of(chain)
    fused(graph, rule)
    assert kinds(graph) == ["Relu"]  # and goes when it has no readers


X = Var("x")
#: A pattern, a formula that it fits, and what it finds.
FITTING: dict[str, tuple[Pattern, Callable[[Graph, Value], Value], dict[str, float]]] = {
    "operands exchanged": (
        Apply(Add, Apply(Exp, X), "other"),
        lambda g, x: apply(g, Add(), x, apply(g, Exp(), x)),
        {},
    ),
    "one name, one value": (
        Apply(Mul, X, Apply(Tanh, X)),
        lambda g, x: apply(g, Mul(), apply(g, Tanh(), x), x),
        {},
    ),
    "a number": (
        Apply(Add, X, Number("n")),
        lambda g, x: apply(g, Add(), np.full((1, 1), 3, np.float32), x),
        {"n": 3},
    ),
    "a scale in steps": (
        Scaled(Apply(Exp, X), "s"),
        lambda g, x: apply(
            g,
            Neg(),
            apply(g, Div(), apply(g, Mul(), scalar(6), apply(g, Exp(), x)), scalar(4)),
        ),
        {"s": -1.5},
    ),
    "no scale": (Scaled(Apply(Exp, X), "s"), lambda g, x: apply(g, Exp(), x), {"s": 1}),
    "a polynomial": (
        Poly({(2,): 1.0, (1,): "a"}, "x"),
        lambda g, x: apply(g, Mul(), x, apply(g, Sub(), x, scalar(5))),
        {"a": -5},
    ),
}


@pytest.mark.parametrize("name", FITTING)
def test_patterns(name: str) -> None:
    pattern, build, numbers = FITTING[name]
    graph = graph_of(build)
    (found, *_) = pattern.find(graph.outputs["y"], Match())
    assert found["x"] is graph.inputs[0]
    assert found.numbers == pytest.approx(numbers)
    assert found.nodes == set(graph.nodes)


UNFIT: dict[str, tuple[Pattern, Callable[[Graph, Value], Value]]] = {
    "another operator": (Apply(Exp, X), lambda g, x: apply(g, Tanh(), x)),
    "another attribute": (Apply(Relu(), X), lambda g, x: apply(g, Tanh(), x)),
    "operands of a difference exchanged": (
        Apply(Sub, X, Apply(Exp, X)),
        lambda g, x: apply(g, Sub(), apply(g, Exp(), x), x),
    ),
    "one name, two values": (
        Apply(Mul, Apply(Exp, X), Apply(Tanh, X)),
        lambda g, x: apply(g, Mul(), apply(g, Exp(), x), apply(g, Tanh(), apply(g, Neg(), x))),
    ),
    "another number": (Apply(Add, X, 2.0), lambda g, x: apply(g, Add(), x, scalar(3))),
    "a number that adds an axis": (
        Apply(Add, X, 2.0),
        lambda g, x: apply(g, Add(), x, np.full((1, 1, 1), 2, np.float32)),
    ),
    "another polynomial": (
        Poly({(2,): 1.0}, "x"),
        lambda g, x: apply(g, Mul(), x, apply(g, Add(), x, scalar(1))),
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit(name: str) -> None:
    pattern, build = UNFIT[name]
    graph = graph_of(build)
    assert not list(pattern.find(graph.outputs["y"], Match()))
