"""What small changes of networks have shown: rewrites leave what they compute as it is."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import tercet
from tercet.tools.workshop.onnxruntime_process import run_onnxruntime

from ..randomness import restarting

RNG = restarting(11)
HEAD = '<ir_version: 10, opset_import: ["" : 21]> g '
#: By name: what was changed, the model, and whether onnxruntime takes it.
CHANGED = {
    "axes that are a scalar": (
        """(float[1, 3, 3] x) => (float[a, b, c, d] y)
        <int64[1] one = {1}, int64 two = {2}, int64[4] sizes = {1, 3, 3, 3}>
        { a = Unsqueeze (x, one)  b = Expand (a, sizes)  c = Unsqueeze (x, two)
          d = Expand (c, sizes)  e = Concat <axis = -1> (b, d)  y = MatMul (e, w) }""",
        {"w": (6, 2)},
        False,
    ),
    "bounds that are scalars": (
        """(float[2, 3, 8] x) => (float[a, b, c] y)
        <int64[5] sizes = {2, 3, 3, 2, 4}, int64 i = {0}, int64 j = {1}, int64 k = {2},
         int64 l = {3}, int64 axis = {2}, int64[1] axes = {2}, int64[3] rows = {2, 3, 8}>
        { p = MatMul (x, w)  h = Reshape (p, sizes)
          q0 = Slice (h, i, j, axis)  k0 = Slice (h, j, k, axis)  v0 = Slice (h, k, l, axis)
          q1 = Squeeze (q0, axes)  k1 = Squeeze (k0, axes)  v1 = Squeeze (v0, axes)
          q = Transpose <perm = [0, 2, 1, 3]> (q1)  t = Transpose <perm = [0, 2, 3, 1]> (k1)
          v = Transpose <perm = [0, 2, 1, 3]> (v1)
          s = MatMul (q, t)  r = Softmax <axis = -1> (s)  m = MatMul (r, v)
          o = Transpose <perm = [0, 2, 1, 3]> (m)  y = Reshape (o, rows) }""",
        {"w": (8, 24)},
        False,
    ),
    "queries that are the same for several keys": (
        """(float[3, 1, 8] x) => (float[a, b, c] y)
        <int64[5] sizes = {3, 1, 1, 2, 4}, int64[3] rows = {3, 4, 4}>
        { a = MatMul (x, u)  q = Reshape (a, sizes)
          b = MatMul (x, w)  c = Reshape (b, sizes)  k = Transpose <perm = [0, 1, 3, 4, 2]> (c)
          v = Transpose <perm = [0, 1, 3, 2, 4]> (c)
          s = MatMul (q, k)  r = Softmax <axis = -1> (s)  m = MatMul (r, v)
          t = Transpose <perm = [0, 1, 3, 2, 4]> (m)  y = Reshape (t, rows) }""",
        {"u": (8, 8), "w": (8, 8)},
        True,
    ),
    "a scale for each row": (
        """(float[1, 2, 8] x) => (float[a, b] y)
        <int64 last = {1}>
        { a = Transpose <perm = [1, 0, 2]> (x)  b = MatMul (x, w)  c = Add (b, a)
          d = Transpose <perm = [1, 0, 2]> (c)  n = LayerNormalization (d, scale, shift)
          e = Gather <axis = 1> (n, last)  y = MatMul (e, u) }""",
        {"w": (8, 8), "u": (8, 8), "scale": (1, 2, 8), "shift": (8,)},
        True,
    ),
    "branches in another order": (
        """(float[3, 1, 6] x) => (float[a, b, c, d] y)
        <int64[1] axis = {1}>
        { a, b, c = Split <axis = -1, num_outputs = 3> (x)
          d = MatMul (a, u)  e = MatMul (b, v)  f = MatMul (c, w)
          i = Sigmoid (d)  j = Sigmoid (e)  k = Sigmoid (f)
          l = Unsqueeze (i, axis)  m = Unsqueeze (j, axis)  n = Unsqueeze (k, axis)
          y = Concat <axis = 1> (l, n, m) }""",
        {"u": (2, 4), "v": (2, 4), "w": (2, 4)},
        True,
    ),
    "no channels": (
        """(float[2, 0, 3, 3] x) => (float[a, b, c, d] y)
        { a = Conv (x, u)  b = Conv (x, v)  c = Add (a, b)
          n = BatchNormalization (c, k, k, k, k)  r = Relu (n)
          d = BatchNormalization (r, k, k, k, k)  y = Conv (d, w) }""",
        {"u": (0, 0, 1, 1), "v": (0, 0, 1, 1), "k": (0,), "w": (0, 0, 1, 1)},
        False,
    ),
    "no heads": (
        """(float[2, 0, 3, 4] x) => (float[a, b, c, d] y)
        { t = Transpose <perm = [0, 1, 3, 2]> (x)  s = MatMul (x, t)
          r = Softmax <axis = -1> (s)  y = MatMul (r, x) }""",
        {},
        False,
    ),
}


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rewrites_change_nothing(name: str, dtype: type) -> None:
    text, weights, is_known = CHANGED[name]
    if dtype == np.float64:
        text = text.replace("float", "double")
    proto = onnx.parser.parse_model(HEAD + text)
    for key, shape in weights.items():
        data = RNG.standard_normal(shape).astype(dtype)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(data, key))
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": RNG.standard_normal(shape).astype(dtype)}
    with tercet.load(proto) as model, tercet.load(proto, stop_at=0) as plain:
        found, expected = model.run(feeds)["y"], plain.run(feeds)["y"]
        assert [rewrite for rewrite in model.rewrites if rewrite.name != "remove_dead"] or not (
            found.size
        )
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found, expected, tolerance, tolerance)
    if is_known:
        np.testing.assert_allclose(found, run_onnxruntime(proto, feeds)["y"], 1e-5, 1e-5)
