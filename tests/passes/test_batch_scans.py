"""Scans whose elements do not depend on each other, as skl2onnx writes pairwise distances."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx.parser import parse_model

import tercet
from tercet.runtime.passes.control import batch_scans

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
#: Distances of the rows of a from those of b.
DISTANCES = """g (float[m, 3] a, float[n, 3] b) => (y) {
  s, d = Scan <num_scan_inputs = 1, body = rows (float[m, 3] s, float[3] row) => (t, z) {
    t = Identity (s)
    ones = Constant <value = int64[1] {AXIS}> ()
    c = Sub (s, row)
    p = Abs (c)
    q = KIND <keepdims = 0> (p, ones)
    z = Identity (q)
  }> (a, b)
  y = Transpose <perm = [1, 0]> (d)
}"""
#: Scanned and stacked along other axes, with captured values and operands of lower rank.
AXES = """g (float[3, n] a, float[n, 2, 3] b, float[3] c, float[2, 1] e) => (y, z) {
  y, z = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_output_axes = [-1, 1],
    body = rows (float[3] u, float[2, 3] v) => (p, q) {
      f = Mul (u, c)
      g = Add (v, f)
      h = Max (g, e)
      l = Less (g, e)
      w = Where (l, h, u)
      p = ReduceSum <keepdims = 1> (w)
      q = Exp (w)
    }> (a, b)
}"""
#: Whose state changes, or whose results do not depend on the element.
OTHERS = {
    "sums": "t = Add (s, row)\n z = Neg (t)",
    "last": "t = Identity (row)\n z = Sub (s, row)",
    "same": "t = Identity (s)\n z = Neg (s)",
    "sorted": "t = Identity (s)\n i = Constant <value = int64[1] {1}> ()\n z, j = TopK (row, i)",
}
OTHER = """g (float[3] a, float[n, 3] b) => (y, z) {
  y, z = Scan <num_scan_inputs = 1, body = rows (float[3] s, float[3] row) => (t, z) {
    BODY
  }> (a, b)
}"""


def drawn(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def is_batched(text: str, feeds: dict[str, Any]) -> bool:
    """Hold results against onnxruntime's; return whether no Scan is left."""
    proto = parse_model(HEAD + text)
    wanted: Any = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    with tercet.load(proto) as model:
        found = model.run(feeds)
        for mine, theirs in zip(found.values(), wanted, strict=True):
            np.testing.assert_allclose(mine, theirs, 1e-5, 1e-6)
        rows = model.placement({name: x.shape for name, x in feeds.items()}).rows
        return not any("Scan" in (row.operators or "") for row in rows)


@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceSumSquare", "ReduceMax"])
@pytest.mark.parametrize("axis", [1, -1])
def test_distances(kind: str, axis: int) -> None:
    text = DISTANCES.replace("KIND", kind).replace("AXIS", str(axis))
    assert is_batched(text, {"a": drawn(5, 3), "b": drawn(4, 3)})


def test_products_of_an_element_and_itself() -> None:
    text = (
        DISTANCES.replace("KIND", "ReduceSum").replace("AXIS", "1").replace("Abs (c)", "Mul (c, c)")
    )
    assert is_batched(text, {"a": drawn(5, 3), "b": drawn(4, 3)})


def test_axes_captures_and_ranks() -> None:
    feeds = {"a": drawn(3, 4), "b": drawn(4, 2, 3), "c": drawn(3), "e": drawn(2, 1)}
    assert is_batched(AXES, feeds)


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_other_scans_stay(body: str) -> None:
    assert not is_batched(OTHER.replace("BODY", body), {"a": drawn(3), "b": drawn(4, 3)})


def test_without_memory_for_all_elements_they_come_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_scans, "ROOM", 5 * 4 * 3 - 1)
    text = DISTANCES.replace("KIND", "ReduceSum").replace("AXIS", "1")
    assert not is_batched(text, {"a": drawn(5, 3), "b": drawn(4, 3)})
