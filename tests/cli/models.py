"""Small models for the command line, made on the fly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
#: Constants of so many bytes are in a file of this name, if they are all zeros.
LARGE, ZEROS = 1 << 25, "zeros.bin"
Shape = Sequence[int | str | None] | None

#: VGG-16: channels of the convolutions, M for max-pooling, then the sizes of the last layers.
VGG16 = (64, 64, "M", 128, 128, "M", *(256,) * 3, "M", *(512,) * 3, "M", *(512,) * 3, "M")
VGG16_DENSE = (4096, 4096, 1000)


def tensor(name: str, shape: Shape, dtype: int = FLOAT) -> ValueInfoProto:
    """An input or output."""
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: dict[str, np.ndarray] | None = None,
    opset: int = 21,
) -> ModelProto:
    """A model of one graph."""
    held = [_stored(data, name) for name, data in (constants or {}).items()]
    graph = helper.make_graph(nodes, "test", inputs, outputs, held)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="tests")


def _stored(data: np.ndarray, name: str) -> TensorProto:
    """Return a constant; one zero in many places is in a file that `write` makes."""
    if data.nbytes < LARGE or any(data.strides):
        return numpy_helper.from_array(data, name)
    found = TensorProto(name=name, data_type=FLOAT, dims=data.shape)
    found.data_location = TensorProto.EXTERNAL
    found.external_data.add(key="location", value=ZEROS)
    found.external_data.add(key="length", value=str(data.nbytes))
    return found


def classifier() -> ModelProto:
    """Conv, batch-norm, ReLU, pooling, a dense layer and softmax: [batch,3,8,8] → [batch,10]."""
    rng = np.random.default_rng(1)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32) / 4

    constants = {
        "w": draw(4, 3, 3, 3),
        "s": 1 + draw(4),
        "b": draw(4),
        "m": draw(4),
        "v": 1 + draw(4) ** 2,
        "fc.w": draw(10, 64),
        "fc.b": draw(10),
    }
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], name="conv", pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], name="norm"),
        helper.make_node("Relu", ["n"], ["r"], name="relu"),
        helper.make_node("MaxPool", ["r"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "fc.w", "fc.b"], ["g"], name="fc", transB=1),
        helper.make_node("Softmax", ["g"], ["scores"], name="softmax"),
    ]
    inputs, outputs = [tensor("image", ["batch", 3, 8, 8])], [tensor("scores", ["batch", 10])]
    return model_of(nodes, inputs, outputs, constants)


def adder() -> ModelProto:
    """Two inputs [n,m] with a symbol in common: their sum and its ReLU."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"], name="add"),
        helper.make_node("Relu", ["sum"], ["positive"], name="relu"),
    ]
    inputs = [tensor("a", ["n", "m"]), tensor("b", ["n", "m"])]
    return model_of(nodes, inputs, [tensor("sum", ["n", "m"]), tensor("positive", ["n", "m"])])


def unary(operator: str, shape: Shape, dtype: int = FLOAT) -> ModelProto:
    """One operator from x to y."""
    node = helper.make_node(operator, ["x"], ["y"], name="only")
    return model_of([node], [tensor("x", shape, dtype)], [tensor("y", None, dtype)])


def vgg16(scale: int = 1) -> ModelProto:
    """VGG-16 with zeros for weights, its channels divided by `scale`."""
    numbers, nodes, constants = count(), [], {}
    name, channels, pixels = "image", 3, 224

    def layer(operator: str, weights: tuple[int, ...], **attributes: Any) -> None:
        nonlocal name
        at = next(numbers)
        inputs = [name]
        if weights:
            constants[f"w{at}"] = np.broadcast_to(np.float32(0), weights)
            constants[f"b{at}"] = np.zeros(weights[0], np.float32)
            inputs += [f"w{at}", f"b{at}"]
        name = f"y{at}"
        label = f"{operator}{at}"
        nodes.append(helper.make_node(operator, inputs, [name], name=label, **attributes))

    for size in VGG16:
        if isinstance(size, str):
            layer("MaxPool", (), kernel_shape=[2, 2], strides=[2, 2])
            pixels //= 2
        else:
            layer("Conv", (size // scale, channels, 3, 3), pads=[1] * 4)
            layer("Relu", ())
            channels = size // scale
    layer("Flatten", ())
    features = channels * pixels**2
    for size in VGG16_DENSE:
        wide = size if size == VGG16_DENSE[-1] else size // scale
        layer("Gemm", (wide, features), transB=1)
        if size != VGG16_DENSE[-1]:
            layer("Relu", ())
        features = wide
    inputs = [tensor("image", [1, 3, 224, 224])]
    return model_of(nodes, inputs, [tensor(name, [1, VGG16_DENSE[-1]])], constants)


def write(model: ModelProto, file: Path) -> Path:
    """Save a model and return its path."""
    sizes = (np.prod(t.dims, dtype=int) for t in model.graph.initializer if t.external_data)
    if size := 4 * max(sizes, default=0):
        with file.with_name(ZEROS).open("wb") as zeros:
            zeros.truncate(size)  # which takes no room on the disk
    file.write_bytes(model.SerializeToString())
    return file
