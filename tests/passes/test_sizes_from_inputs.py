"""Sizes of computed tensors are read from inputs: results are onnxruntime's."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto
from onnx.parser import parse_model

import tercet

from .graphs import optimised_file


def asked(tensor: str, attributes: str = "") -> ModelProto:
    """Return an attention, and sizes that are read from a tensor in it, as CTRL is traced."""
    return parse_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        g (float[b, 4, l, 8] q, float[b, 4, l, 8] k, float[b, 4, l, 8] v, float[l, l] mask)
            => (float[b, 4, l, 8] y, int64[m] sizes) <float eight = {{8}}> {{
            kt = Transpose <perm = [0, 1, 3, 2]> (k)
            products = MatMul (q, kt)
            scores = Div (products, eight)
            masked = Add (scores, mask)
            weights = Softmax <axis = -1> (masked)
            y = MatMul (weights, v)
            sizes = Shape {attributes} ({tensor})
        }}"""
    )


@pytest.mark.parametrize(
    ("tensor", "attributes"),
    [("scores", ""), ("weights", "<start = 1, end = 3>"), ("y", "<start = -2>"), ("masked", "")],
)
def test_the_shape_of_scores_keeps_no_attention_apart(tensor: str, attributes: str) -> None:
    proto = asked(tensor, attributes)
    kinds, log = optimised_file(proto)
    assert log.counts["sizes_from_inputs"] == 1
    assert "Attention" in kinds
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((2, 4, 5, 8)).astype(np.float32) for n in "qkv"}
    feeds["mask"] = rng.standard_normal((5, 5)).astype(np.float32)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    want = [np.asarray(each) for each in session.run(None, feeds)]
    with tercet.load(proto, "numpy") as loaded:
        got = loaded.run(feeds)
    np.testing.assert_allclose(got["y"], want[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got["sizes"], want[1])


def test_what_no_input_has_is_asked_for() -> None:
    """The number of elements that are not zero is known only as they are counted."""
    proto = parse_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        g (float[n] x) => (int64[2] sizes, int64[1, m] places) {
            places = NonZero (x)
            sizes = Shape (places)
        }"""
    )
    kinds, log = optimised_file(proto)
    assert kinds == ["NonZero", "Shape"]
    assert "sizes_from_inputs" not in log.counts
