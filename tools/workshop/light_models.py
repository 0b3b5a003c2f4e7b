"""The nine networks that the `onnx` package ships without weights, with random weights.

Their own weights are one repeated constant, so their outputs prove nothing. Here they get seeded
random weights of a size that keeps the activations near 1 in every layer, and they stop in front
of the softmax, whose saturation would hide errors. Their weights are constants and no inputs, as
exporters have long written them: a runtime may fold what it likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from zlib import crc32

import numpy as np
import onnx
import onnx.backend.test
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from ...runtime.ir.types import Array

#: What the scale at the end of a residual branch is multiplied by: sixteen sums of numbers near 1
#: would leave the range of half precision.
BRANCH = np.float32(0.4)

NAMES = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)


def light_file(name: str) -> Path:
    """Return the path of a light model in the `onnx` package."""
    return Path(onnx.backend.test.__file__).parent / "data" / "light" / f"light_{name}.onnx"


def light_shapes(name: str, units: Mapping[int, int]) -> ModelProto:
    """Return a light model as it is shipped: nodes make its weights, all of them equal.

    Args:
        name: one of `NAMES`.
        units: sizes of weights that become others, wherever they occur.
    """
    model = onnx.load(light_file(name))
    for tensor in model.graph.initializer:
        sizes = numpy_helper.to_array(tensor)
        if sizes.dtype == np.int64:
            found = [units.get(size, size) for size in sizes.ravel().tolist()]
            made = np.array(found, np.int64).reshape(sizes.shape)
            tensor.CopyFrom(numpy_helper.from_array(made, tensor.name))
    return model


def light_model(name: str, seed: int = 0, units: Mapping[int, int] | None = None) -> ModelProto:
    """Return a light model that gives logits, with random weights.

    Args:
        name: one of `NAMES`.
        seed: another seed gives other weights.
        units: sizes of weights that become others, wherever they occur.
    """
    model = light_shapes(name, units or {})
    graph = model.graph
    shapes = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    roles, ends = _roles(nodes), _branch_ends(nodes)
    rng = np.random.default_rng(seed + crc32(name.encode()))
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            weight = node.output[0]
            shape = tuple(map(int, shapes[node.input[0]]))
            data = _weights(*roles.get(weight, ("", 0)), shape, rng)
            if weight in ends:
                data *= BRANCH
            tensor = graph.initializer.add(name=weight, data_type=TensorProto.FLOAT, dims=shape)
            tensor.raw_data = data.tobytes()
    if nodes[-1].op_type == "Softmax":
        graph.output[0].CopyFrom(onnx.ValueInfoProto(name=nodes.pop().input[0]))
        graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    del graph.node[:]
    graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input}
    for i in reversed(range(len(graph.initializer))):
        if graph.initializer[i].name not in read:
            del graph.initializer[i]
    stored = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name in read - stored]
    del graph.input[:]
    graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)  # from 4 on, initializers need not be inputs
    return model


def light_inputs(model: ModelProto, seed: int = 0) -> dict[str, Array]:
    """Return standard normal inputs of a light model."""
    rng = np.random.default_rng(seed)
    return {
        value.name: rng.standard_normal(
            [dim.dim_value for dim in value.type.tensor_type.shape.dim], np.float32
        )
        for value in model.graph.input
    }


def _roles(nodes: Iterable[NodeProto]) -> dict[str, tuple[str, int]]:
    """Return for each tensor the operator that reads it, and as which input."""
    return {name: (node.op_type, i) for node in nodes for i, name in enumerate(node.input)}


def _branch_ends(nodes: Iterable[NodeProto]) -> set[str]:
    """Return the scales of batch-norms whose result is added to another branch."""
    added = {name for node in nodes if node.op_type == "Sum" for name in node.input}
    norms = (node for node in nodes if node.op_type == "BatchNormalization")
    return {node.input[1] for node in norms if node.output[0] in added}


def _weights(operator: str, place: int, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if operator == "Conv" and place == 1:
        data = _normal(shape, np.sqrt(2 / np.prod(shape[1:])), rng)
    elif operator == "Gemm" and place == 1:
        data = _normal(shape, np.sqrt(1 / max(shape)), rng)
    elif operator == "BatchNormalization" and place in (1, 4):
        data = rng.uniform(0.5, 1.5, shape)
    elif operator == "Unsqueeze":  # scale and shift of Caffe's scale layers
        data = rng.uniform(0.6, 1.2, shape)
    else:
        data = rng.standard_normal(shape) * 0.1
    return data.astype(np.float32, copy=False)


def _normal(shape: tuple[int, ...], deviation: np.float64, rng: np.random.Generator) -> Array:
    """Return numbers that are multiplied in float64, though not all of them at one time."""
    data = rng.standard_normal(shape, np.float32)
    return np.multiply(data, deviation, out=data, casting="same_kind")
