"""Bodies with more or fewer inputs and outputs than their node."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, parser

import tercet

X = np.array([1, -2], np.float32)
TAKES = "t (float[2] q) => (float[2] o) { o = Neg (q) }"
PLAIN = "e () => (float[2] o) { o = Abs (x) }"
MANY = "t () => (float[2] o, float[2] o2) { o = Neg (x)  o2 = Abs (x) }"


def parsed(text: str) -> ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')


@pytest.mark.parametrize("branches", [(TAKES, PLAIN), (PLAIN, TAKES), (TAKES, TAKES)])
@pytest.mark.parametrize("is_constant", [True, False])
def test_a_branch_has_no_inputs(branches: tuple[str, str], *, is_constant: bool) -> None:
    inputs, constant = ("", "<bool c = {1}>") if is_constant else (", bool c", "")
    model = parsed(
        f"""g (float[2] x{inputs}) => (float[2] y) {constant}
        {{ y = If (c) <then_branch = {branches[0]}, else_branch = {branches[1]}> }}"""
    )
    with pytest.raises(tercet.ModelError, match=r"'y' \(If\): body '.' has 1 inputs; expected 0"):
        tercet.load(model)


@pytest.mark.parametrize("control", ["device", "host"])
def test_results_at_the_end_may_be_left_out(control: str) -> None:
    """As of any operator; onnxruntime wants all of them, so numpy computes what is expected."""
    model = parsed(
        f"""g (float[2] x, int64 n, bool c) => (float[2] y, float[2] z, float[2] w)
        {{ y = Loop (n, , x) <body = b (int64 i, bool k, float[2] v) =>
                             (bool l, float[2] o, float[2] o2, float[2] o3)
           {{ l = Identity (k)  o = Add (v, v)  o2 = Neg (v)  o3 = Abs (v) }}>
          z = Scan (x, x) <num_scan_inputs = 1, body = s (float[2] a, float e) =>
                             (float[2] p, float p2, float p3)
           {{ p = Add (a, e)  p2 = Neg (e)  p3 = Abs (e) }}>
          w = If (c) <then_branch = {MANY}, else_branch = {MANY.replace("t ()", "e ()")}> }}"""
    )
    with tercet.load(model, control=control) as loaded:
        y, z, w = loaded(X, np.array(3), np.array(True))
    np.testing.assert_array_equal(y, 8 * X)
    np.testing.assert_array_equal(z, X + X.sum())
    np.testing.assert_array_equal(w, -X)
