"""compare --layers names the step of a body that is wrong, and the iteration."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tercet as api
from tercet.runtime.ir.types import Array
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
