"""compare --layers names the step of a body that is wrong, and the iteration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tercet as api
from tercet import backends
from tercet.runtime.control import body as bodies
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.types import Array
from tercet.runtime.ops.elementwise import Neg, Relu
from tercet.runtime.options import Options
from tercet.runtime.passes import STATIC_PASSES, Pass
from tercet.runtime.passes.driver import Context
from tercet.tools.bisect.bisection import bisect
from tercet.tools.compare.layer_matcher import Layer
from tercet.tools.runners.replay import BackendPlayer

from ..faults.faulty import FaultyBackend, one_percent
from .conftest import Tercet

FEEDS: dict[str, Array] = {
    "x": np.array([0.1, 0.2, 0.3, 0.4], np.float32),
    "count": np.array(7),
}
TRUTH, NUMBER = TensorProto.BOOL, TensorProto.INT64


def vector(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])


def scalar(name: str, dtype: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, [])


def model(factor: float) -> onnx.ModelProto:
    """A loop that adds to a state what an If computes of an outer value."""
    branches: dict[str, Any] = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(kind, ["r", "k"], [f"{name}_result"], name=f"{name}_product")],
            name,
            [],
            [vector(f"{name}_result")],
            [numpy_helper.from_array(np.array(factor, np.float32), "k")],
        )
        for name, kind in (("then", "Mul"), ("else", "Div"))
    }
    body = helper.make_graph(
        [
            helper.make_node("Greater", ["i", "size"], ["late"], name="is_late"),
            helper.make_node("If", ["late"], ["part"], name="choice", **branches),
            helper.make_node("Add", ["state", "part"], ["sum"], name="total"),
            helper.make_node("Identity", ["going"], ["still"], name="still"),
        ],
        "body",
        [scalar("i", NUMBER), scalar("going", TRUTH), vector("state")],
        [scalar("still", TRUTH), vector("sum")],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["r"], name="relu"),
            helper.make_node("Size", ["r"], ["size"], name="size"),  # which shapes determine
            helper.make_node("Loop", ["count", "", "r"], ["y"], name="loop", body=body),
        ],
        "g",
        [vector("x"), scalar("count", NUMBER)],
        [vector("y")],
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def path(layer: Layer | None) -> list[tuple[str, int, tuple[str, ...]]]:
    """Return where a step is wrong, from the outermost body to the innermost."""
    found: list[tuple[str, int, tuple[str, ...]]] = []
    while layer is not None and layer.inside is not None:
        inside, layer = layer.inside, layer.inside.first
        found.append((inside.body, inside.iteration, () if layer is None else layer.nodes))
    return found


@pytest.mark.parametrize(
    ("node", "iteration", "branch"),
    [("then_product", 5, "then_branch"), ("else_product", 0, "else_branch")],
)
def test_a_wrong_kernel_in_a_branch(node: str, iteration: int, branch: str) -> None:
    faulty = BackendPlayer("faulty", (FaultyBackend({node}, one_percent),))
    found = api.compare_layers(model(0.5), ["numpy", faulty], FEEDS)
    assert path(found.first) == [("body", iteration, ("choice",)), (branch, 0, (node,))]


NORMALIZED = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4, 8] x) => (float[4, 8] y) <int64 count = {3}, bool go = {1}> {
        [loop] y = Loop (count, go, x) <body =
            b (int64 i, bool on, float[n, m] s) => (bool still, float[n, m] t)
            <float two = {2.0}, float tiny = {1e-5}> {
                still = Identity (on)
                [mean] m = ReduceMean <axes = [-1]> (s)
                [centred] d = Sub (s, m)
                [square] q = Pow (d, two)
                [variance] v = ReduceMean <axes = [-1]> (q)
                [shifted] w = Add (v, tiny)
                [deviation] r = Sqrt (w)
                [scaled] t = Div (d, r)
            }>
    }"""


def test_a_kernel_that_only_a_body_with_known_sizes_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model runs is normalized in one step, which no single node of the file is."""

    def damage(data: Array) -> None:
        if data.shape[-1] > 1:
            one_percent(data)

    def loaded(options: Options) -> list[FaultyBackend]:
        return [FaultyBackend({"mean"}, damage)]

    monkeypatch.setattr(backends, "_foreign", lambda: {"faulty": lambda: loaded})
    model = onnx.parser.parse_model(NORMALIZED)
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 8), np.float32)}
    assert api.compare(model, ["numpy", "faulty"], feeds, repeat=0).verdict == "MISMATCH"
    runners = ["numpy", BackendPlayer("faulty", (FaultyBackend({"mean"}, damage),))]
    found = api.compare_layers(model, runners, feeds)
    ((body, iteration, nodes),) = path(found.first)
    assert (body, iteration) == ("body", 0)
    assert {"mean", "scaled"} <= set(nodes)
    halved = bisect(model, runners, feeds)
    assert (halved.fault, halved.nodes) == ("nodes", ("loop",))
    assert halved.reduced is not None
    assert api.compare_layers(model, runners, feeds, optimise=False).ok


def test_a_wrong_pass_on_a_body_with_known_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rewrite of the graph around it is to blame, and so its owner is."""

    def run(graph: Graph, context: Context) -> Iterator[str]:
        for node in graph.nodes:
            if isinstance(node.op, Relu):
                graph.set_op(node, Neg())
                yield "made relu a neg"

    monkeypatch.setattr(bodies, "STATIC_PASSES", (*STATIC_PASSES, Pass("spoil", run, "last")))
    feeds = {"x": np.array([[-1, 2]], np.float32)}
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 2] x) => (float[1, 2] z) <int64 count = {1}, bool go = {1}> {
            [loop] y = Loop (count, go, x) <body =
                b (int64 i, bool on, float[n, m] s) => (bool still, float[n, m] t) {
                    still = Identity (on)
                    [relu] t = Relu (s)
                }>
            [last] z = Tanh (y)
        }""")
    assert api.compare(model, ["onnx.reference", "numpy"], feeds, repeat=0).verdict == "MISMATCH"
    found = api.compare_layers(model, ["numpy", "numpy"], feeds)
    assert [finding.agreement.output for finding in found.rewritten] == ["z"]
    assert found.first is not None
    assert found.first.nodes == ("loop",)
    halved = bisect(model, ["numpy"], feeds, reduce=False)
    assert (halved.fault, halved.nodes) == ("nodes", ("loop",))


def test_an_edited_body(tercet: Tercet) -> None:
    for name, factor in (("loop.onnx", 0.5), ("edited.onnx", 0.51)):
        onnx.save(model(factor), name)
    np.savez("loop.npz", allow_pickle=False, **FEEDS)
    line = "compare", "loop.onnx", "--layers", "-b", "numpy", "--other", "edited.onnx"
    done = tercet(*line, "--inputs-from", "loop.npz")
    assert done.code == 1
    assert "first diverging step: loop (Loop)" in done.out
    assert "in body, iteration 0: choice (If), step 2 of 4" in done.out
    assert "in else_branch, iteration 0: else_product (Div), step 1 of 1" in done.out
    written = json.loads(tercet(*line, "--inputs-from", "loop.npz", "--json").out)
    (wrong,) = (layer for layer in written["layers"] if layer["verdict"] == "wrong")
    assert (wrong["inside"]["body"], wrong["inside"]["iteration"]) == ("body", 0)
    assert [layer["nodes"] for layer in wrong["inside"]["layers"]][1] == ["choice"]


def test_exchanged_branches_are_the_fault_of_their_owner() -> None:
    exchanged = model(0.5)
    body = exchanged.graph.node[-1].attribute[0].g
    one, other = body.node[1].attribute
    one.name, other.name = other.name, one.name
    found = api.compare_layers(model(0.5), ["numpy"], FEEDS, other=exchanged)
    assert path(found.first) == [("body", 0, ("choice",))]
