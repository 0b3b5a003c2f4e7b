"""Products with packed weights whose activations onnxruntime rounds to eight bits."""

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
#: Blocks whose magnitudes lie far apart have limits of their own.
X = RNG.standard_normal((3, COLUMNS)) * np.repeat([1.0, 50.0], BLOCK)
FEEDS: dict[str, Array] = {"x": X.astype(np.float32)}


def model(level: int) -> onnx.ModelProto:
    """Return a product that allows this accuracy."""
    sizes = {"K": COLUMNS, "N": ROWS, "block_size": BLOCK, "bits": 4, "accuracy_level": level}
    node = helper.make_node(
        "MatMulNBits", ["x", "b", "s"], ["y"], "product", domain="com.microsoft", **sizes
    )
    blocks = COLUMNS // BLOCK
    rng = np.random.default_rng(1)
    b = rng.integers(0, 256, (ROWS, blocks, BLOCK // 2), np.uint8)
    s = rng.uniform(0.01, 0.02, ROWS * blocks).astype(np.float32)
    s[1::2] *= 0.02
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, COLUMNS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, ROWS])],
        [numpy_helper.from_array(b, "b"), numpy_helper.from_array(s, "s")],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def verdict(level: int, found: Array) -> tuple[str, str]:
    with tercet.load(model(level), stop_at=0) as loaded:
        exact = loaded.run(FEEDS)["y"]
        result = Judge(loaded.imported, FEEDS).agreement("y", exact, found)
    return result.verdict, result.reason


@pytest.mark.parametrize(("level", "wanted"), [(0, "ok"), (1, "ok"), (4, "inconclusive")])
def test_what_onnxruntime_rounds_as_the_file_allows_proves_nothing(level: int, wanted: str) -> None:
    word, reason = verdict(level, run_onnxruntime(model(level), FEEDS)["y"])
    assert word == wanted
    assert ("accuracy_level=4" in reason) == (level == 4)


def test_the_file_has_to_allow_it() -> None:
    word, _ = verdict(0, run_onnxruntime(model(4), FEEDS)["y"])
    assert word == "MISMATCH"


@pytest.mark.parametrize("error", [2.0, -1.0, 0.0])
def test_what_no_rounding_explains_is_wrong(error: float) -> None:
    found = run_onnxruntime(model(4), FEEDS)["y"]
    assert verdict(4, found * np.float32(error))[0] == "MISMATCH"
    found[1, 5] = found[1, 5] * error + 0.5
    assert verdict(4, found)[0] == "MISMATCH"
