"""Rewrites round no sum of float16 at a point where it is larger than at the end."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser

import tercet

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
VIEWED = """g (float16[2,5,8] x) => (float16[2,5,3] y)
    <int64[2] rows = {-1, 8}, int64[3] sizes = {2, 5, 3}>
    { r = Reshape(x, rows)  p = Gemm(r, w0, b)  y = Reshape(p, sizes) }"""
BRANCHES = """g (float16[5,8] x) => (float16[5,12] y)
    { c = Gemm(x, w0, b)  d = Gemm(x, w1, b)  e = Gemm(x, w2, b)  f = Gemm(x, w3, b)
      y = Concat<axis = 1>(c, d, e, f) }"""
PAIRS = """g (float16[5,1,8] x) => (float16[5,5,3] y)
    <int64[3] sizes = {5, 5, 8}, int64[3] reshaped = {1, 5, 8}>
    { a = Expand(x, sizes)  r = Reshape(x, reshaped)  n = Neg(r)  m = Expand(n, sizes)
      c = Concat<axis = 2>(a, m)  w = Concat<axis = 0>(w0, w1)  y = MatMul(c, w) }"""


def passes(text: str, bias: float, x: np.ndarray, wanted: float) -> list[str]:
    """Check that each element is a number; return the passes that rewrite the model.

    The columns of all weights have the sum 800.
    """
    proto: ModelProto = parser.parse_model(HEAD + text)
    weights = {f"w{i}": np.tile([[100.0 - i], [100.0 + i]], (4, 3)) for i in range(4)}
    for name, data in {**weights, "b": np.full(3, bias)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(data.astype(np.float16), name))
    with tercet.load(proto) as loaded:
        np.testing.assert_array_equal(loaded.run({"x": x})["y"], np.float16(wanted))
        return [rewrite.name for rewrite in loaded.rewrites]


@pytest.mark.parametrize(
    ("text", "shape", "name"),
    [(VIEWED, (2, 5, 8), "hoist_reshapes"), (BRANCHES, (5, 8), "stack_branches")],
    ids=["hoist_reshapes", "stack_branches"],
)
def test_what_a_layer_adds(text: str, shape: tuple[int, ...], name: str) -> None:
    """72000 - 20000 fits into float16, and 72000 does not; biases of networks are small."""
    assert name not in passes(text, -20000, np.full(shape, 90, np.float16), 52000)
    assert name in passes(text, -8, np.full(shape, 10, np.float16), 7992)


def test_parts_of_a_sum() -> None:
    """72000 - 72000 is 0."""
    x = np.full((5, 1, 8), 90, np.float16)
    assert "multiply_early" not in passes(PAIRS, 0, x, 0)
