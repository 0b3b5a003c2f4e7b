"""Columns of features that are known before a run are taken in one call of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import tercet
from tercet.backends.numpy.engine.registry import KERNELS
from tercet.runtime.ops.ml import ArrayFeatureExtractor

from .graphs import Array, random

KINDS: dict[str, Any] = {"float32": np.float32, "float64": np.float64, "int64": np.int64}


def file(x: Array, y: Array, *, is_constant: bool) -> onnx.ModelProto:
    given = {"x": x} if is_constant else {"x": x, "y": y}
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in given.items()
    ]
    graph = helper.make_graph(
        [helper.make_node("ArrayFeatureExtractor", ["x", "y"], ["z"], domain="ai.onnx.ml")],
        "columns",
        inputs,
        [helper.make_tensor_value_info("z", helper.np_dtype_to_tensor_dtype(x.dtype), None)],
        [numpy_helper.from_array(y, "y")] if is_constant else [],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("places", [[[2]], [[0, 2, 4]], [[4, 1, 1]], [[3], [0]]], ids=str)
@pytest.mark.parametrize("shape", [(6, 5), (2, 3, 5), (5,)], ids=str)
def test_columns(
    shape: tuple[int, ...], places: list[list[int]], kind: str, is_constant: bool
) -> None:
    x, y = (10 * random(*shape)).astype(KINDS[kind]), np.array(places, np.int64)
    made = file(x, y, is_constant=is_constant)
    feeds = {"x": x} if is_constant else {"x": x, "y": y}
    with tercet.load(made, "numpy") as model:
        model.run({name: np.zeros_like(data) for name, data in feeds.items()})
        found = model.run(feeds)["z"]
    session = onnxruntime.InferenceSession(made.SerializeToString())
    want = np.asarray(session.run(None, feeds)[0])
    np.testing.assert_array_equal(found.reshape(want.shape), want)


def test_runs_do_not_look_at_constant_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(KERNELS, ArrayFeatureExtractor)
    x, y = random(4, 3), np.array([[2, 0]])
    with tercet.load(file(x, y, is_constant=True), "numpy", stop_at=0) as model:
        np.testing.assert_array_equal(model.run({"x": x})["z"], x[:, [2, 0]])


def test_columns_that_there_are_not() -> None:
    x = random(4, 3)
    with (
        tercet.load(file(x, np.array([[3]]), is_constant=True), "numpy") as model,
        pytest.raises(tercet.TercetError, match="x has 3"),
    ):
        model.run({"x": x})
