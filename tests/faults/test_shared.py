"""Faults in real networks, where the folder of optional models is there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, numpy_helper

from tercet.tools.compare.layers import compare_layers

from .networks import Array

#: Small ones of several kinds: convolutions, dense layers, attention, recurrence.
NAMES = (
    "acasxu-1_1",
    "cifar-resnet-sri-a",
    "dtln-1",
    "magika-v1",
    "mnist-8-cntk",
    "openwakeword-embedding",
    "ultraface-rfb-320",
    "yolofastestv2-front",
)
OPERATORS = ("Conv", "Gemm", "LSTM", "MatMul")


@pytest.fixture(params=NAMES)
def original(request: pytest.FixtureRequest, shared_models: Path) -> tuple[Path, dict[str, Array]]:
    folder = shared_models / request.param
    return folder / "model.onnx", dict(np.load(folder / "inputs.npz"))


def planted(file: Path) -> tuple[ModelProto, str]:
    """Return the model with one weight in the middle half a percent off, and the node's name."""
    model = onnx.load(file)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    able = [n for n in model.graph.node if n.op_type in OPERATORS and n.input[1] in stored]
    node: NodeProto = able[len(able) // 2]
    changed = onnx.TensorProto()
    data = numpy_helper.to_array(stored[node.input[1]])
    changed.CopyFrom(numpy_helper.from_array(data * np.float32(1.005), "changed"))
    model.graph.initializer.append(changed)
    node.input[1] = "changed"
    return model, node.name or node.output[0]


def test_found(original: tuple[Path, dict[str, Array]]) -> None:
    file, feeds = original
    model, node = planted(file)
    found = compare_layers(file, ["numpy"], feeds, other=model)
    assert [layer.nodes for layer in found.layers if layer.verdict == "wrong"] == [(node,)], found


def test_no_alarm(original: tuple[Path, dict[str, Array]]) -> None:
    file, feeds = original
    found = compare_layers(file, ["numpy", "onnxruntime"], feeds)
    assert found.ok, found
