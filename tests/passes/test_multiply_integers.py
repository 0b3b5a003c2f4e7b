"""Layers between quantizers are computed on integers: as by onnxruntime, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tercet
from tercet.backends.cuda import INTEGERS

RNG = np.random.default_rng(11)
#: Weights have seven bits: some CPUs add pairs of larger products with saturation.
MOST = 63
IMAGE = np.random.default_rng(5).standard_normal((2, 32, 7, 9), np.float32)
ROWS = np.random.default_rng(6).standard_normal((2, 5, 24), np.float32)


class Drawn:
    """A model that is written node by node."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, data: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(data), name))
        return name

    def node(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        name = name or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], f"{kind}_{name}", **attributes))
        return name

    def quantizing(self, x: str, scale: float, zero: int, dtype: str, name: str = "") -> str:
        """Quantize a tensor, and dequantize it again."""
        numbers = self.constant(np.float32(scale)), self.constant(np.array(zero, dtype))
        return self.node(
            "DequantizeLinear", self.node("QuantizeLinear", x, *numbers), *numbers, name=name
        )

    def weight(self, *shape: int, axis: int | None = 0, dtype: str = "int8") -> tuple[str, Any]:
        """Return a dequantized weight, and its scales."""
        low = -MOST if dtype == "int8" else 0
        data = RNG.integers(low, MOST + 1, shape).astype(dtype)
        size = () if axis is None else (shape[axis],)
        scale = (0.001 + 0.01 * RNG.random(size)).astype(np.float32)
        zero = np.zeros(size, dtype)
        numbers = [self.constant(each) for each in (data, scale, zero)]
        return self.node("DequantizeLinear", *numbers, axis=axis or 0), scale

    def bias(self, size: int, scale: Any, zero: int = 0) -> str:
        """Return a dequantized bias."""
        scale = np.broadcast_to(np.asarray(scale, np.float32), (size,))
        numbers = [RNG.integers(-999, 999, size).astype(np.int32), scale]
        zeros = np.full(size, zero, np.int32)
        return self.node("DequantizeLinear", *map(self.constant, (*numbers, zeros)), axis=0)

    def model(self, x: np.ndarray) -> ModelProto:
        kind, output = TensorProto.FLOAT, self.nodes[-1].output[0]
        graph = helper.make_graph(
            self.nodes,
            "drawn",
            [helper.make_tensor_value_info("x", kind, x.shape)],
            [helper.make_tensor_value_info(output, kind, None)],
            self.constants,
        )
        opsets = [helper.make_opsetid("", 21)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def convolution(
    channels: int = 32, group: int = 1, between: str = "", dtype: str = "uint8", **changes: Any
) -> ModelProto:
    """Return a quantized Conv with a bias, the parts of which may be changed."""
    drawn = Drawn()
    x = drawn.quantizing("x", 0.02, 3 if dtype == "int8" else 128, dtype)
    w, scale = drawn.weight(channels, 32 // group, 3, 3)
    bias = np.float32(0.02) * scale
    if "bias_scale" in changes:
        bias = bias * np.float32(changes["bias_scale"])
    b = drawn.bias(channels, bias, changes.get("bias_zero", 0))
    if changes.get("float_bias"):
        b = drawn.constant(RNG.standard_normal(channels).astype(np.float32))
    pads: Mapping[str, Any] = {"pads": [1, 0, 1, 1], "strides": [2, 1]}
    y = drawn.node("Conv", x, w, b, group=group, **pads)
    if between == "Relu":
        y = drawn.node("Relu", y)
    if between == "Clip":
        limits = np.float32(0), np.float32(changes.get("most", 6))
        y = drawn.node("Clip", y, *map(drawn.constant, limits))
    zero = changes.get("zero", 0 if between else 100)
    result = "uint16" if dtype == "uint16" else "uint8"
    drawn.quantizing(y, 6 / 255 if between else 0.05, zero, result)
    if changes.get("read"):
        y = drawn.node("Mul", y, drawn.node("DequantizeLinear", *drawn.nodes[-1].input))
    return drawn.model(IMAGE)


def gemm(
    transposed: int = 1, axis: int | None = 0, *, biased: bool = True, **attributes: Any
) -> ModelProto:
    drawn = Drawn()
    x = drawn.node("Flatten", drawn.quantizing("x", 0.02, 100, "uint8"), axis=2)
    x = drawn.quantizing(x, 0.02, 100, "uint8")
    shape = (16, 24) if transposed else (24, 16)
    w, scale = drawn.weight(*shape, axis=axis)
    inputs = [x, w, drawn.bias(16, np.float32(0.02) * scale)] if biased else [x, w]
    drawn.quantizing(
        drawn.node("Gemm", *inputs, transB=transposed, **attributes), 0.03, 90, "uint8"
    )
    return drawn.model(ROWS)


def product(
    axis: int | None = 1, *, computed: bool = False, terms: int = 24, quantized: bool = True
) -> ModelProto:
    drawn = Drawn()
    x = drawn.quantizing("x", 0.02, 100, "uint8")
    if terms < 24:
        bounds = (np.array([n], np.int64) for n in (0, terms, 2))
        x = drawn.node("Slice", x, *map(drawn.constant, bounds))
        x = drawn.quantizing(x, 0.02, 100, "uint8")
    if computed:
        other = drawn.quantizing(drawn.node("Sin", "x"), 0.008, 120, "uint8")
        w = drawn.node("Transpose", other, perm=[0, 2, 1])
        w = drawn.quantizing(w, 0.008, 120, "uint8")
    else:
        w, _ = drawn.weight(terms, 16, axis=axis)
    y = drawn.node("MatMul", x, w)
    if quantized:
        drawn.quantizing(y, 0.03, 90, "uint8")
    return drawn.model(ROWS)


MODELS: dict[str, ModelProto] = {
    "convolution": convolution(),
    "signed": convolution(dtype="int8"),
    "groups": convolution(group=2),
    "depthwise": convolution(group=32),
    "Relu": convolution(between="Relu"),
    "Clip": convolution(between="Clip"),
    "Gemm": gemm(),
    "Gemm, other order": gemm(0, 1),
    "Gemm without bias": gemm(biased=False),
    "Gemm of one scale": gemm(axis=None),
    "MatMul": product(),
    "MatMul of one scale": product(None),
    "MatMul of computed": product(computed=True),
}
#: Those that a backend leaves as floats, where nobody asks for integers, and why.
LEFT: dict[str, tuple[ModelProto, str]] = {
    "a bias of floats": (
        convolution(float_bias=True),
        "its bias is no integer in the scale of the sums",
    ),
    "few channels": (
        convolution(group=8),
        "groups of 4 channels, neither one nor a multiple of 16",
    ),
    "rows of no whole words": (
        product(terms=21),
        "rows of 21 integers are not known to be whole words of 4",
    ),
    "results of floats": (
        product(quantized=False),
        "its result is an output, or several nodes read it",
    ),
}
#: Those that stay layers of floats, and why.
STAY: dict[str, tuple[ModelProto, str]] = {
    "a bias of another scale": (
        convolution(bias_scale=1.0001),
        "its bias is no integer in the scale of the sums",
    ),
    "a bias with a zero point": (
        convolution(bias_zero=3),
        "its bias is no integer in the scale of the sums",
    ),
    "a Relu that is no saturation": (
        convolution(between="Relu", zero=7),
        "Relu 'Relu_t5' does more than saturate",
    ),
    "a Clip within the range": (
        convolution(between="Clip", most=3),
        "Clip 'Clip_t5' does more than saturate",
    ),
    "another reader": (
        convolution(read=True),
        "its result is an output, or several nodes read it",
    ),
    "16 bits": (
        convolution(dtype="uint16"),
        "only integers of 8 bits have sums that int32 holds",
    ),
    "a scale for each term": (product(0), "its weights have a scale for each term of a sum"),
}


def model_of(name: str) -> ModelProto:
    """Return a model that is computed on integers if the user asks for them."""
    return MODELS[name] if name in MODELS else LEFT[name][0]


def input_of(proto: ModelProto) -> np.ndarray:
    """Return the input of one of these models."""
    return IMAGE if "Conv" in {node.op_type for node in proto.graph.node} else ROWS


def optimised_by_onnxruntime(proto: ModelProto, x: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize("name", [*MODELS, *LEFT])
def test_results_are_those_of_onnxruntime(name: str) -> None:
    proto = model_of(name)
    x = input_of(proto)
    with tercet.load(proto, integers=True) as model:
        assert model.rewrites.counts["multiply_integers"] == 1
        kinds = {node.kind for node in model.graph.nodes}
        (found,) = model(x)
    assert not kinds & {"Conv", "Gemm", "MatMul", "Relu", "Clip"}
    np.testing.assert_array_equal(found, optimised_by_onnxruntime(proto, x))


@pytest.mark.parametrize("name", STAY)
def test_what_stays(name: str) -> None:
    proto, reason = STAY[name]
    with tercet.load(proto, integers=True) as model:
        assert "multiply_integers" not in model.rewrites.counts
        (refused,) = model.rewrites.refused
    assert refused.text == f"{refused.text.partition(' is ')[0]} is a layer of floats: {reason}"


@pytest.mark.parametrize("name", [*MODELS, *LEFT])
def test_what_a_backend_chooses(name: str) -> None:
    with tercet.load(model_of(name), integers=INTEGERS) as model:
        assert model.rewrites.counts.get("multiply_integers", 0) == (name in MODELS)
        reasons = [refused.text for refused in model.rewrites.refused]
    assert [text.endswith(LEFT[name][1]) for text in reasons] == [True] * (name in LEFT)


def test_a_factor_with_a_bias_of_another_scale() -> None:
    """The bias is added to floats, as onnxruntime's optimiser leaves it."""
    proto = gemm(alpha=2.0)
    with tercet.load(proto, integers=True) as model:
        assert "MatMulInteger" in {node.kind for node in model.graph.nodes}
        np.testing.assert_array_equal(model(ROWS)[0], optimised_by_onnxruntime(proto, ROWS))


def test_layers_stay_unless_the_backend_is_for_integers() -> None:
    with tercet.load(MODELS["convolution"]) as model:
        assert "multiply_integers" not in model.rewrites.counts


def test_sums_that_might_overflow_stay_floats() -> None:
    drawn = Drawn()
    x = drawn.quantizing("x", 0.02, 0, "uint8")
    numbers = np.full((70000, 1), 127, np.int8), np.float32(1), np.int8(0)
    w = drawn.node("DequantizeLinear", *map(drawn.constant, numbers))
    drawn.quantizing(drawn.node("MatMul", x, w), 1000, 0, "uint8")
    proto = drawn.model(np.zeros((1, 70000), np.float32))
    with tercet.load(proto, integers=True) as model:
        assert "multiply_integers" not in model.rewrites.counts


def test_weights_that_are_quantized_in_the_file() -> None:
    drawn = Drawn()
    x = drawn.quantizing("x", 0.02, 100, "uint8")
    w = drawn.quantizing(drawn.constant(RNG.standard_normal((24, 16), np.float32)), 0.05, 0, "int8")
    drawn.quantizing(drawn.node("MatMul", x, w), 0.1, 90, "uint8")
    proto = drawn.model(ROWS)
    with tercet.load(proto, integers=True) as model, tercet.load(proto, stop_at=0) as plain:
        assert model.rewrites.counts["multiply_integers"] == 1
        np.testing.assert_allclose(model(ROWS)[0], plain(ROWS)[0], atol=0.101)


def test_a_symbolic_batch() -> None:
    proto = gemm()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    with tercet.load(proto, integers=True) as model:
        assert model.rewrites.counts["multiply_integers"] == 1
        np.testing.assert_array_equal(model(ROWS[:1])[0], model(ROWS)[0][:5])
