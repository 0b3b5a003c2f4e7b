"""What the rule says of results that are off to one side, or by a factor."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import bfloat16
from onnx import TensorProto, helper, numpy_helper

import tercet as api
from tercet.tools.verdict.error_bounds import Judge
from tercet.tools.verdict.rounding import Evidence, rule_floats


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("overflow", [False, True])
@pytest.mark.parametrize("arithmetic", ["tf32", "float16", "bfloat16"])
def test_a_bias_is_no_rounding(arithmetic: str, overflow: bool) -> None:
    """No element differs by more than noise moves it, but all of them to one side."""
    rng = np.random.default_rng(0)
    exact = rng.uniform(0.5, 1, (40, 50))
    if overflow:
        exact[3, 4] = np.inf
    fair = [exact + 1e-4 * rng.uniform(-1, 1, exact.shape) for _ in range(12)]
    rough = [exact + 4e-4 * rng.uniform(-1, 1, exact.shape) for _ in range(12)]
    evidence = Evidence(exact, rough, fair, arithmetic, 1e-38, jumps=False)
    noisy = exact + 1e-4 * rng.uniform(-1, 1, exact.shape)
    assert rule_floats(exact, noisy, evidence).word == "ok"
    assert rule_floats(exact, exact + 0.5e-4, evidence).word != "ok"


@pytest.mark.parametrize("dtype", [np.float16, bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["Mul", "MatMul", "Tanh"])
def test_truncation_is_no_rounding(kind: str, dtype: type) -> None:
    """No element is off by more than a unit, but all of them towards zero, or by one factor."""
    rng = np.random.default_rng(0)
    factors = {"Mul": [np.array(0.731)], "MatMul": [rng.standard_normal((64, 64)) / 8]}
    constants = [x.astype(np.float32) for x in factors.get(kind, [])]
    to = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [
            helper.make_node(kind, ["x", "c"][: 1 + len(constants)], ["wide"]),
            helper.make_node("Cast", ["wide"], ["y"], to=to),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (32, 64))],
        [helper.make_tensor_value_info("y", to, (32, 64))],
        [numpy_helper.from_array(x, "c") for x in constants],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = rng.standard_normal((32, 64)).astype(np.float32)
    with api.load(proto, stop_at=0) as loaded:
        judge, found = Judge(loaded.imported, {"x": x}), loaded.run({"x": x}, ["wide", "y"])
    wide, right = found["wide"], found["y"]
    away = np.abs(right.astype(np.float32)) > np.abs(wide)
    truncated = np.where(away, np.nextafter(right, dtype(0)), right)
    assert judge.agreement("y", right, (wide * np.float32(1 + 2e-7)).astype(dtype)).ok
    assert judge.agreement("y", right, truncated).verdict == "MISMATCH"
    unit = float(np.finfo(np.float16).eps if dtype == np.float16 else 2**-7)
    factor = np.float32(1 + unit / 2)
    assert judge.agreement("y", right, (wide * factor).astype(dtype)).verdict == "MISMATCH"
