"""Recurrent layers by constant weights are prepared once; runs differ only in their inputs."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tercet
from tercet.backends.numpy.ops import recurrent

from .nodes import by_onnxruntime, drawn

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
#: Activations of one direction that are not the usual ones, of which some gates are halved.
OTHERS = {
    "RNN": ["Sigmoid"],
    "GRU": ["Sigmoid", "Softsign"],
    "LSTM": ["Sigmoid", "Relu", "Tanh"],
}
TIME, SIZE = 5, 6
SHAPES = [(1, 3), (1, 16), (3, 5), (2, 33), (4, 200)]  # of a state


def network(
    kind: str, batch: int, hidden: int, direction: str, lengths: bool, **attributes: Any
) -> ModelProto:
    """Return a layer with constant weights, whose first states are inputs."""
    count, rng = 2 if direction == "bidirectional" else 1, np.random.default_rng(3)
    rows, most = GATES[kind] * hidden, hidden**-0.5
    shapes = {"w": (count, rows, SIZE), "r": (count, rows, hidden), "b": (count, 2 * rows)}
    constants = [
        numpy_helper.from_array(rng.uniform(-most, most, shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    shapes = {"x": (TIME, batch, SIZE), "h": (count, batch, hidden)}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    inputs.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, (batch,)))
    names = ["x", "w", "r", "b", "lengths" if lengths else "", "h"]
    results = ["y", "last", "cell"][: 3 if kind == "LSTM" else 2]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in results]
    node = helper.make_node(
        kind, names, results, hidden_size=hidden, direction=direction, **attributes
    )
    inputs = inputs if lengths else inputs[:2]
    graph = helper.make_graph([node], kind, inputs, outputs, constants)
    opset = helper.make_opsetid("", 20)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9)


def variants() -> list[tuple[str, dict[str, Any]]]:
    """Return layers with their attributes."""
    found: list[tuple[str, dict[str, Any]]] = [("GRU", {"linear_before_reset": 1})]
    for kind, others in OTHERS.items():
        found += [(kind, {}), (kind, {"activations": others})]
    return found


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("kind", "attributes"), variants(), ids=str)
def test_runs_agree_with_onnxruntime(kind: str, attributes: dict[str, Any], direction: str) -> None:
    if "activations" in attributes and direction == "bidirectional":  # of two kinds, one for each
        usual = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
        attributes = {"activations": [*attributes["activations"], *usual[kind]]}
    for (batch, hidden), lengths in product(SHAPES, (False, True)):
        model = network(kind, batch, hidden, direction, lengths, **attributes)
        with tercet.load(model, backend="numpy") as ours:
            for seed in range(3):
                given = drawn(model, seed)
                wanted = by_onnxruntime(model, given)
                for found, other in zip(ours.run(given).values(), wanted, strict=True):
                    np.testing.assert_allclose(found, other, rtol=1e-5, atol=2e-6)


def batch_first(model: ModelProto) -> ModelProto:
    """Return the layer with the batch as the first axis of inputs and results."""
    found = ModelProto()
    found.CopyFrom(model)
    found.graph.node[0].attribute.append(helper.make_attribute("layout", 1))
    for given in found.graph.input:
        dims = given.type.tensor_type.shape.dim
        if len(dims) == 3:
            dims[0].dim_value, dims[1].dim_value = dims[1].dim_value, dims[0].dim_value
    return found


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize(("kind", "attributes"), variants(), ids=str)
def test_batches_first(
    kind: str, attributes: dict[str, Any], direction: str, lengths: bool
) -> None:
    """onnxruntime lacks that layout."""
    if "activations" in attributes and direction == "bidirectional":
        attributes = {"activations": [*attributes["activations"], *["Tanh"] * len(OTHERS[kind])]}
    for batch, hidden in [(1, 1), (1, 3), (3, 40)]:
        model = network(kind, batch, hidden, direction, lengths, **attributes)
        given = drawn(model, 1)
        y, *states = by_onnxruntime(model, given)
        wanted = [np.transpose(y, (2, 0, 1, 3)), *(np.swapaxes(each, 0, 1) for each in states)]
        moved = {n: x.swapaxes(0, 1) if x.ndim == 3 else x for n, x in given.items()}
        with tercet.load(batch_first(model), backend="numpy") as ours:
            for found, other in zip(ours.run(moved).values(), wanted, strict=True):
                np.testing.assert_allclose(found, other, rtol=1e-5, atol=2e-6)


def test_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    activations = recurrent.activations
    monkeypatch.setattr(recurrent, "activations", lambda *a: made.append(a) or activations(*a))
    model = network("LSTM", 1, 16, "forward", lengths=False)
    with tercet.load(model, backend="numpy") as ours:
        for seed in range(3):
            ours.run(drawn(model, seed))
    assert len(made) == 1
