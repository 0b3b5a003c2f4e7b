"""Two recurrences in a row, the second of which begins with a state that is made in many ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

SIZE = 8
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
#: An operator on the way to the state: its further inputs, which are constants, and attributes.
Link = tuple[str, Sequence[Any], Mapping[str, Any]]


def squeeze(*axes: int) -> Link:
    return ("Squeeze", (np.array(axes),), {})


def reshape(*dims: int) -> Link:
    return ("Reshape", (np.array(dims),), {})


def of(operator: str, *constants: Any, **attributes: Any) -> Link:
    return (operator, constants, attributes)


#: By name: what the state is made of, by which operators, and which of them drops its last axis.
WAYS: Mapping[str, tuple[Sequence[int], Sequence[Link], str]] = {
    "squeezed": ((1, 1, SIZE, 1), (squeeze(3),), "Squeeze"),
    "in two steps": ((1, 1, SIZE, 1), (squeeze(0, 3), reshape(1, 1, SIZE)), "Squeeze"),
    "reshaped": ((1, 1, SIZE, 1), (reshape(1, 1, SIZE),), "Reshape"),
    "and rectified": ((1, 1, SIZE, 1), (squeeze(3), of("Relu")), "Squeeze"),
    "summed": (
        (1, 1, SIZE, 2),
        (of("ReduceSum", np.array([3]), keepdims=0),),
        "ReduceSum",
    ),
    "picked": ((1, 1, SIZE, 2), (of("Gather", np.array(1), axis=3),), "Gather"),
    "other axes": ((1, SIZE, 1), (reshape(1, 1, SIZE),), ""),
    "a first axis": ((1, 1, 1, SIZE), (squeeze(0),), ""),
    "another sum": ((1, 1, 2, SIZE), (of("ReduceSum", np.array([2]), keepdims=0),), ""),
    "and added": ((1, 1, SIZE, 1), (squeeze(3), of("Add", np.float32(1))), ""),
    "as it is": ((1, 1, SIZE), (), ""),
}


def recurrences(kind: str, way: str, count: int = 2) -> ModelProto:
    """Return recurrences in a row; the last one has such a state."""
    rng = np.random.default_rng(0)
    weights: list[TensorProto] = []
    nodes: list[Any] = []

    def constant(data: Any) -> str:
        weights.append(numpy_helper.from_array(np.asarray(data), f"c{len(weights)}"))
        return weights[-1].name

    def add(operator: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [f"v{len(nodes)}"], **attributes))
        return f"v{len(nodes) - 1}"

    dims, links, _ = WAYS[way]
    state = "state"
    for operator, constants, attributes in links:
        state = add(operator, state, *map(constant, constants), **attributes)
    x, gates = "x", GATES[kind] * SIZE
    for i in range(count):
        own = (rng.standard_normal((1, gates, SIZE)).astype(np.float32) for _ in range(2))
        begins = ("", state) if i == count - 1 else ()
        x = add(kind, x, *map(constant, own), "", *begins, hidden_size=SIZE, name=f"loop{i}")
        x = add("Squeeze", x, constant(np.array([1])))
    found = helper.make_tensor_value_info
    inputs = [found("x", 1, (3, 1, SIZE)), found("state", 1, dims)]
    graph = helper.make_graph(nodes, "g", inputs, [found(x, 1, (3, 1, SIZE))], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
