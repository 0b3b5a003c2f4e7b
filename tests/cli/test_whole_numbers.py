"""Whole numbers are exact, but not what operators compute of them on their way."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

import tercet
from tercet.runtime.ir.types import Array
from tercet.tools.verdict.error_bounds import Judge
from tercet.tools.workshop.onnxruntime_process import run_onnxruntime

RNG = np.random.default_rng(0)


def _machine(kind: str, *parameters: float) -> NodeProto:
    """A regression on six columns, of a hundred supports."""
    return helper.make_node(
        "SVMRegressor",
        ["x0"],
        ["y"],
        domain="ai.onnx.ml",
        kernel_type=kind,
        kernel_params=parameters,
        support_vectors=[float(x) for x in RNG.integers(-9, 9, 600)],
        coefficients=RNG.standard_normal(100).tolist(),
        n_supports=100,
        rho=[0.5],
    )


HEADS = helper.make_node(
    "MultiHeadAttention", ["x0", "x1", "x2"], ["y"], domain="com.microsoft", num_heads=2
)
#: Nodes by name, with the shape of their inputs.
CASES = {
    "attention": (helper.make_node("Attention", ["x0", "x1", "x2"], ["y"]), (1, 2, 8, 16)),
    "heads": (HEADS, (1, 6, 16)),
    "polynomials": (_machine("POLY", 0.02, 1.0, 3.0), (20, 6)),
    "tangents": (_machine("SIGMOID", 0.05, 0.1, 0.0), (20, 6)),
}


def _model(node: NodeProto, shape: tuple[int, ...]) -> ModelProto:
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in node.input]
    graph = helper.make_graph([node], "g", inputs, [ValueInfoProto(name="y")])
    versions = {"": 23, "ai.onnx.ml": 3, "com.microsoft": 1}
    opsets = [helper.make_opsetid(*each) for each in versions.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("name", CASES)
def test_functions_of_whole_numbers_are_rounded(name: str) -> None:
    node, shape = CASES[name]
    model, rng = _model(node, shape), np.random.default_rng(1)
    feeds: dict[str, Array] = {
        name: rng.integers(-5, 6, shape).astype(np.float32) for name in node.input
    }
    reference = dict(run_onnxruntime(model, feeds))["y"]
    with tercet.load(model) as loaded:
        found = loaded.run(feeds)["y"]
    with tercet.load(model, stop_at=0) as plain:
        judge = Judge(plain.imported, feeds)
    assert not np.array_equal(reference, found)
    assert judge.agreement("y", reference, found).verdict == "ok"
    found = found.copy()
    found.flat[found.size // 2] += np.abs(found).max() / 1000
    assert judge.agreement("y", reference, found).verdict == "MISMATCH"


@pytest.mark.parametrize(("scale", "verdict"), [(2.0**-5, "MISMATCH"), (0.03, "ok")])
def test_halves_of_powers_of_two_are_rounded_to_even(scale: float, verdict: str) -> None:
    """Other quotients are rounded, and may be no halves."""
    scales = np.array(scale, np.float32)
    node = helper.make_node("QuantizeLinear", ["x0", "scale", "zero"], ["y"])
    model = _model(node, (200,))
    model.graph.initializer.extend(
        numpy_helper.from_array(data, name)
        for name, data in {"scale": scales, "zero": np.array(120, np.uint8)}.items()
    )
    del model.graph.input[1:]
    feeds = {"x0": ((np.arange(200) - 100.5) * scale).astype(np.float32)}
    reference = dict(run_onnxruntime(model, feeds))
    up = np.floor(feeds["x0"] / scales + np.float32(0.5)) + 120
    found = {"y": up.astype(np.uint8)}
    assert (found["y"] != reference["y"]).any()
    with tercet.load(model, stop_at=0) as held:
        (ruling,) = Judge(held.imported, feeds).outputs(reference, found)
    assert ruling.verdict == verdict


def _of_halves(kind: str, shape: tuple[int, ...], constant: Array) -> ModelProto:
    """An operator of an input and a constant, in float16."""
    model = _model(helper.make_node(kind, ["x0", "w"], ["y"]), shape)
    del model.graph.input[1:]
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    model.graph.initializer.append(numpy_helper.from_array(constant.astype(np.float16), "w"))
    return model


@pytest.mark.parametrize("size", [1.0, 4000.0])
def test_large_numbers_of_float16_are_whole_by_coincidence(size: float) -> None:
    """Weights of any size may be rounded once more, and by no more than once."""
    rng, dtype = np.random.default_rng(4), np.float16
    model = _of_halves("MatMul", (40, 16), rng.standard_normal((16, 8)) * size)
    w = numpy_helper.to_array(model.graph.initializer[0]).astype(np.float64)
    x = rng.standard_normal((40, 16)).astype(dtype)
    scaled = (w * 1.37).astype(dtype).astype(np.float64) / 1.37
    reference, found = ((x.astype(np.float64) @ each).astype(dtype) for each in (w, scaled))
    with tercet.load(model, stop_at=0) as plain:
        judge = Judge(plain.imported, {"x0": x})
    assert not np.array_equal(reference, found)
    assert judge.agreement("y", reference, found).verdict == "ok"
    found = (x.astype(np.float64) @ (w * 1.01)).astype(dtype)
    assert judge.agreement("y", reference, found).verdict == "MISMATCH"


def test_whole_numbers_stay_whatever_their_size() -> None:
    """Positions of up to 2048 in float16 are not rounded."""
    positions = np.arange(2048, dtype=np.float16)
    one = np.ones(1, np.float16)
    with tercet.load(_of_halves("Mul", (1,), positions), stop_at=0) as plain:
        judge = Judge(plain.imported, {"x0": one})
    moved = positions.copy()
    moved[-1] -= 1
    assert judge.agreement("y", positions, moved).verdict != "ok"
