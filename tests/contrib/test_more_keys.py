"""Causal MultiHeadAttention of fewer queries than keys: queries are the last of the positions."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import tercet
from tercet.runtime.ops.attention import Attention
from tercet.tools.workshop.onnxruntime_process import run_onnxruntime

from ..randomness import restarting

RNG = restarting(17)
HEADS, SIZE = 2, 4
TEXT = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
  g (float[1, {queries}, 8] q, float[1, {keys}, 8] k, float[1, {keys}, 8] v {past}) => (float y)
  {{ y = com.microsoft.MultiHeadAttention <num_heads = 2, unidirectional = 1>
         (q, k, v, "", "", "" {given}) }}"""
CACHES = ", float[1, 2, {past}, 4] pk, float[1, 2, {past}, 4] pv"


def attended(feeds: dict[str, np.ndarray], first: int) -> np.ndarray:
    """Return attention in float64, where query i sees the keys up to first + i."""
    q, k, v = (
        feeds[name][0].astype(np.float64).reshape(-1, HEADS, SIZE).swapaxes(0, 1) for name in "qkv"
    )
    if "pk" in feeds:
        k, v = (np.concatenate([feeds[f"p{n}"][0], x], 1) for n, x in (("k", k), ("v", v)))
    scores = q @ k.swapaxes(1, 2) / 2
    hidden = np.arange(k.shape[1]) > np.arange(q.shape[1])[:, None] + first
    weights = np.exp(np.where(hidden, -np.inf, scores - scores.max(-1, keepdims=True)))
    y = weights / weights.sum(-1, keepdims=True) @ v
    return y.swapaxes(0, 1).reshape(1, -1, HEADS * SIZE)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize(("queries", "keys"), [(1, 5), (2, 5), (4, 5), (5, 5), (6, 5)])
def test_queries_are_the_last(queries: int, keys: int, past: int, known: bool) -> None:
    shapes = {"q": (1, queries, 8), "k": (1, keys, 8), "v": (1, keys, 8)}
    names = {"queries": queries, "keys": keys} if known else {"queries": "n", "keys": "m"}
    if past:
        shapes |= dict.fromkeys(("pk", "pv"), (1, HEADS, past, SIZE))
    given = CACHES.format(past=past if known else "p") if past else ""
    text = TEXT.format(**names, past=given, given=", pk, pv" if past else "")
    proto = onnx.parser.parse_model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    feeds = {name: RNG.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    with tercet.load(proto) as model:
        found = np.asarray(model.run(feeds)["y"])
    expected = attended(feeds, past + max(keys - queries, 0))
    np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
    if not past:  # with it, onnxruntime wants the states as results
        theirs = run_onnxruntime(proto, feeds)["y"]
        rows = slice(-1, None) if queries < keys else slice(None)
        np.testing.assert_allclose(found[:, rows], theirs[:, rows], 1e-5, 1e-6)


@pytest.mark.parametrize(("queries", "causal"), [("m", 1), ("5", 1), ("1", 0)])
def test_only_what_may_be_behind_is_masked(queries: str, causal: int) -> None:
    proto = onnx.parser.parse_model(
        TEXT.format(queries=queries, keys="m" if queries == "m" else "5", past="", given="")
    )
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    with tercet.load(proto, stop_at=0) as model:
        (node,) = [each for each in model.imported.nodes if each.kind == "Attention"]
    assert isinstance(node.op, Attention)
    assert node.op.is_causal == causal
    assert len(node.operands) == 3
