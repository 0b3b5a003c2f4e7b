"""Sequences whose elements are known become tensors; others stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx.parser import parse_model

import tercet
from tercet.runtime.ir.types import Array

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
CONSTRUCTED = """
g (float[2, 3] a, float[2, 3] b) => (y, n, z) {
  s = SequenceConstruct (a, b, a)
  first = Constant <value = int64 {1}> ()
  t = SequenceInsert (s, b, first)
  last = Constant <value = int64 {-1}> ()
  u = SequenceErase (t, last)
  v = SequenceAt (u, last)
  y = Add (v, a)
  n = SequenceLength (u)
  z = ConcatFromSequence <axis = -1, new_axis = NEW> (u)
}"""
SPLIT = """
g (float[n, 6] x) => (y, z) {
  s = SplitToSequence <axis = 1 KEEP> (x SIZES)
  first = Constant <value = int64 {0}> ()
  v = SequenceAt (s, first)
  y = Relu (v)
  z = ConcatFromSequence <axis = 0> (s)
}"""
COMPUTED = """
g (float[4] x, int64 at) => (y) {
  s = SplitToSequence (x)
  y = SequenceAt (s, at)
}"""
OUTSIDE = """
g (float[4] x) => (y) {
  s = SequenceConstruct (x)
  at = Constant <value = int64 {3}> ()
  y = SequenceAt (s, at)
}"""

#: torch.atleast_1d of tensors, as torch.onnx.export writes it, then sums with parts of another.
MAPPED = """
g (float[2, 3] a, float[2, 3] b, float[4, 3] x) => (y, z) {
  s = SequenceConstruct (a, b)
  none = Constant <value = int64 {0}> ()
  one = Constant <value_ints = [-1]> ()
  t = SequenceMap (s) <body = at_least_1d (float[2, 3] e) => (d) {
    shape = Shape (e)
    rank = Size (shape)
    empty = Equal (rank, none)
    d = If (empty) <
      then_branch = yes () => (c) { c = Reshape (e, one) },
      else_branch = no () => (i) { i = Identity (e) }
    >
  }>
  two = Constant <value = int64 {2}> ()
  parts = SplitToSequence <axis = 0> (x, two)
  u = SequenceMap (t, parts, a) <body = sum (float[2, 3] f, float[2, 3] g, float[2, 3] h) => (k) {
    m = Add (f, g)
    k = Mul (m, h)
  }>
  y = SequenceAt (u, none)
  z = ConcatFromSequence <axis = 0> (u)
}"""
READ_ELSEWHERE = """
g (float[2, 3] a, int64 at) => (float[2, 3] y) {
  s = SequenceConstruct (a, a)
  t = SequenceMap (s) <body = b (float[2, 3] e) => (d) { d = Neg (e) }>
  y = SequenceAt (t, at)
}"""


def kinds(model: tercet.Model) -> set[str]:
    return {node.kind for node in model.graph.nodes}


def check(text: str, feeds: dict[str, Array]) -> set[str]:
    proto = parse_model(HEAD + text)
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    with tercet.load(proto) as model:
        for mine, theirs in zip(model.run(feeds).values(), wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        return kinds(model)


def drawn(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("new_axis", [0, 1, 2, 2**63 - 1])
def test_elements_that_are_put_together(new_axis: int) -> None:
    feeds = {"a": drawn(2, 3), "b": drawn(2, 3) + 1}
    found = check(CONSTRUCTED.replace("NEW", str(new_axis)), feeds)
    assert not [kind for kind in found if "Sequence" in kind]
    assert "Concat" in found


def test_elements_that_add_nothing() -> None:
    """Though their other sizes are not those of what they are put together with."""
    text = """g (float[0, 3] a, float[2, 2] b) => (z) {
      s = SequenceConstruct (a, b, b)
      z = ConcatFromSequence <axis = 0> (s)
    }"""
    found = check(text, {"a": drawn(0, 3), "b": drawn(2, 2)})
    assert not [kind for kind in found if "Sequence" in kind]


@pytest.mark.parametrize(
    ("keep", "sizes"),
    [
        ("", ""),
        (", keepdims = 0", ""),
        (", keepdims = 0", "<value = int64 {1}>"),
        ("", "<value = int64 {4}>"),
        ("", "<value = int64[2] {3, 3}>"),
    ],
)
def test_parts_of_a_tensor(keep: str, sizes: str) -> None:
    text = SPLIT.replace("KEEP", keep)
    if sizes:
        text = text.replace("  s =", f"  sizes = Constant {sizes} ()\n  s =")
    text = text.replace("SIZES", ", sizes" if sizes else "")
    if "{4}" in sizes:  # parts of two widths do not join along the rows
        text = text.replace("ConcatFromSequence <axis = 0>", "ConcatFromSequence <axis = 1>")
    assert check(text, {"x": drawn(3, 6)}) <= {"Split", "Relu", "Concat", "Squeeze", "Transpose"}


def test_bodies_of_known_elements() -> None:
    found = check(MAPPED, {"a": drawn(2, 3), "b": drawn(2, 3) + 1, "x": drawn(4, 3)})
    assert not [kind for kind in found if "Sequence" in kind or kind == "If"]


def test_bodies_that_stay() -> None:
    feeds = {"a": drawn(2, 3), "b": drawn(2, 3), "x": drawn(6, 3)}
    assert "SequenceMap" in check(MAPPED.replace("[4, 3] x", "[6, 3] x"), feeds)
    with tercet.load(parse_model(HEAD + READ_ELSEWHERE)) as model:
        found = model.run({"a": drawn(2, 3), "at": np.array(1)})
        assert "SequenceMap" in kinds(model)
    np.testing.assert_array_equal(found["y"], -drawn(2, 3))


def test_positions_that_are_computed_stay() -> None:
    proto = parse_model(HEAD + COMPUTED)
    with tercet.load(proto) as model:
        assert "SequenceAt" in kinds(model)
        x = drawn(4)
        np.testing.assert_array_equal(model(x, np.array(2)), [x[2:3]])


def test_positions_outside_stay_errors() -> None:
    with (
        tercet.load(parse_model(HEAD + OUTSIDE)) as model,
        pytest.raises(tercet.TercetError, match="position 3 of a sequence of 1"),
    ):
        model(drawn(4))
