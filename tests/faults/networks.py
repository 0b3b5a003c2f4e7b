"""The networks in which faults are planted: small ones of every kind, and two that others made."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import tercet
from tercet.tools.workshop.light_models import light_inputs, light_model

Array = np.ndarray[Any, Any]


class Sheet:
    """A graph that is being written; a node's only result has the node's name."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.held: dict[str, Array] = {}

    def weight(self, name: str, *shape: int, scale: float = 0.5, offset: float = 0) -> str:
        return self.hold(name, offset + self.rng.standard_normal(shape) * scale)

    def hold(self, name: str, data: Any, dtype: Any = np.float32) -> str:
        self.held[name] = np.asarray(data, dtype)
        return name

    def node(self, name: str, op: str, *inputs: str, outputs: Any = (), **attributes: Any) -> str:
        results = list(outputs) or [name]
        self.nodes.append(helper.make_node(op, inputs, results, name=name, **attributes))
        return results[0]

    def model(self, x: tuple[int, ...], result: str, dtype: int = TensorProto.FLOAT) -> ModelProto:
        held = [numpy_helper.from_array(data, name) for name, data in self.held.items()]
        y = onnx.ValueInfoProto(name=result)
        y.type.tensor_type.elem_type = TensorProto.FLOAT
        given = helper.make_tensor_value_info("x", dtype, x)
        graph = helper.make_graph(self.nodes, "network", [given], [y], held)
        opsets = [helper.make_opsetid("", 18)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def classifier() -> ModelProto:
    """Convolutions with batch norms and affine layers, pooling, a dense layer."""
    s = Sheet(1)
    x = "x"
    for i, (before, after) in enumerate(((3, 8), (8, 8), (8, 12)), 1):
        s.weight(f"w{i}", after, before, 3, 3, scale=0.3)
        s.weight(f"b{i}", after)
        pads = [1, 1, 1, 1]
        x = s.node(f"conv{i}", "Conv", x, f"w{i}", f"b{i}", pads=pads, kernel_shape=[3, 3])
        for name, offset in (("scale", 1), ("shift", 0), ("mean", 0)):
            s.weight(f"{name}{i}", after, scale=0.2, offset=offset)
        s.hold(f"var{i}", 0.01 + s.rng.random(after) * 0.1)
        parts = (f"{name}{i}" for name in ("scale", "shift", "mean", "var"))
        x = s.node(f"norm{i}", "BatchNormalization", x, *parts, epsilon=1e-3)
        x = s.node(f"relu{i}", "Relu", x)
    x = s.node("pool", "MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    s.weight("w4", 12, 1, 3, 3)
    x = s.node("depthwise", "Conv", x, "w4", group=12, pads=[1, 1, 1, 1])
    x = s.node("leaky", "LeakyRelu", x, alpha=0.1)
    x = s.node("average", "AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    x = s.node("lrn", "LRN", x, size=3, alpha=0.5, beta=0.75, bias=1.0)
    x = s.node("mean", "GlobalAveragePool", x)
    x = s.node("flat", "Flatten", x)
    s.weight("w5", 12, 12)
    s.weight("b5", 12)
    x = s.node("dense", "Gemm", x, "w5", "b5", transB=1)
    return s.model((2, 3, 10, 10), s.node("classes", "Softmax", x, axis=1))


def transformer() -> ModelProto:
    """One block: attention of two heads, a norm behind each half, a Gelu in its formula."""
    s = Sheet(2)
    for name in ("q", "k", "v", "o"):
        s.weight(f"w{name}", 8, 8, scale=0.6)
        s.weight(f"b{name}", 8)
    s.hold("heads", [1, 6, 2, 4], np.int64)
    s.hold("whole", [1, 6, 8], np.int64)
    heads: dict[str, str] = {}
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        y = s.node(f"{name}_product", "MatMul", "x", f"w{name}")
        y = s.node(f"{name}_bias", "Add", y, f"b{name}")
        y = s.node(f"{name}_split", "Reshape", y, "heads")
        heads[name] = s.node(f"{name}_heads", "Transpose", y, perm=order)
    scores = s.node("scores", "MatMul", heads["q"], heads["k"])
    scores = s.node("scaled", "Div", scores, s.hold("root", 2.0))
    weights = s.node("weights", "Softmax", scores, axis=-1)
    y = s.node("mixed", "MatMul", weights, heads["v"])
    y = s.node("joined_heads", "Transpose", y, perm=[0, 2, 1, 3])
    y = s.node("joined", "Reshape", y, "whole")
    y = s.node("o_product", "MatMul", y, "wo")
    y = s.node("o_bias", "Add", y, "bo")
    y = s.node("residual", "Sub", "x", y)
    s.weight("gain", 8, scale=0.2, offset=1)
    s.weight("shift", 8)
    y = s.node("norm", "LayerNormalization", y, "gain", "shift", axis=-1, epsilon=1e-3)
    s.weight("w1", 8, 16)
    z = s.node("wide", "MatMul", y, "w1")
    e = s.node("gelu_div", "Div", z, s.hold("sqrt2", np.sqrt(2)))
    e = s.node("gelu_erf", "Erf", e)
    e = s.node("gelu_add", "Add", e, s.hold("one", 1.0))
    e = s.node("gelu_mul", "Mul", z, e)
    e = s.node("gelu_half", "Mul", e, s.hold("half", 0.5))
    s.weight("w2", 16, 8)
    z = s.node("narrow", "MatMul", e, "w2")
    return s.model((1, 6, 8), s.node("out", "Add", y, z))


def recurrent() -> ModelProto:
    """An LSTM in both directions, a GRU, means over time and differences of both."""
    s = Sheet(3)
    s.weight("w", 2, 20, 4)
    s.weight("r", 2, 20, 5)
    s.weight("b", 2, 40)
    y = s.node(
        "lstm",
        "LSTM",
        "x",
        "w",
        "r",
        "b",
        outputs=["all"],
        hidden_size=5,
        direction="bidirectional",
    )
    y = s.node("swapped", "Transpose", y, perm=[0, 2, 1, 3])
    s.hold("rows", [7, 2, 10], np.int64)
    y = s.node("rows_of", "Reshape", y, "rows")
    s.weight("gw", 1, 9, 10)
    s.weight("gr", 1, 9, 3)
    s.weight("gb", 1, 18)
    y = s.node("gru", "GRU", y, "gw", "gr", "gb", outputs=["steps"], hidden_size=3)
    mean = s.node("time_mean", "ReduceMean", y, s.hold("first", [0], np.int64), keepdims=1)
    apart = s.node("apart", "Sub", y, mean)
    square = s.node("square", "Mul", apart, apart)
    total = s.node("total", "ReduceSum", square, s.hold("last", [3], np.int64), keepdims=1)
    summed = s.node("running", "CumSum", total, s.hold("axis0", 0, np.int64))
    return s.model((7, 2, 4), s.node("squashed", "Tanh", summed))


def detector() -> ModelProto:
    """Two scales that are resized, joined, split, sliced and gathered."""
    s = Sheet(4)
    s.weight("w1", 6, 3, 3, 3)
    s.weight("w2", 6, 6, 3, 3)
    s.weight("w3", 12, 4, 1, 1)
    s.weight("b3", 12)
    a = s.node("fine", "Conv", "x", "w1", pads=[1, 1, 1, 1])
    a = s.node("clip", "Clip", a, s.hold("least", -2.0), s.hold("most", 2.0))
    pads = s.hold("pads", [0, 0, 1, 1, 0, 0, 1, 1], np.int64)
    b = s.node("padded", "Pad", a, pads, mode="reflect")
    b = s.node("coarse", "Conv", b, "w2", strides=[2, 2])
    s.hold("scales", [1, 1, 2, 2])
    b = s.node("larger", "Resize", b, "", "scales", mode="linear")
    joined = s.node("joined", "Concat", a, b, axis=1)
    parts = ["one", "two", "three"]
    s.node("parts", "Split", joined, outputs=parts, axis=1, num_outputs=3)
    y = s.node("difference", "Sub", "one", "three")
    y = s.node("product", "Mul", y, "two")
    y = s.node("head", "Conv", y, "w3", "b3")
    y = s.node("gate", "Sigmoid", y)
    names = (
        s.hold("from", [2], np.int64),
        s.hold("to", [10], np.int64),
        s.hold("at", [1], np.int64),
    )
    y = s.node("slice", "Slice", y, *names)
    order = s.hold("order", [3, 0, 2, 1, 7, 4, 6, 5], np.int64)
    y = s.node("picked", "Gather", y, order, axis=1)
    y = s.node("space", "DepthToSpace", y, blocksize=2)
    y = s.node("power", "Pow", y, s.hold("two_", 1.5))
    return s.model((1, 3, 8, 8), s.node("norm", "LpNormalization", y, axis=-1))


def quantized() -> ModelProto:
    """Steps of a 255th between QuantizeLinear and DequantizeLinear, and products of integers."""
    s = Sheet(5)
    s.hold("xs", 0.03)
    s.hold("xz", 120, np.uint8)
    s.hold("wq", s.rng.integers(-90, 90, (6, 3, 3, 3)), np.int8)
    s.hold("ws", 0.004 + s.rng.random(6) * 0.01)
    s.hold("wz", np.zeros(6), np.int8)
    s.hold("ys", 0.05)
    s.hold("yz", 110, np.uint8)
    s.hold("bq", s.rng.integers(-500, 500, 6), np.int32)
    q = s.node("quantize", "QuantizeLinear", "x", "xs", "xz")
    operands = (q, "xs", "xz", "wq", "ws", "wz", "ys", "yz", "bq")
    q = s.node("qconv", "QLinearConv", *operands, pads=[1, 1, 1, 1])
    y = s.node("dequantize", "DequantizeLinear", q, "ys", "yz")
    y = s.node("relu", "Relu", y)
    y = s.node("again", "QuantizeLinear", y, "ys", s.hold("zero", 0, np.uint8))
    s.hold("iw", s.rng.integers(-50, 50, (4, 6, 1, 1)), np.int8)
    y = s.node("iconv", "ConvInteger", y, "iw")
    y = s.node("float", "Cast", y, to=TensorProto.FLOAT)
    return s.model((1, 3, 6, 6), s.node("scaled", "Mul", y, s.hold("factor", 0.002)))


def digits() -> ModelProto:
    """The network of `tercet demo`."""
    return onnx.load(Path(tercet.__file__).parent / "demo" / "digits.onnx")


def squeezenet() -> ModelProto:
    """The light model of the `onnx` package on small images, as far as its fourth squeeze."""
    from tercet.tools.export.export import extract

    model = light_model("squeezenet")
    last = [node for node in model.graph.node if node.op_type == "Concat"][1]
    found = extract(model, outputs=[last.output[0]]).proto
    (x,) = (each for each in found.graph.input if len(each.type.tensor_type.shape.dim) == 4)
    for side in x.type.tensor_type.shape.dim[2:]:
        side.dim_value = 60
    del found.graph.value_info[:]
    found.graph.output[0].type.tensor_type.ClearField("shape")
    return found


NETWORKS: dict[str, Callable[[], ModelProto]] = {
    "classifier": classifier,
    "transformer": transformer,
    "recurrent": recurrent,
    "detector": detector,
    "quantized": quantized,
    "digits": digits,
    "squeezenet": squeezenet,
}


@cache
def network(name: str) -> ModelProto:
    """Return a network; not to be changed."""
    return NETWORKS[name]()


@cache
def inputs_of(name: str) -> dict[str, Array]:
    """Return what it is run on."""
    if name == "squeezenet":
        return light_inputs(network(name))
    (info,) = tercet.load(network(name)).inputs
    shape = tuple(dim if isinstance(dim, int) else 2 for dim in info.shape or ())
    return {info.name: np.random.default_rng(7).standard_normal(shape, np.float32)}
