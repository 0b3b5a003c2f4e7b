"""A few bytes of a file that ask for petabytes are refused before anything is allocated."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

import tercet

P = 1 << 50

BOMBS = {
    "ConstantOfShape": "g (int64[1] n) => (y) { y = ConstantOfShape (n) }",
    "Expand": "g (int64[1] n) => (y) { x = Constant <value_float = 1.0> ()  y = Expand (x, n) }",
    "Tile": "g (int64[1] n) => (y) { one = Constant <value_floats = [1.0]> () y = Tile (one, n) }",
    "Range": """g (int64[1] n) => (y) {
        z = Constant <value_int = 0> ()  one = Constant <value_int = 1> ()
        axes = Constant <value_ints = [0]> ()  m = Squeeze (n, axes)  y = Range (z, m, one) }""",
    "Pad": """g (int64[1] n) => (y) {
        x = Constant <value_floats = [1.0]> ()  p = Concat <axis = 0> (n, n)  y = Pad (x, p) }""",
    "Resize": """g (int64[1] n) => (y) {
        x = Constant <value_floats = [1.0]> ()  y = Resize <mode = "nearest"> (x, , , n) }""",
    "OneHot": """g (int64[1] n) => (y) {
        i = Constant <value_ints = [3]> ()  v = Constant <value_floats = [0.0, 1.0]> ()
        y = OneHot (i, n, v) }""",
    "HannWindow": """g (int64[1] n) => (y) {
        axis = Constant <value_ints = [0]> ()  size = Squeeze (n, axis)  y = HannWindow (size) }""",
    "CenterCropPad": """g (int64[1] n) => (y) {
        x = Constant <value_floats = [1.0]> ()  y = CenterCropPad (x, n) }""",
}


def loaded(text: str, **options: Any) -> tercet.Model:
    return tercet.load(parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}'), **options)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.parametrize("operator", BOMBS)
@pytest.mark.parametrize("known", ["when it runs", "when it is planned"])
def test_petabytes(operator: str, known: str) -> None:
    text, feeds = BOMBS[operator], [np.array([P])]
    if known == "when it is planned":
        text = text.replace("(int64[1] n)", "()").replace(
            "{", f"{{ n = Constant <value_ints = [{P}]> () ", 1
        )
        feeds = []
    before = peak()
    with (
        loaded(text) as model,
        pytest.raises((tercet.LimitError, tercet.DeviceOutOfMemory), match=r"[\d,]{19,} bytes"),
    ):
        model(*feeds)
    assert peak() - before < 100 << 20


def test_what_is_made_of_petabytes() -> None:
    text = """g () => (y) {
      n = Constant <value_ints = [1125899906842624]> ()  c = ConstantOfShape (n)
      y = ReduceSum (c) }"""
    with (
        loaded(text) as model,
        pytest.raises(tercet.LimitError, match=r"gives 'c' .*[\d,]{21} bytes"),
    ):
        model()


STACKING = """g (int64 m) => (y) {
  yes = Constant <value = bool {1}> ()
  y = Loop (m, yes) <body = b (i, c) => (d, o) {
    d = Identity (c)  n = Constant <value_ints = [1000000]> ()  o = ConstantOfShape (n) }> }"""
DOUBLING = """g (int64 m) => (y) {
  x = Constant <value_floats = [1.0]> ()
  y = Loop (m, , x) <body = b (i, c, v) => (d, w) {
    d = Identity (c)  w = Concat <axis = 0> (v, v) }> }"""


@pytest.mark.parametrize("text", [STACKING, DOUBLING], ids=["stacking", "doubling"])
def test_loops_that_never_have_enough(text: str) -> None:
    with (
        loaded(text, max_bytes=64 << 20) as model,
        pytest.raises(tercet.LimitError, match=r"node 'y' \(Loop\).*over the limit"),
    ):
        model(np.array(1 << 60))


def test_plans_keep_to_the_budget() -> None:
    text = "g (float[n] x) => (y) { y = Relu (x) }"
    with loaded(text, max_bytes=1 << 20) as model:
        assert model(np.ones(1000, np.float32))[0].sum() == 1000
        with pytest.raises(tercet.LimitError, match=r"gives 'y' float32"):
            model(np.ones(1 << 20, np.float32))
    with pytest.raises(tercet.UsageError, match="max_bytes=-1"):
        loaded(text, max_bytes=-1)
