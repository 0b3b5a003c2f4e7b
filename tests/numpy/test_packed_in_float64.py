"""Packed weights in float64, as references of other precisions are computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tercet.runtime.ops.packed import BNB4
from tercet.tools.verdict import float64_reference
from tercet.tools.verdict.accuracy import exact_outputs

from ..randomness import restarting

RNG = restarting(0)
ROWS, K, N, BLOCK = 3, 40, 24, 16


def exact(kind: str, weights: dict[str, np.ndarray], x: np.ndarray, **how: Any) -> np.ndarray:
    """One product with these weights, its results in float64."""
    node = helper.make_node(kind, ["x", *weights], ["y"], domain="com.microsoft", K=K, N=N, **how)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [ROWS, d]) for n, d in
            (("x", K), ("y", N))]  # fmt: skip
    held = [numpy_helper.from_array(data, name) for name, data in weights.items()]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], held)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return exact_outputs(model.SerializeToString(), {"x": x})["y"]


@pytest.mark.parametrize("rows", [1, 7, 30])
def test_threads_share_the_conversion_of_large_constants(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(float64_reference, "SHARED", 100)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, [rows, 5]) for n in ("x", "y")]
    weights = RNG.standard_normal((rows, 5)).astype(np.float16)
    held = [numpy_helper.from_array(weights, "w")]
    add = helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([add], "g", ends[:1], ends[1:], held)
    opsets = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    x = RNG.standard_normal((rows, 5)).astype(np.float16)
    found = exact_outputs(model.SerializeToString(), {"x": x})["y"]
    np.testing.assert_array_equal(found, x.astype(np.float64) + weights.astype(np.float64))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_integers_of_blocks(bits: int) -> None:
    blocks = -(-K // BLOCK)
    codes = RNG.integers(0, 1 << bits, (N, blocks * BLOCK)).astype(np.uint8)
    per = 8 // bits
    parts = codes.reshape(N, blocks, BLOCK // per, per).astype(np.uint32)
    packed = (parts << (np.arange(per) * bits)).sum(-1).astype(np.uint8)
    scales = RNG.random((N, blocks), np.float32)
    x = RNG.standard_normal((ROWS, K)).astype(np.float32)
    found = exact("MatMulNBits", {"b": packed, "s": scales}, x, bits=bits, block_size=BLOCK)
    wide = (codes.astype(np.float64) - (1 << (bits - 1))).reshape(N, blocks, BLOCK)
    weights = (wide * scales[..., None].astype(np.float64)).reshape(N, -1)[:, :K]
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, x.astype(np.float64) @ weights.T, 1e-13, 1e-13)


@pytest.mark.parametrize("kind", [0, 1])
def test_numbers_of_a_table(kind: int) -> None:
    codes = RNG.integers(0, 16, N * K).astype(np.uint8)
    packed = (codes[::2] << 4 | codes[1::2]).astype(np.uint8)
    factors = RNG.random(-(-N * K // BLOCK), np.float32)
    x = RNG.standard_normal((ROWS, K)).astype(np.float32)
    held = {"b": packed, "a": factors}
    found = exact("MatMulBnb4", held, x, quant_type=kind, block_size=BLOCK)
    table = np.array(BNB4[kind], np.float32).astype(np.float64)
    scaled = table[codes] * np.repeat(factors.astype(np.float64), BLOCK)[: N * K]
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, x.astype(np.float64) @ scaled.reshape(N, K).T, 1e-13, 1e-13)
