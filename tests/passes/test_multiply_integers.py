"""Layers between quantizers are computed on integers: as by onnxruntime, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto

import tercet
from tercet.backends.cuda import INTEGERS

from .drawn_layers import LAYERS, Drawn, drawn

RNG = np.random.default_rng(11)
#: Of each kind, how many models are drawn.
SAMPLES = int(os.environ.get("TERCET_SAMPLES", "40"))
#: Layers of floats that onnxruntime leaves, or makes of others.
FLOATS = {"Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul", "MatMulNBits"}
IMAGE = np.random.default_rng(5).standard_normal((2, 32, 7, 9), np.float32)
ROWS = np.random.default_rng(6).standard_normal((2, 5, 24), np.float32)


def model_of_one(drawn: Drawn, x: np.ndarray) -> ModelProto:
    """Return a model whose only input is `x`."""
    drawn.feeds = {"x": x}
    return drawn.model()


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
    return model_of_one(drawn, IMAGE)


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
    return model_of_one(drawn, ROWS)


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
    return model_of_one(drawn, ROWS)


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


def optimised_by_onnxruntime(proto: ModelProto, feeds: Any, file: str = "") -> np.ndarray:
    """Return what onnxruntime computes, and write the graph that it runs to a file."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # it warns of what it writes
    options.optimized_model_filepath = file
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, feeds)[0])


@pytest.mark.parametrize("name", [*MODELS, *LEFT])
def test_results_are_those_of_onnxruntime(name: str) -> None:
    proto = model_of(name)
    x = input_of(proto)
    with tercet.load(proto, integers=True) as model:
        assert model.rewrites.counts["multiply_integers"] == 1
        kinds = {node.kind for node in model.graph.nodes}
        (found,) = model(x)
    assert not kinds & {"Conv", "Gemm", "MatMul", "Relu", "Clip"}
    np.testing.assert_array_equal(found, optimised_by_onnxruntime(proto, {"x": x}))


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
        np.testing.assert_array_equal(model(ROWS)[0], optimised_by_onnxruntime(proto, {"x": ROWS}))


def test_layers_stay_unless_the_backend_is_for_integers() -> None:
    with tercet.load(MODELS["convolution"]) as model:
        assert "multiply_integers" not in model.rewrites.counts


def test_sums_that_might_overflow_stay_floats() -> None:
    drawn = Drawn()
    x = drawn.quantizing("x", 0.02, 0, "uint8")
    numbers = np.full((70000, 1), 127, np.int8), np.float32(1), np.int8(0)
    w = drawn.node("DequantizeLinear", *map(drawn.constant, numbers))
    drawn.quantizing(drawn.node("MatMul", x, w), 1000, 0, "uint8")
    proto = model_of_one(drawn, np.zeros((1, 70000), np.float32))
    with tercet.load(proto, integers=True) as model:
        assert "multiply_integers" not in model.rewrites.counts


def test_weights_that_are_quantized_in_the_file() -> None:
    drawn = Drawn()
    x = drawn.quantizing("x", 0.02, 100, "uint8")
    w = drawn.quantizing(drawn.constant(RNG.standard_normal((24, 16), np.float32)), 0.05, 0, "int8")
    drawn.quantizing(drawn.node("MatMul", x, w), 0.1, 90, "uint8")
    proto = model_of_one(drawn, ROWS)
    with tercet.load(proto, integers=True) as model, tercet.load(proto, stop_at=0) as plain:
        assert model.rewrites.counts["multiply_integers"] == 1
        np.testing.assert_allclose(model(ROWS)[0], plain(ROWS)[0], atol=0.101)


def test_a_symbolic_batch() -> None:
    proto = gemm()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    with tercet.load(proto, integers=True) as model:
        assert model.rewrites.counts["multiply_integers"] == 1
        np.testing.assert_array_equal(model(ROWS[:1])[0], model(ROWS)[0][:5])


@pytest.mark.parametrize("kind", LAYERS)
def test_drawn_layers_are_joined_as_by_onnxruntime(kind: str, tmp_path: Path) -> None:
    """Where it leaves no layer of floats there are none, and every bit is the same."""
    file, joined = tmp_path / "optimised.onnx", 0
    for seed in range(SAMPLES):
        d = drawn(kind, seed)
        proto = d.model()
        wanted = optimised_by_onnxruntime(proto, d.feeds, str(file))
        if FLOATS & {node.op_type for node in onnx.load(file).graph.node}:
            continue
        joined += 1
        with tercet.load(proto, integers=True) as model:
            assert not FLOATS & {node.kind for node in model.graph.nodes}, seed
            np.testing.assert_array_equal(model(*d.feeds.values())[0], wanted, str(seed))
    assert joined > SAMPLES / 2


def test_a_sum_of_unknown_length() -> None:
    """The length of a past, for example."""
    drawn = Drawn()
    x = drawn.quantizing("x", 0.02, 100, "uint8")
    y = drawn.quantizing(drawn.node("Transpose", x, perm=[0, 2, 1]), 0.02, 100, "uint8")
    drawn.quantizing(drawn.node("MatMul", y, x), 0.03, 90, "uint8")
    proto = model_of_one(drawn, ROWS)
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "n"
    with tercet.load(proto, integers=True) as model, tercet.load(proto, integers=INTEGERS) as some:
        assert model.rewrites.counts["multiply_integers"] == 1
        assert "multiply_integers" not in some.rewrites.counts
        np.testing.assert_array_equal(model(ROWS)[0], optimised_by_onnxruntime(proto, {"x": ROWS}))
