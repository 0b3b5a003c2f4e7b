"""Products with packed or quantized weights whose activations onnxruntime rounds to eight bits."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tercet
from tercet.runtime.ir.types import Array
from tercet.tools.verdict.error_bounds import Judge
from tercet.tools.workshop.onnxruntime_process import run_onnxruntime

ROWS, COLUMNS, BLOCK = 24, 64, 32
RNG = np.random.default_rng(0)
#: Blocks whose magnitudes are far apart have separate limits.
X = RNG.standard_normal((3, COLUMNS)) * np.repeat([1.0, 50.0], BLOCK)
FEEDS: dict[str, Array] = {"x": X.astype(np.float32)}


def feeds_of(dtype: type) -> dict[str, Array]:
    return {"x": X.astype(dtype)}


def model(level: int, dtype: type = np.float32) -> onnx.ModelProto:
    """Return a product that allows this accuracy."""
    sizes: dict[str, Any] = {
        "K": COLUMNS,
        "N": ROWS,
        "block_size": BLOCK,
        "bits": 4,
        "accuracy_level": level,
    }
    node = helper.make_node(
        "MatMulNBits", ["x", "b", "s"], ["y"], "product", domain="com.microsoft", **sizes
    )
    blocks = COLUMNS // BLOCK
    rng = np.random.default_rng(1)
    b = rng.integers(0, 256, (ROWS, blocks, BLOCK // 2), np.uint8)
    s = rng.uniform(0.01, 0.02, ROWS * blocks).astype(np.float32)
    s[1::2] *= 0.02
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", element, [3, COLUMNS])],
        [helper.make_tensor_value_info("y", element, [3, ROWS])],
        [numpy_helper.from_array(b, "b"), numpy_helper.from_array(s.astype(dtype), "s")],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def verdict(proto: onnx.ModelProto, found: Array) -> tuple[str, str]:
    feeds = feeds_of(found.dtype.type)
    with tercet.load(proto, stop_at=0) as loaded:
        exact = loaded.run(feeds)["y"]
        result = Judge(loaded.imported, feeds).agreement("y", exact, found)
    return result.verdict, result.reason


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("level", [0, 1, 4])
def test_what_onnxruntime_rounds_as_the_file_allows_is_right(level: int, dtype: type) -> None:
    proto = model(level, dtype)
    word, reason = verdict(proto, run_onnxruntime(proto, feeds_of(dtype))["y"])
    assert word == "ok"
    assert ("eight bits" in reason) == (level == 4)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_what_is_rounded_in_another_way_proves_nothing(dtype: type) -> None:
    x = X.reshape(3, -1, BLOCK)
    step = np.abs(x).max(-1, keepdims=True) / 120
    otherwise = (np.floor(x / step + 0.3) * step).reshape(X.shape)
    with tercet.load(model(4, dtype), stop_at=0) as loaded:
        found = loaded.run({"x": otherwise.astype(dtype)})["y"]
    word, reason = verdict(model(4, dtype), found)
    assert (word, "eight bits" in reason) == ("inconclusive", True)


def test_constant_activations_are_rounded_as_well() -> None:
    fixed = model(4)
    fixed.graph.initializer.append(numpy_helper.from_array(FEEDS["x"], "x"))
    del fixed.graph.input[:]
    fixed.graph.node.append(helper.make_node("Add", ["y", "z"], ["sum"]))
    fixed.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [ROWS]))
    fixed.graph.output[0].name = "sum"
    feeds: dict[str, Array] = {"z": np.zeros(ROWS, np.float32)}
    with tercet.load(fixed, stop_at=0) as loaded:
        exact = loaded.run(feeds)["sum"]
        judge = Judge(loaded.imported, feeds)
    found = run_onnxruntime(fixed, feeds)["sum"]
    assert judge.agreement("sum", exact, found).verdict == "ok"
    assert judge.agreement("sum", exact, found * np.float32(2)).verdict == "MISMATCH"


def test_the_file_has_to_allow_it() -> None:
    word, _ = verdict(model(0), run_onnxruntime(model(4), FEEDS)["y"])
    assert word == "MISMATCH"


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("error", [2.0, -1.0, 0.0])
def test_what_no_rounding_explains_is_wrong(error: float, dtype: type) -> None:
    found = run_onnxruntime(model(4, dtype), feeds_of(dtype))["y"]
    assert verdict(model(4, dtype), found * dtype(error))[0] == "MISMATCH"
    found[1, 5] = found[1, 5] * error + 0.5
    assert verdict(model(4, dtype), found)[0] == "MISMATCH"


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_an_error_of_one_percent_is_not_right(dtype: type) -> None:
    found = run_onnxruntime(model(4, dtype), feeds_of(dtype))["y"]
    row = np.abs(found).max(-1).argmax()
    found[row] *= dtype(1.01)
    assert verdict(model(4, dtype), found)[0] != "ok"


def recurrent() -> onnx.ModelProto:
    """Return an LSTM as onnxruntime's dynamic quantization writes it."""
    rng, hidden, inputs = np.random.default_rng(2), 5, 8
    constants: dict[str, Array] = {
        "w": rng.integers(-127, 127, (1, inputs, 4 * hidden), np.int8),
        "r": rng.integers(-127, 127, (1, hidden, 4 * hidden), np.int8),
        "w_scale": np.array([0.004], np.float32),
        "r_scale": np.array([0.005], np.float32),
        "zero": np.zeros(1, np.int8),
    }
    names = ["x", "w", "r", "", "", "", "", "", "w_scale", "zero", "r_scale", "zero"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", names, ["", "y"], domain="com.microsoft", hidden_size=hidden
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 2, inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, hidden])],
        [numpy_helper.from_array(data, name) for name, data in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def dequantized() -> onnx.ModelProto:
    """Return a product with weights of four bits in blocks, in the format QDQ."""
    proto = onnx.parser.parse_model(f"""
      <ir_version: 10, opset_import: ["" : 21]>
      g (float[4,2,{COLUMNS}] x) => (float[4,2,{ROWS}] y) {{
        w = DequantizeLinear <axis = 0, block_size = {BLOCK}> (b, s)
        y = MatMul(x, w)
      }}""")
    rng = np.random.default_rng(3)
    b = rng.integers(-8, 8, COLUMNS * ROWS).tolist()
    s = rng.uniform(0.01, 0.02, (COLUMNS // BLOCK, ROWS)).astype(np.float32)
    proto.graph.initializer.extend(
        [
            helper.make_tensor("b", TensorProto.INT4, (COLUMNS, ROWS), b),
            numpy_helper.from_array(s, "s"),
        ]
    )
    return proto


@pytest.mark.parametrize(
    ("proto", "inputs", "word"),
    [(recurrent(), 8, "inconclusive"), (dequantized(), COLUMNS, "ok")],
)
def test_so_do_other_operators(proto: onnx.ModelProto, inputs: int, word: str) -> None:
    feeds: dict[str, Array] = {"x": RNG.standard_normal((4, 2, inputs)).astype(np.float32)}
    found = run_onnxruntime(proto, feeds)["y"]
    with tercet.load(proto, stop_at=0) as loaded:
        exact = loaded.run(feeds)["y"]
        judge = Judge(loaded.imported, feeds)
    result = judge.agreement("y", exact, found)
    assert (result.verdict, "eight bits" in result.reason) == (word, True)
    assert judge.agreement("y", exact, found * np.float32(1.2)).verdict == "MISMATCH"


def test_what_a_layer_reads_is_rounded_by_its_greatest_element() -> None:
    x = RNG.standard_normal((4, 2, 8)).astype(np.float32)
    x[0, 0] *= 20
    found = run_onnxruntime(recurrent(), {"x": x})["y"]
    with tercet.load(recurrent(), stop_at=0) as loaded:
        exact = loaded.run({"x": x})["y"]
        judge = Judge(loaded.imported, {"x": x})
    assert judge.agreement("y", exact, found).verdict == "inconclusive"


def test_backends_of_tercet_do_not_round_to_eight_bits() -> None:
    edited = model(4)
    scales = edited.graph.initializer[1]
    data = numpy_helper.to_array(scales).copy()
    data[2] *= 1.01
    scales.CopyFrom(numpy_helper.from_array(data, "s"))
    found = tercet.compare_layers(model(4), ["numpy"], FEEDS, other=edited)
    assert found.first is not None
    assert found.first.nodes == ("product",)


def test_saved_outputs_may_be_of_a_runner_that_does(tmp_path: Path) -> None:
    saved = tmp_path / "onnxruntime.npz"
    np.savez(saved, allow_pickle=False, y=run_onnxruntime(model(4), FEEDS)["y"])
    found = tercet.compare(model(4), ["numpy", str(saved)], FEEDS, repeat=0)
    assert found.ok
    assert "activations are rounded to eight bits" in str(found)
