"""Rows that are repeated as computed counts say, as TorchScript's exporter writes them."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx.parser import parse_model

import tercet
from tercet.runtime.ir.types import Array

HEAD = '<ir_version: 10, opset_import: ["" : 17]>\n'
#: Of ``torch.repeat_interleave(x, n, dim=1)``.
INTERLEAVED = """
g (float[2, t, 3] x, int64[k] n) => (y) {
  one = Constant <value = int64[1] {1}> ()
  true = Constant <value = bool {1}> ()
  at = Constant <value = int64 {1}> ()
  x_shape = Shape (x)
  rows = Gather (x_shape, at)
  first = Constant <value = int64[1] {0}> ()
  m = Unsqueeze (rows, first)
  n_shape = Shape (n)
  is_one = Equal (n_shape, one)
  expanded = Expand (n, m)
  counts = Where (is_one, expanded, n)
  c_shape = Shape (counts)
  widths = ConstantOfShape <value = int64[1] {1}> (c_shape)
  all_counts = SplitToSequence <axis = 0> (counts, widths)
  all_rows = SplitToSequence <axis = 1> (x, widths)
  empty = SequenceEmpty <dtype = 1> ()
  z = Loop (m, true, empty) <body = b (int64 i, bool c, seq(float) s) => (bool d, seq(float) r) {
    count = SequenceAt (all_counts, AT)
    row = SequenceAt (all_rows, i)
    axis = Constant <value = int64[1] {2}> ()
    wider = Unsqueeze (row, axis)
    before = Constant <value = int64[2] {-1, 1}> ()
    after = Constant <value = int64[1] {-1}> ()
    sizes = Concat <axis = 0> (before, count, after)
    sizes_shape = Shape (sizes)
    ones = ConstantOfShape <value = int64[1] {1}> (sizes_shape)
    minus = Constant <value = int64 {-1}> ()
    marks = Mul (ones, minus)
    is_mark = Equal (sizes, marks)
    given = Where (is_mark, ones, sizes)
    repeated = Expand (wider, given)
    shape = Constant <value = int64[3] {SHAPE}> ()
    part = Reshape (repeated, shape)
    r = SequenceInsert (s, part)
    d = Identity (c)
  }>
  y = ConcatFromSequence <axis = AXIS> (z)
}"""
#: Of a function that ``torch.jit.script`` compiled: ``out.append(x[i:i + 1].expand(n[i], -1))``.
SCRIPTED = """
g (float[t, 4] x, int64[t] n) => (y) {
  true = Constant <value = bool {1}> ()
  at = Constant <value = int64 {0}> ()
  x_shape = Shape (x)
  m = Gather (x_shape, at)
  empty = SequenceEmpty <dtype = 1> ()
  z = Loop (m, true, empty) <body = b (int64 i, bool c, seq(float) s) => (bool d, seq(float) r) {
    next = Constant <value = int64 {STEP}> ()
    j = Add (i, next)
    first = Constant <value = int64[1] {0}> ()
    one = Constant <value = int64[1] {1}> ()
    start = Unsqueeze (i, first)
    end = Unsqueeze (j, first)
    row = Slice (x, start, end, first, one)
    count = Gather (n, i)
    counts = Unsqueeze (count, first)
    width = Constant <value = int64[1] {4}> ()
    sizes = Concat <axis = 0> (counts, width)
    flat = Constant <value = int64[1] {-1}> ()
    given = Reshape (sizes, flat)
    part = Expand (row, given)
    r = SequenceInsert (s, part)
    d = Identity (c)
  }>
  y = ConcatFromSequence <axis = 0> (z)
}"""
UNROLLED = """
g (float[3, 4] x, int64[3] n) => (y) {
  a, b, c = Split <axis = 0> (x)
  i, j, k = Split <axis = 0> (n)
  one = Constant <value = int64[1] {1}> ()
  four = Constant <value = int64[1] {4}> ()
  shape = Constant <value = int64[2] {-1, 4}> ()
  a1 = Unsqueeze (a, one)
  b1 = Unsqueeze (b, one)
  c1 = Unsqueeze (c, one)
  i1 = Concat <axis = 0> (one, i, four)
  j1 = Concat <axis = 0> (one, j, four)
  k1 = Concat <axis = 0> (one, k, four)
  a2 = Expand (a1, i1)
  b2 = Expand (b1, j1)
  c2 = Expand (c1, k1)
  a3 = Reshape (a2, shape)
  b3 = Reshape (b2, shape)
  c3 = Reshape (c2, shape)
  y = Concat <axis = 0> (PARTS)
}"""


def drawn(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def check(text: str, x: Array, counts: list[int]) -> tuple[Array, bool]:
    """Return the result, which is also onnxruntime's, and whether a CumSum finds the rows."""
    proto = parse_model(HEAD + text)
    feeds = {"x": x, "n": np.array(counts, np.int64)}
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    with tercet.load(proto) as model:
        (found,) = model.run(feeds).values()
        np.testing.assert_array_equal(found, wanted)
        plan = str(model.placement())
    is_found = "CumSum" in plan
    assert is_found != ("Sequence" in plan or "Concat " in plan)
    return found, is_found


def interleaved(at: str = "i", shape: str = "0, -1, 3", axis: int = 1) -> str:
    text = INTERLEAVED.replace("AT)", f"{at})").replace("SHAPE", shape)
    return text.replace("AXIS", str(axis))


@pytest.mark.parametrize("counts", [[2, 0, 3, 1, 1], [0] * 5, [1] * 5, [0, 0, 7, 0, 0], [3], [-1]])
def test_interleaved_repeats_are_a_gather(counts: list[int]) -> None:
    x = drawn(2, 5, 3)
    y, is_found = check(interleaved(), x, counts)
    np.testing.assert_array_equal(y, np.repeat(x, np.abs(counts * (5 // len(counts))), 1))
    assert is_found


@pytest.mark.parametrize("rows", [1, 2, 6])
def test_scripted_repeats_are_a_gather(rows: int) -> None:
    x, counts = drawn(rows, 4), [3, 0, 1, 2, 0, 5][:rows]
    y, is_found = check(SCRIPTED.replace("STEP", "1"), x, counts)
    np.testing.assert_array_equal(y, np.repeat(x, counts, 0))
    assert is_found


def test_unrolled_repeats_are_a_gather() -> None:
    x, counts = drawn(3, 4), [2, 0, 3]
    y, is_found = check(UNROLLED.replace("PARTS", "a3, b3, c3"), x, counts)
    np.testing.assert_array_equal(y, np.repeat(x, counts, 0))
    assert is_found


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (interleaved(at="first"), (2, 5, 3)),
        (interleaved(shape="-1, 2, 3"), (2, 5, 3)),
        (interleaved(axis=0), (2, 5, 3)),
        (interleaved(axis=2), (2, 5, 3)),
        (SCRIPTED.replace("STEP", "2"), (5, 4)),
        (UNROLLED.replace("PARTS", "a3, c3, b3"), (3, 4)),
        (UNROLLED.replace("PARTS", "a3, b3"), (3, 4)),
        (UNROLLED.replace("PARTS", "a3, b3, c3, a3"), (3, 4)),
        (UNROLLED.replace("PARTS", "a3, b3, c3").replace("(c1, k1)", "(c1, j1)"), (3, 4)),
        (UNROLLED.replace("PARTS", "a3, b3, c3").replace("{-1, 4}", "{4, -1}"), (3, 4)),
    ],
    ids=[
        "one count for all",
        "samples and rows mixed",
        "joined as samples",
        "joined as columns",
        "two rows at a time",
        "out of order",
        "too few",
        "one twice",
        "one count twice",
        "another shape",
    ],
)
def test_other_repeats_stay(text: str, rows: tuple[int, ...]) -> None:
    counts = [2] * (rows[1] if len(rows) == 3 else rows[0])
    assert not check(text, drawn(*rows), counts)[1]
