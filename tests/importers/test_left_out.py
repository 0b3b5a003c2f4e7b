"""Outputs that a node leaves out, by an empty name at the end or in between."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

import tercet
from tercet.runtime.errors import ModelError
from tercet.runtime.ir.types import Array


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def branch(*operators: str) -> onnx.GraphProto:
    """Return a body whose results are operators of the outer x0."""
    names = [f"of_{operator}" for operator in operators]
    nodes = [helper.make_node(op, ["x0"], [n]) for op, n in zip(operators, names, strict=True)]
    results = [helper.make_empty_tensor_value_info(name) for name in names]
    return helper.make_graph(nodes, "branch", [], results)


def model_of(operator: str, inputs: list[Array], outputs: list[str], **given: Any) -> ModelProto:
    """Return a model of one node on inputs x0, x1, …; If reads the first one in its branches."""
    names = [f"x{i}" for i in range(len(inputs))]
    ends = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in zip(names, inputs, strict=True)
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs if name]
    read = names[1:] if operator == "If" else names
    node = helper.make_node(operator, read, outputs, **given)
    graph = helper.make_graph([node], "one", ends, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


#: Operators by name: inputs, number of outputs, attributes.
CASES: dict[str, tuple[list[Array], int, dict[str, Any]]] = {
    "DynamicQuantizeLinear": ([normal(3, 6)], 3, {}),
    "GRU": ([normal(4, 2, 3), normal(1, 15, 3), normal(1, 15, 5)], 2, {"hidden_size": 5}),
    "If": (
        [normal(3), np.array(True)],
        3,
        {"then_branch": branch("Neg", "Abs", "Exp"), "else_branch": branch("Exp", "Neg", "Abs")},
    ),
    "LSTM": ([normal(4, 2, 3), normal(1, 20, 3), normal(1, 20, 5)], 3, {"hidden_size": 5}),
    "MaxPool": ([normal(1, 2, 6, 6)], 2, {"kernel_shape": [2, 2]}),
    "SoftmaxCrossEntropyLoss": ([normal(3, 6), np.array([0, 5, 2])], 2, {}),
    "Split": ([normal(3, 6)], 3, {"axis": 1, "num_outputs": 3}),
    "TopK": ([normal(3, 6), np.array([2])], 2, {}),
    "Unique": ([np.array([2, 1, 2, 3], np.float32)], 4, {}),
}


def left_out(count: int) -> Iterator[list[str]]:
    """Yield names of outputs with some of them left out, though never all."""
    for named in product((True, False), repeat=count):
        if any(named):
            yield [f"y{i}" if is_named else "" for i, is_named in enumerate(named)]


@pytest.mark.parametrize("operator", CASES)
def test_the_others_are_computed(operator: str) -> None:
    """Results are those that onnxruntime has for the node with all its outputs."""
    ort = pytest.importorskip("onnxruntime")
    inputs, count, given = CASES[operator]
    feeds = {f"x{i}": x for i, x in enumerate(inputs)}
    whole = model_of(operator, inputs, [f"y{i}" for i in range(count)], **given)
    session = ort.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
    want = {f"y{i}": data for i, data in enumerate(session.run(None, feeds))}
    for names in left_out(count):
        with tercet.load(model_of(operator, inputs, names, **given)) as model:
            found = model.run(feeds)
        assert list(found) == [name for name in names if name]
        for name, data in found.items():
            np.testing.assert_allclose(data, want[name], rtol=1e-5, atol=1e-6)


def test_what_an_operator_always_gives_has_to_be_listed() -> None:
    """An empty name leaves an output out; a shorter list contradicts the specification."""
    with pytest.raises(ModelError, match=r"computes 'v' \(TopK\): has 1 outputs; .* gives 2"):
        tercet.load(model_of("TopK", [normal(3, 6), np.array([2])], ["v"]))
    with pytest.raises(ModelError, match=r"node '' \(TopK\): has no outputs"):
        tercet.load(model_of("TopK", [normal(3, 6), np.array([2])], ["", ""]))
