"""What makes a model slow is warned of once, with the remedy."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.parser import parse_model

import tercet
from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.importers.onnx import load
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..plan.fakes import FakeBackend, FakeDevice

GROWING = parse_model("""
<ir_version: 10, opset_import: ["" : 21]>
g (float[n, 3] x) => (float[n, 3] y) { a = Exp (x)  y = Softmax (a) }
""")


def quantized(rows: int) -> onnx.ModelProto:
    """A product with integer weights that are converted first."""
    weights = np.ones((rows, 1024), np.int8)
    arrays = {"w": weights, "s": np.array(0.5, np.float32)}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["f"], name="wide"),
        helper.make_node("MatMul", ["x", "f"], ["y"], name="product"),
    ]
    ends = [
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)]
        for name, shape in (("x", ["n", rows]), ("y", ["n", 1024]))
    ]
    held = [numpy_helper.from_array(data, name) for name, data in arrays.items()]
    graph = helper.make_graph(nodes, "g", ends[0], ends[1], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def heard(calls: int, model: Model, rows: int, columns: int = 3) -> list[str]:
    """Run a model with ever more rows, never in equal steps; return the warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for n in range(rows, rows + calls):
            model.run({"x": np.zeros((n * n, columns), np.float32)})
    assert all(each.category is tercet.PerformanceWarning for each in found)
    return [str(each.message) for each in found]


@pytest.mark.parametrize(("calls", "max_plans", "told"), [(40, 8, 1), (14, 8, 0), (40, 64, 0)])
def test_a_plan_per_run(calls: int, max_plans: int, told: int) -> None:
    with tercet.load(GROWING, max_plans=max_plans) as model:
        found = heard(calls, model, 1)
        assert len(found) == told
        assert all("max_plans" in text and f"{max_plans} are kept" in text for text in found)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"fold_bytes": 1 << 20}, 1),
        ({"fold_total": 1 << 20}, 1),
        ({}, 0),
        ({"fold_bytes": 1 << 20, "skip": ("fold_constants",)}, 0),
    ],
)
def test_weights_that_every_run_converts(options: dict[str, Any], told: int) -> None:
    with tercet.load(quantized(512), **options) as model:
        found = heard(2, model, 1, 512)
    assert len(found) == told
    for text in found:
        assert "wide" in text
        assert "2 MiB" in text
        assert "fold_bytes=2097152" in text
    if told:
        remedy: dict[str, Any] = {"fold_bytes": 2097152, "fold_total": 2097152}
        with tercet.load(quantized(512), **{**options, **remedy}) as model:
            assert not heard(2, model, 1, 512)


def test_small_weights_are_not_worth_a_word() -> None:
    with tercet.load(quantized(16), fold_bytes=0) as model:
        assert not heard(2, model, 1, 16)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("a = Relu (x)  b = Exp (a)  y = Relu (b)", ["every run copies 2 tensors between cpu and"]),
        (
            "a = Exp (x)  y = Relu (a)",
            ["every run copies 1 tensor between cpu and fake:0, because"],
        ),
        ("a = Squeeze (x)  y = Relu (a)", []),
        ("a = Relu (x)  y = Squeeze (a)", []),
    ],
)
def test_copies_for_a_fallback(steps: str, said: list[str]) -> None:
    source = parse_model(f"""
    <ir_version: 10, opset_import: ["" : 21]>
    g (float[3] x) => (float[3] y) {{ {steps} }}
    """)
    graph = load(source).graph
    with Model(graph, [FakeBackend(FakeDevice()), NumpyBackend()], Options(), evaluate) as model:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            model.run({"x": np.zeros(3, np.float32)})
            model.run({"x": np.zeros(3, np.float32)})
        told = [str(each.message) for each in found]
        assert len(told) == len(said)
        for text, words in zip(told, said, strict=True):
            assert words in text
            assert "placement()" in text
