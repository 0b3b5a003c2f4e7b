"""Products of one matrix that a Concat joins as columns are one: results are onnxruntime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto
from onnx.parser import parse_model

import tercet

from .graphs import optimised_file

ROWS = 6


def model(terms: int = ROWS, axis: int = -1, other: str = "p") -> ModelProto:
    """Return weights times two groups of values, each for two heads in turn, side by side."""
    return parse_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        g (float[1, 4, {ROWS}, {terms}] s, float[1, 4, {terms}, 8] v) => (y)
        <
         int64[1] two = {{2}}, int64[5] many = {{1, 2, 2, {terms}, 8}},
         int64[4] heads = {{1, 4, {terms}, 8}}> {{
            p = Softmax (s)
            t = Tanh (s)
            first, second = Split <axis = 1, num_outputs = 2> (v)
            a0 = Unsqueeze (first, two)
            a1 = Expand (a0, many)
            a = Reshape (a1, heads)
            b0 = Unsqueeze (second, two)
            b1 = Expand (b0, many)
            b = Reshape (b1, heads)
            c = MatMul (p, a)
            d = MatMul ({other}, b)
            e = Transpose <perm = [0, 2, 1, 3]> (c)
            f = Transpose <perm = [0, 2, 1, 3]> (d)
            y = Concat <axis = {axis}> (e, f)
        }}"""
    )


def assert_as_onnxruntime(proto: ModelProto) -> None:
    rng = np.random.default_rng(0)
    feeds = {
        each.name: rng.standard_normal(
            [d.dim_value for d in each.type.tensor_type.shape.dim], np.float32
        )
        for each in proto.graph.input
    }
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=providers)
    (want,) = session.run(None, feeds)
    with tercet.load(proto, "numpy") as loaded:
        np.testing.assert_allclose(loaded.run(feeds)["y"], np.asarray(want), rtol=1e-6, atol=1e-6)


def test_values_are_joined_before_they_are_repeated() -> None:
    proto = model()
    kinds, log = optimised_file(proto)
    assert log.counts["join_products"] == 1
    assert kinds.count("MatMul") == kinds.count("Expand") == 1
    assert kinds.index("Expand") < kinds.index("MatMul")
    assert_as_onnxruntime(proto)


@pytest.mark.parametrize(
    "how", [{"terms": 9}, {"axis": 1}, {"other": "t"}], ids=["many terms", "rows", "two factors"]
)
def test_others_stay(how: dict[str, Any]) -> None:
    proto = model(**how)
    _, log = optimised_file(proto)
    assert "join_products" not in log.counts
    assert_as_onnxruntime(proto)
