"""Networks that people export from PyTorch, written here node by node, with random weights.

They have the structure and size of the originals, in the form that PyTorch's exporters write: batch
normalizations folded into the convolutions, MatMul and Add for a linear layer of tokens, Gelu and
(before opset 17) LayerNormalization spelled out, the scale of attention as a Div after the matrix
product (TorchScript) or as a Mul on either side of it (dynamo).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import sqrt
from typing import Any
from zlib import crc32

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from ...runtime.ir.types import Array


class Sheet:
    """A graph that is being written: nodes, constants and the random numbers of the weights.

    Args:
        name: of the graph; together with `seed` it decides the weights.
        seed: another seed gives other weights.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.rng = np.random.default_rng(seed + crc32(name.encode()))
        self.nodes: list[NodeProto] = []
        self.stored: dict[str, Array] = {}

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node and return the name of its (first) result."""
        return self.nodes_of(op, inputs, outputs, **attributes)[0]

    def nodes_of(
        self, op: str, inputs: Iterable[str], outputs: int, **attributes: Any
    ) -> list[str]:
        """Add a node of several results and return their names."""
        name = f"/{op}_{len(self.nodes)}"
        results = [f"{name}_output_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), results, name, **attributes))
        return results

    def store(self, data: Array, name: str = "val") -> str:
        """Add a constant and return its name."""
        label = f"{name}_{len(self.stored)}"
        self.stored[label] = data
        return label

    def scalar(self, number: float) -> str:
        """Add a float32 constant of no axes."""
        return self.store(np.array(number, np.float32))

    def integers(self, *numbers: int) -> str:
        """Add an int64 vector."""
        return self.store(np.array(numbers, np.int64))

    def weight(self, *shape: int, scale: float, name: str = "weight") -> str:
        """Add normally distributed weights of this standard deviation."""
        data = self.rng.standard_normal(shape, np.float32) * np.float32(scale)
        return self.store(data, name)

    def conv(
        self,
        x: str,
        channels: tuple[int, int],
        kernel: int,
        stride: int = 1,
        group: int = 1,
        gain: float = 1,
    ) -> str:
        """Add a convolution with a bias, padded to keep the size (`kernel` is odd).

        With a `gain` of 1 its results are as large as what it reads, after a Relu.
        """
        before, after = channels
        taps = before // group * kernel * kernel
        scale = gain * sqrt(2 / taps)
        weights = self.weight(after, before // group, kernel, kernel, scale=scale)
        pad = kernel // 2
        return self.node(
            "Conv",
            x,
            weights,
            self.weight(after, scale=0.1, name="bias"),
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[pad, pad, pad, pad],
            dilations=[1, 1],
            group=group,
        )

    def gemm(self, x: str, before: int, after: int) -> str:
        """Add a linear layer of a matrix."""
        weights = self.weight(after, before, scale=sqrt(1 / before))
        bias = self.weight(after, scale=0.1, name="bias")
        return self.node("Gemm", x, weights, bias, alpha=1.0, beta=1.0, transB=1)

    def linear(self, x: str, before: int, after: int) -> str:
        """Add a linear layer of tokens, the bias in front as TorchScript has it."""
        weights = self.weight(before, after, scale=sqrt(1 / before), name="onnx::MatMul")
        bias = self.weight(after, scale=0.1, name="bias")
        return self.node("Add", bias, self.node("MatMul", x, weights))

    def gelu(self, x: str) -> str:
        """Add x Φ(x), spelled out."""
        half = self.node("Erf", self.node("Div", x, self.scalar(sqrt(2))))
        one = self.node("Add", half, self.scalar(1))
        return self.node("Mul", self.node("Mul", x, one), self.scalar(0.5))

    def norm_parameters(self, size: int) -> tuple[str, str]:
        """Add scale and shift of a normalization."""
        scale = self.rng.uniform(0.5, 1.5, size).astype(np.float32)
        return self.store(scale, "scale"), self.weight(size, scale=0.1, name="shift")

    def model(
        self, inputs: Sequence[ValueInfoProto], result: tuple[str, Sequence[int | str]], opset: int
    ) -> ModelProto:
        """Return the model that computes `result`, a name and its shape."""
        name, shape = result
        stored = [numpy_helper.from_array(data, label) for label, data in self.stored.items()]
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
        graph = helper.make_graph(self.nodes, self.name, list(inputs), outputs, stored)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8
        )


def image(batch: int | str = "batch") -> list[ValueInfoProto]:
    """Return the one input of a network for photographs."""
    return [helper.make_tensor_value_info("input", TensorProto.FLOAT, (batch, 3, 224, 224))]


def _vgg16(seed: int) -> ModelProto:
    """Return VGG-16: 13 convolutions of 3x3, 3 linear layers (138 million weights)."""
    sheet, x, before = Sheet("vgg16", seed), "input", 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            x = sheet.node("Relu", sheet.conv(x, (before, width), 3))
            before = width
        x = sheet.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 0, 0])
    x = sheet.node("Flatten", x, axis=1)
    x = sheet.node("Relu", sheet.gemm(x, 512 * 7 * 7, 4096))
    x = sheet.node("Relu", sheet.gemm(x, 4096, 4096))
    return sheet.model(image(), (sheet.gemm(x, 4096, 1000), ("batch", 1000)), 17)


#: Inverted residuals: expansion, channels, blocks and first stride.
_INVERTED = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _mobilenet_v2(seed: int) -> ModelProto:
    """Return MobileNetV2 of width 1: pointwise and depthwise convolutions, Clip after them."""
    sheet = Sheet("mobilenet_v2", seed)
    limits = sheet.scalar(0), sheet.scalar(6)

    def limited(x: str) -> str:
        return sheet.node("Clip", x, *limits)

    x, before = limited(sheet.conv("input", (3, 32), 3, 2)), 32
    for expansion, channels, depth, first in _INVERTED:
        for i in range(depth):
            stride, wide = first if i == 0 else 1, before * expansion
            y = x if expansion == 1 else limited(sheet.conv(x, (before, wide), 1))
            y = limited(sheet.conv(y, (wide, wide), 3, stride, wide))
            y = sheet.conv(y, (wide, channels), 1)
            x = sheet.node("Add", x, y) if stride == 1 and before == channels else y
            before = channels
    x = limited(sheet.conv(x, (before, 1280), 1))
    x = sheet.node("Flatten", sheet.node("GlobalAveragePool", x), axis=1)
    return sheet.model(image(), (sheet.gemm(x, 1280, 1000), ("batch", 1000)), 17)


#: By name: a function of the seed of the weights.
MAKERS: Mapping[str, Callable[[int], ModelProto]] = {
    "mobilenet_v2": _mobilenet_v2,
    "vgg16": _vgg16,
}
