"""OpenVINO's operators, held against results of its CPU device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

import tercet

from ..packages import needs_cuda

X = [[-9.0, -1.01, -0.3, 0.0, 0.26, 0.7, 1.5, 40.0], [-2.1, -0.9, 0.1, 0.45, 0.8, 1.1, 1.9, 2.2]]
#: Levels, the four limits, and what OpenVINO 2026.4 makes of X.
CASES = {
    "one range": (
        256,
        [-1.0, 1.5, -1.0, 1.5],
        [
            [-1.0, -1.0, -0.303922, 0.0, 0.264706, 0.696078, 1.5, 1.5],
            [-1.0, -0.901961, 0.098039, 0.45098, 0.803922, 1.098039, 1.5, 1.5],
        ],
    ),
    "four levels": (
        4,
        [0.0, 1.0, 0.0, 1.0],
        [[0, 0, 0, 0, 1 / 3, 2 / 3, 1, 1], [0, 0, 0, 1 / 3, 2 / 3, 1, 1, 1]],
    ),
    "signs": (
        2,
        [-1.0, 1.0, -1.0, 1.0],
        [[-1, -1, -1, -1, 1, 1, 1, 1], [-1, -1, 1, 1, 1, 1, 1, 1]],
    ),
    "another range": (
        16,
        [-1.0, 2.0, 5.0, -3.0],
        [
            [5.0, 5.0, 2.866667, 2.333333, 1.8, 0.733333, -1.4, -3.0],
            [5.0, 4.466667, 1.8, 1.266667, 0.2, -0.333333, -2.466667, -3.0],
        ],
    ),
    "a range per row": (
        8,
        [[[-1.0], [0.0]], [[1.0], [2.0]], [[-1.0], [0.0]], [[1.0], [4.0]]],
        [
            [-1.0, -1.0, -0.428571, 0.142857, 0.142857, 0.714286, 1.0, 1.0],
            [0.0, 0.0, 0.0, 1.142857, 1.714286, 2.285714, 4.0, 4.0],
        ],
    ),
}


def model(levels: int, limits: Any) -> ModelProto:
    """Return a model of one FakeQuantize."""
    names = ["input_low", "input_high", "output_low", "output_high"]
    node = helper.make_node(
        "FakeQuantize", ["x", *names], ["y"], domain="org.openvinotoolkit", levels=levels
    )
    weights = [
        numpy_helper.from_array(np.array(each, np.float32), name)
        for name, each in zip(names, limits, strict=True)
    ]
    x = helper.make_tensor_value_info("x", 1, ["rows", 8])
    y = helper.make_tensor_value_info("y", 1, ["rows", 8])
    graph = helper.make_graph([node], "g", [x], [y], weights)
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("org.openvinotoolkit", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


@pytest.mark.parametrize("stop_at", [None, 0], ids=["passes", "as it is"])
@pytest.mark.parametrize("case", CASES)
def test_fake_quantize(case: str, stop_at: int | None) -> None:
    levels, limits, wanted = CASES[case]
    with tercet.load(model(levels, limits), stop_at=stop_at) as loaded:
        (found,) = loaded(np.array(X, np.float32))
    np.testing.assert_allclose(found, wanted, 0, 2e-6)


@needs_cuda
def test_cuda_leaves_nothing() -> None:
    levels, limits, _ = CASES["a range per row"]
    found = tercet.inspect(model(levels, limits), placement="cuda", target="sm_90a").placement
    assert found
    assert all(row.backend == "plan" or row.backend.startswith("cuda") for row in found)


def test_a_single_level_is_an_error() -> None:
    with pytest.raises(tercet.ModelError, match="levels=1; expected 2 or more"):
        tercet.load(model(1, [0.0, 1.0, 0.0, 1.0]))
