"""An encoder whose length is a symbol gets the rewrites that one of a known length gets."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

import tercet
from tercet.runtime.options import Precision

TEXT = """
<ir_version: 10, opset_import: ["" : 20]>
encoder (int64[1, seq] ids) => (float[1, seq, 64] y) {
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    two = Constant <value_ints = [2]> ()
    sizes = Shape (ids)
    length = Slice (sizes, one, two, zero)
    places = Slice (positions, zero, length, one)
    words = Gather (table, ids)
    x = Add (words, places)
    q0 = MatMul (x, wq)
    k0 = MatMul (x, wk)
    v0 = MatMul (x, wv)
    heads = Constant <value_ints = [1, -1, 4, 16]> ()
    q1 = Reshape (q0, heads)
    k1 = Reshape (k0, heads)
    v1 = Reshape (v0, heads)
    q = Transpose <perm = [0, 2, 1, 3]> (q1)
    k = Transpose <perm = [0, 2, 3, 1]> (k1)
    v = Transpose <perm = [0, 2, 1, 3]> (v1)
    scores = MatMul (q, k)
    quarter = Constant <value_float = 0.25> ()
    scaled = Mul (scores, quarter)
    weights = Softmax <axis = -1> (scaled)
    mixed = MatMul (weights, v)
    transposed = Transpose <perm = [0, 2, 1, 3]> (mixed)
    flat = Constant <value_ints = [1, -1, 64]> ()
    joined = Reshape (transposed, flat)
    y = MatMul (joined, wo)
}
"""


@pytest.fixture(scope="module")
def encoder() -> onnx.ModelProto:
    model, rng = parser.parse_model(TEXT), np.random.default_rng(1)
    shapes = {"table": (30, 64), "positions": (1, 48, 64)}
    shapes |= dict.fromkeys(("wq", "wk", "wv", "wo"), (64, 64))
    for name, shape in shapes.items():
        data = rng.standard_normal(shape).astype(np.float32) / 8
        model.graph.initializer.append(numpy_helper.from_array(data, name))
    return model


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_attention_and_its_products_are_found(
    encoder: onnx.ModelProto, precision: Precision
) -> None:
    with tercet.load(encoder, precision=precision) as model:
        kinds = [node.kind for node in model.graph.nodes]
    assert kinds.count("Attention") == 1
    assert kinds.count("MatMul") == 2  # queries, keys and values together, and the last one
    assert not {"Softmax", "Transpose"} & set(kinds)


def test_results_of_all_lengths(encoder: onnx.ModelProto) -> None:
    session = onnxruntime.InferenceSession(encoder.SerializeToString())
    with tercet.load(encoder) as model:
        for length in (1, 2, 7, 48):
            ids = np.arange(length)[None] % 30
            (expected,), found = session.run(None, {"ids": ids}), model.run({"ids": ids})
            np.testing.assert_allclose(found["y"], np.asarray(expected), atol=1e-5)
        with pytest.raises(tercet.TercetError, match="do not broadcast"):
            model.run({"ids": np.zeros((1, 49), np.int64)})
