"""Weights of a few bits that DequantizeLinear makes floats stay integers, as in onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import tercet
from tercet.backends import settled
from tercet.runtime.options import Options
from tercet.runtime.passes.integers import pack_weights

from .graphs import optimised_file

DTYPES = {
    "int4": (TensorProto.INT4, -8, 7),
    "uint4": (TensorProto.UINT4, 0, 15),
    "int8": (TensorProto.INT8, -128, 127),
    "uint8": (TensorProto.UINT8, 0, 255),
}
RNG = np.random.default_rng(3)
PACKED = "com.microsoft::MatMulNBits"
ROWS = np.random.default_rng(4).standard_normal((3, 200), np.float32)
PLACES = np.array([[3, -1], [0, 39]])


def quantized(
    dtype: str, shape: tuple[int, int], axis: int, block: int, *, zero: bool
) -> tuple[NodeProto, list[TensorProto]]:
    """Return a DequantizeLinear whose result is `d`, and its constants."""
    kind, least, greatest = DTYPES[dtype]
    sizes = [shape[1 - axis]]
    if block:
        sizes = [*shape]
        sizes[axis] = -(-shape[axis] // block)

    def integers(name: str, dims: Sequence[int]) -> TensorProto:
        return helper.make_tensor(name, kind, dims, RNG.integers(least, greatest + 1, prod(dims)))

    scale = (RNG.random(sizes) + 0.5).astype(np.float32)
    constants = [integers("w", shape), numpy_helper.from_array(scale, "s")]
    if zero:
        constants.append(integers("z", sizes))
    given: dict[str, Any] = {"axis": axis, "block_size": block} if block else {"axis": 1 - axis}
    return helper.make_node(
        "DequantizeLinear", [c.name for c in constants], ["d"], **given
    ), constants


def model_of(nodes: list[NodeProto], constants: list[TensorProto], x: np.ndarray) -> ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    c = RNG.standard_normal(40).astype(np.float32)
    constants = [*constants, numpy_helper.from_array(c, "c")]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


#: What reads `d`, and whether this has a row for each result.
READERS = {
    "MatMul": ([helper.make_node("MatMul", ["x", "d"], ["y"])], False),
    "transposed": (
        [
            helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "t"], ["y"]),
        ],
        True,
    ),
    "not transposed": (
        [
            helper.make_node("Transpose", ["d"], ["t"], perm=[0, 1]),
            helper.make_node("MatMul", ["x", "t"], ["y"]),
        ],
        False,
    ),
    "Gemm": ([helper.make_node("Gemm", ["x", "d", "c"], ["y"])], False),
    "transB": ([helper.make_node("Gemm", ["x", "d", "c"], ["y"], transB=1)], True),
}


def layer(
    dtype: str = "uint4", block: int = 32, reader: str = "MatMul", *, zero: bool = True, k: int = 96
) -> ModelProto:
    nodes, turned = READERS[reader]
    shape, axis = ((40, k), 1) if turned else ((k, 40), 0)
    first, constants = quantized(dtype, shape, axis, block, zero=zero)
    return model_of([first, *nodes], constants, ROWS[:, :k])


def assert_same(model: ModelProto, x: np.ndarray) -> None:
    """Results are those of onnxruntime without its optimiser."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (expected,) = session.run(None, {"x": x})
    with tercet.load(model) as loaded:
        got = loaded.run({"x": x})["y"]
    assert isinstance(expected, np.ndarray)
    assert np.abs(got - expected).max() <= 2e-6 * np.abs(expected).max()


@pytest.mark.parametrize("zero", [False, True], ids=["", "zero points"])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("block", [16, 32, 48, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_products(dtype: str, block: int, reader: str, *, zero: bool) -> None:
    """Blocks of 48 are three of 16, and 128 are more than there are terms."""
    model = layer(dtype, block, reader, zero=zero)
    assert PACKED in optimised_file(model)[0]
    assert_same(model, ROWS[:, :96])


@pytest.mark.parametrize("k", [20, 96, 100, 200])
@pytest.mark.parametrize("zero", [False, True], ids=["", "zero points"])
@pytest.mark.parametrize("reader", ["MatMul", "transposed"])
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_a_scale_for_each_result(dtype: str, reader: str, k: int, *, zero: bool) -> None:
    model = layer(dtype, 0, reader, zero=zero, k=k)
    assert PACKED in optimised_file(model)[0]
    assert_same(model, ROWS[:, :k])


def test_integers_that_are_moved_first() -> None:
    first, constants = quantized("int4", (40, 96), 1, 32, zero=False)
    first.input[0] = "v"
    moved = helper.make_node("Transpose", ["u"], ["v"], perm=[1, 0])
    constants[0].name = "u"
    del constants[0].dims[:]
    constants[0].dims.extend([96, 40])
    model = model_of([moved, first, *READERS["transposed"][0]], constants, ROWS[:, :96])
    assert PACKED in optimised_file(model)[0]
    assert_same(model, ROWS[:, :96])


def test_zero_points_in_the_middle_are_none() -> None:
    """As MatMulNBits has it without zero points."""
    model = layer()
    points = next(tensor for tensor in model.graph.initializer if tensor.name == "z")
    points.CopyFrom(
        helper.make_tensor("z", TensorProto.UINT4, points.dims, [8] * prod(points.dims))
    )
    with tercet.load(model) as loaded:
        (node,) = loaded.graph.nodes
        assert len(node.inputs) == 3
    assert_same(model, ROWS[:, :96])


def test_large_weights_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_weights, "ELEMENTS", 700)
    assert_same(layer(), ROWS[:, :96])


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8"])
@pytest.mark.parametrize("zero", [False, True], ids=["", "zero points"])
def test_a_table_that_is_also_a_layer(dtype: str, *, zero: bool) -> None:
    """As of decoders whose logits are products with the table of their words."""
    first, constants = quantized(dtype, (40, 96), 1, 32, zero=zero)
    nodes = [first, helper.make_node("Gather", ["d", "x"], ["r"]), *READERS["transposed"][0]]
    nodes[-1].input[0] = "r"
    model = model_of(nodes, constants, PLACES)
    kinds, _ = optimised_file(model)
    assert PACKED in kinds
    assert kinds.count("Gather") == 2 + zero
    assert_same(model, PLACES)


def scaled_by_terms(dtype: str = "int4") -> ModelProto:
    """Blocks along the results."""
    first, constants = quantized(dtype, (96, 40), 1, 16, zero=False)
    return model_of([first, *READERS["MatMul"][0]], constants, ROWS[:, :96])


def of_factors(**attributes: Any) -> ModelProto:
    first, constants = quantized("int4", (96, 40), 0, 16, zero=False)
    node = helper.make_node("Gemm", ["x", "d", "c"], ["y"], **attributes)
    return model_of([first, node], constants, ROWS[:, :96])


def squared() -> ModelProto:
    first, constants = quantized("int4", (40, 40), 0, 0, zero=False)
    x = ROWS[:, :40]
    return model_of([first, helper.make_node("MatMul", ["d", "d"], ["y"])], constants, x)


OTHERS = {
    "blocks of 12": lambda: layer(block=12),
    "blocks along results": scaled_by_terms,
    "whole rows of bytes": lambda: layer("int8", 0),
    "a factor": lambda: of_factors(alpha=0.5),
    "a factor of what is added": lambda: of_factors(beta=0.5),
    "its own square": squared,
}


@pytest.mark.parametrize("case", OTHERS)
def test_others_become_floats(case: str) -> None:
    model = OTHERS[case]()
    assert PACKED not in optimised_file(model)[0]
    (given,) = model.graph.input
    assert_same(model, ROWS[:, : given.type.tensor_type.shape.dim[1].dim_value])


def test_kept_quantized() -> None:
    with tercet.load(layer(), keep_quantized=True) as model:
        assert [node.kind for node in model.graph.nodes] == ["DequantizeLinear", "MatMul"]


@pytest.mark.parametrize("keep", [True, False])
def test_exported_models_have_no_operators_of_onnxruntime(*, keep: bool) -> None:
    found = tercet.export(layer(), keep_quantized=keep).proto
    kinds = [node.op_type for node in found.graph.node]
    assert kinds == (["DequantizeLinear", "MatMul"] if keep else ["MatMul"])


@pytest.mark.parametrize(
    ("backend", "packed"),
    [("numpy", True), ("cuda", True), ("cudnn", True), ("openvino", False), ("tensorrt", False)],
)
def test_backends_that_read_packed_weights(backend: str, *, packed: bool) -> None:
    """Compilers of regions read floats; a pass that is skipped stays so."""
    once = settled(Options(skip=("to_half",)), backend)
    assert ("pack_weights" not in once.skip) is packed
    assert settled(once, backend) == once


def test_bytes_of_weights_are_those_of_the_file() -> None:
    """Not four or eight times as many."""
    first, constants = quantized("int4", (1024, 512), 0, 32, zero=False)
    model = model_of([first, *READERS["MatMul"][0]], constants, RNG.random((1, 1024), np.float32))
    with tercet.load(model) as loaded:
        packed = [v.data for v in loaded.graph.constants if v.data is not None]
    assert sum(data.nbytes for data in packed) <= 1024 * 512 // 2 + 1024 * 512 // 32 * 4 + 4096


def test_two_bits() -> None:
    """Of opset 25; against float64."""
    w = RNG.integers(-2, 2, (96, 40)).astype(ml_dtypes.int2)
    scale = (RNG.random((3, 40)) + 0.5).astype(np.float32)
    constants = [numpy_helper.from_array(scale, "s")]
    constants.append(helper.make_tensor("w", TensorProto.INT2, w.shape, w.astype(int).reshape(-1)))
    first = helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=32)
    model = model_of([first, *READERS["MatMul"][0]], constants, ROWS[:, :96])
    model.opset_import[0].version, model.ir_version = 25, 13
    assert PACKED in optimised_file(model)[0]
    exact = ROWS[:, :96].astype(float) @ (w.astype(float) * scale.astype(float).repeat(32, 0))
    with tercet.load(model) as loaded:
        got = loaded.run({"x": ROWS[:, :96]})["y"]
    assert np.abs(got - exact).max() <= 2e-6 * np.abs(exact).max()
