"""Model files to tell lies about, shared by the tests of hostile files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx import ModelProto, TensorProto, parser

MODEL = """
    <ir_version: 8, opset_import: ["" : 17]>
    small (float[n, 4] x) => (float[n, 2] y)
    <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2] b = {1, 2}>
    { h = MatMul(x, w)  z = Add(h, b)  y = Softmax <axis = -1> (z) }"""
EXTERNAL = TensorProto.EXTERNAL


def small() -> ModelProto:
    return parser.parse_model(MODEL)


def changed(change: Callable[[ModelProto], object]) -> ModelProto:
    model = small()
    change(model)
    return model


def tensor(**fields: Any) -> TensorProto:
    given: dict[str, Any] = {"name": "w", "data_type": 1, "dims": [4, 2], **fields}
    return TensorProto(**given)
