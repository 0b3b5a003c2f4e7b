"""Memory: two buffers for a chain, skips, one workspace, equal nodes merged."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tercet


def conv_chain(channels: list[int], size: int) -> bytes:
    """Return a model of 3x3 convolutions with ReLU."""
    nodes, weights, name = [], [], "x"
    for i, (c, m) in enumerate(pairwise(channels)):
        w = np.random.default_rng(i).standard_normal((m, c, 3, 3), np.float32) / (3 * c**0.5)
        weights.append(numpy_helper.from_array(w, f"w{i}"))
        nodes.append(helper.make_node("Conv", [name, f"w{i}"], [f"c{i}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"]))
        name = f"r{i}"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels[0], size, size])
    y = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "chain", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


def test_a_chain_takes_two_buffers(backend: str) -> None:
    """141.8 MB of outputs in two buffers of 25 MB is the figure of the talk."""
    with tercet.load(conv_chain([16] * 7, 64), backend) as model:
        device = [d for d in model.memory().activations if d != "cpu"] or ["cpu"]
        one = 16 * 64 * 64 * 4
        assert model.memory().activations[device[0]] == 2 * one
        assert model.memory().tensors[device[0]] >= 6 * one


@pytest.mark.parametrize(("name", "limit"), [("resnet50", 10.7e6), ("vgg19", 25.7e6)])
def test_real_networks_fit(name: str, limit: float, light_models: Path) -> None:
    """Skips break two buffers; the general planner keeps ResNet-50 under 10.7 MB."""
    with tercet.load(light_models / f"light_{name}.onnx") as model:
        memory = model.memory()
        assert memory.floor["cpu"] <= memory.activations["cpu"] <= limit
        assert memory.activations["cpu"] <= 1.15 * memory.floor["cpu"]


def test_workspace_is_shared() -> None:
    """The greatest, not the sum."""
    with tercet.load(conv_chain([8, 16, 32, 32], 32)) as model:
        memory = model.memory()
        scratch = [row.step.scratch for row in model.prepare().rows if row.step]
        assert max(scratch) <= memory.workspace["cpu"] < max(scratch) + 256
        assert memory.workspace_sum["cpu"] == sum(scratch) > max(scratch)


@pytest.mark.parametrize("operator", ["AveragePool", "Resize"])
def test_three_equal_branches_become_one(operator: str, backend: str) -> None:
    """The same downsampling three times is done once."""
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8), np.float32)
    scales = numpy_helper.from_array(np.array([1, 1, 0.5, 0.5], np.float32), "scales")
    inputs = ["x", "", "scales"] if operator == "Resize" else ["x"]
    attributes: dict[str, Any] = (
        {} if operator == "Resize" else {"kernel_shape": [2, 2], "strides": [2, 2]}
    )
    nodes = [helper.make_node(operator, inputs, [f"d{i}"], **attributes) for i in range(3)]
    nodes.append(helper.make_node("Sum", ["d0", "d1", "d2"], ["y"]))
    info = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph(nodes, "cse", info[:1], info[1:], [scales])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    fallback = "numpy" if operator == "Resize" else None
    with tercet.load(proto, backend, fallback=fallback) as model:
        assert [node.kind for node in model.graph.nodes].count(operator) == 1
        (merged,) = model(x)
    with tercet.load(proto, backend, fallback=fallback, stop_at=0) as plain:
        np.testing.assert_array_equal(merged, plain(x)[0])


def test_steady_state_allocates_nothing() -> None:
    """Allocate, allocate, copy in; then only copy, compute, copy."""
    import tracemalloc

    with tercet.load(conv_chain([8, 16, 16], 64)) as model:
        x = np.ones((1, 8, 64, 64), np.float32)
        model(x)
        tracemalloc.start()
        for _ in range(5):
            model(x)
        _, maximum = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        result = 16 * 64 * 64 * 4
        assert maximum < result + 64 * 1024  # the array that is handed out, and small objects
