"""Draws quantized layers as quantizers write them: any geometry, dtypes, biases and scales."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

#: Weights have seven bits: some CPUs add pairs of larger products with saturation.
MOST = 63
BYTES = ("uint8", "int8")


class Drawn:
    """A model that is written node by node.

    Attributes:
        feeds: its inputs.
    """

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.feeds: dict[str, Any] = {}

    def one_of(self, *these: Any) -> Any:
        """Return one at random."""
        return these[int(self.random.integers(len(these)))]

    def input(self, *shape: int) -> str:
        """Add an input of normal numbers."""
        name = f"x{len(self.feeds)}"
        self.feeds[name] = self.random.standard_normal(shape, np.float32)
        return name

    def constant(self, data: Any) -> str:
        """Add a constant."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(data), name))
        return name

    def node(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its result."""
        name = name or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], f"{kind}_{name}", **attributes))
        return name

    def quantizing(
        self, x: str, scale: float | np.float32, zero: int | None, dtype: str, name: str = ""
    ) -> str:
        """Quantize a tensor, and dequantize it again; a zero point of None is left out."""
        numbers = [self.constant(np.float32(scale))]
        if zero is not None:
            numbers.append(self.constant(np.array(zero, dtype)))
        return self.node(
            "DequantizeLinear", self.node("QuantizeLinear", x, *numbers), *numbers, name=name
        )

    def rounding(self, x: str, dtype: str, *, from_zero: bool = False) -> tuple[str, np.float32]:
        """Quantize a tensor by some scale and zero point, and return the scale as well."""
        scale = np.float32((4 + 4 * self.random.random()) / 255)
        low = np.iinfo(dtype).min
        zero = low if from_zero else low + int(self.random.integers(100, 156))
        return self.quantizing(x, scale, zero, dtype), scale

    def weight(
        self, *shape: int, axis: int | None = 0, dtype: str = "int8", zeros: bool = False
    ) -> tuple[str, Any]:
        """Return a dequantized weight, and its scales."""
        low = -MOST if dtype == "int8" else 0
        data = self.random.integers(low, MOST + 1, shape).astype(dtype)
        size = () if axis is None else (shape[axis],)
        scale = (0.001 + 0.01 * self.random.random(size)).astype(np.float32)
        zero = self.random.integers(low // 2, MOST // 2, size) if zeros else np.zeros(size)
        numbers = [self.constant(each) for each in (data, scale, zero.astype(dtype))]
        return self.node("DequantizeLinear", *numbers, axis=axis or 0), scale

    def bias(self, size: int, scale: Any, zero: int | None = 0) -> str:
        """Return a dequantized bias."""
        scale = np.broadcast_to(np.asarray(scale, np.float32), (size,))
        numbers = [self.random.integers(-999, 999, size).astype(np.int32), scale]
        if zero is not None:
            numbers.append(np.full(size, zero, np.int32))
        return self.node("DequantizeLinear", *map(self.constant, numbers), axis=0)

    def any_bias(self, size: int, scale: Any) -> list[str]:
        """Return none, one of floats or a dequantized one, perhaps without zero points."""
        kind = self.one_of("none", "floats", 0, None)
        if kind == "none":
            return []
        if kind == "floats":
            return [self.constant(self.random.standard_normal(size, np.float32))]
        return [self.bias(size, scale, kind)]

    def model(self) -> ModelProto:
        """Return the model, whose output is the last node's."""
        kind, output = TensorProto.FLOAT, self.nodes[-1].output[0]
        graph = helper.make_graph(
            self.nodes,
            "drawn",
            [helper.make_tensor_value_info(n, kind, x.shape) for n, x in self.feeds.items()],
            [helper.make_tensor_value_info(output, kind, None)],
            self.constants,
        )
        opsets = [helper.make_opsetid("", 21)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def convolution(d: Drawn) -> None:
    """Draw a Conv of one to three axes."""
    axes, group, channels = d.one_of(1, 2, 3), d.one_of(1, 2, 3, 8), d.one_of(1, 2, 3, 5, 16)
    filters, x_type = group * d.one_of(1, 2, 5), d.one_of(*BYTES)
    kernel, dilations, strides = ([d.one_of(*n) for _ in range(axes)] for n in KERNELS)
    pads = d.random.integers(0, 3, 2 * axes).tolist()
    sizes = [k * n + d.one_of(1, 4, 6) for k, n in zip(kernel, dilations, strict=True)]
    x, x_scale = d.rounding(d.input(d.one_of(1, 2), channels * group, *sizes), x_type)
    w_type = "int8" if x_type == "int8" else d.one_of(*BYTES)
    w, w_scale = d.weight(
        filters, channels, *kernel, axis=d.one_of(0, None), dtype=w_type, zeros=d.one_of(0, 1)
    )
    window = {"strides": strides, "dilations": dilations, "pads": pads, "group": group}
    y = d.node("Conv", x, w, *d.any_bias(filters, x_scale * w_scale), **window)
    saturates = d.one_of(False, True)
    d.rounding(d.node("Relu", y) if saturates else y, x_type, from_zero=saturates)


#: Sizes, dilations and strides of kernels.
KERNELS = (1, 2, 3), (1, 1, 2), (1, 1, 2)


def gemm(d: Drawn) -> None:
    """Draw a Gemm, whose result may be floats."""
    rows, terms, columns = d.one_of(1, 3, 5), d.one_of(4, 7, 24, 33), d.one_of(1, 3, 16)
    x_type, swaps, turns = d.one_of(*BYTES), d.one_of(0, 0, 1), d.one_of(0, 1)
    x, x_scale = d.rounding(d.input(*((terms, rows) if swaps else (rows, terms))), x_type)
    shape = (columns, terms) if turns else (terms, columns)
    by_column, w_type = d.one_of(False, True), "int8" if x_type == "int8" else d.one_of(*BYTES)
    axis = (0 if turns else 1) if by_column else None
    w, w_scale = d.weight(*shape, axis=axis, dtype=w_type, zeros=d.one_of(0, 1))
    bias = d.any_bias(columns, x_scale * w_scale)
    factor = 1.0 if bias else d.one_of(1.0, 0.3)
    y = d.node("Gemm", x, w, *bias, transA=swaps, transB=turns, alpha=factor)
    if d.one_of(False, True):
        d.rounding(y, x_type)


def product(d: Drawn) -> None:
    """Draw a MatMul of weights or of two computed tensors, perhaps with a vector added."""
    terms, columns, x_type = d.one_of(4, 7, 24, 33), d.one_of(1, 3, 16), d.one_of(*BYTES)
    rows = d.one_of((), (3,), (2, 3), (2, 2, 3))
    x, _ = d.rounding(d.input(*rows, terms), x_type)
    if d.one_of(False, True):
        w, _ = d.rounding(d.input(*rows[:-1], terms, columns), x_type)
    else:
        w_type = "int8" if x_type == "int8" else d.one_of(*BYTES)
        w, _ = d.weight(terms, columns, axis=d.one_of(1, None), dtype=w_type, zeros=d.one_of(0, 1))
    y = d.node("MatMul", x, w)
    if x_type == "uint8" and d.one_of(False, True):  # it cannot read what it makes of int8
        y = d.node("Add", y, d.constant(d.random.standard_normal(columns, np.float32)))
    if d.one_of(False, True):
        d.rounding(y, x_type)


def network(d: Drawn) -> None:
    """Draw convolutions in a row with residuals, moves and pools, and a layer at the end."""
    dtype, channels = d.one_of(*BYTES), d.one_of(3, 4, 8)
    scale, zero = np.float32(0.03), 0 if dtype == "int8" else 128
    x = d.quantizing(d.input(d.one_of(1, 2), channels, 9, 8), scale, zero, dtype)
    for _ in range(d.one_of(2, 3, 4)):
        group = d.one_of(1, channels, 2 - channels % 2)
        w, w_scale = d.weight(channels, channels // group, 3, 3, axis=d.one_of(0, None))
        bias, before = d.any_bias(channels, scale * w_scale), x
        x = d.node("Conv", x, w, *bias, group=group, pads=[1] * 4)
        move = d.one_of("", "MaxPool", "Transpose", "Relu", "Add")
        if move == "MaxPool":
            x = d.node("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4)
        if move == "Transpose":
            x = d.node("Transpose", x, perm=[0, 1, 3, 2])
        if move == "Relu":
            x, before = d.node("Relu", x), x
        if move == "Add" and len(d.nodes) < 12:
            y = d.quantizing(x, 0.05, zero, dtype)
            x = d.node("Mul", y, before)
        scale = np.float32(0.02 + 0.03 * d.random.random())
        zero = int(np.iinfo(dtype).min) if move == "Relu" else 0 if dtype == "int8" else 128
        x = d.quantizing(x, scale, zero, dtype)


LAYERS = {"Conv": convolution, "Gemm": gemm, "MatMul": product, "network": network}


def drawn(kind: str, seed: int) -> Drawn:
    """Return a model of a kind."""
    found = Drawn(seed)
    LAYERS[kind](found)
    return found
