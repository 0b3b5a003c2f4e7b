"""Loops in plans of the host: iterations that replay bound steps."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx.parser import parse_model

import tercet

from .flows import FLOWS, HEADER, Flow, random_flow, vector

LOOPS = tuple(flow for flow in FLOWS if flow.name != "branches")

#: Only what an iteration finds out ends it.
ENDLESS = """
g (float[4] x) => (float[4] y) {
  yes = Constant <value = bool {1}> ()
  limit = Constant <value_float = 1e30> ()
  axes = Constant <value = int64[1] {0}> ()
  y = Loop (, yes, x) <
    body = b (int64 i, bool going, float[4] v) => (bool more, float[4] w) {
      w = Tanh (v)
      size = ReduceMax <keepdims = 0> (w, axes)
      more = Less (size, limit)
    }
  >
}
"""

#: A loop in a loop; both stack what they have seen.
INNER = """
g (float[3] x) => (float[6, 3] all) {
  m = Constant <value = int64 {6}> ()
  two = Constant <value = int64 {2}> ()
  last, all = Loop (m, , x) <
    body = b (int64 i, bool going, float[3] v) => (bool going, float[3] w, float[3] seen) {
      f = CastLike (i, v)
      moved = Add (v, f)
      w, both = Loop (two, , moved) <
        body = d (int64 j, bool on, float[3] u) => (bool on, float[3] s, float[3] s) { s = Sin (u) }
      >
      axes = Constant <value = int64[1] {0}> ()
      seen = ReduceSum <keepdims = 0> (both, axes)
    }
  >
}
"""

#: The last steps of the body to read a captured value and the number of the iteration could write
#: their results over them, but both are read later: outside, and to stack the results.
READ_LAST = """
g (float[4] x) => (float[3, 4] all, int64[3] numbers, float[4] y) {
  m = Constant <value = int64 {3}> ()
  moved = Sin (x)
  last, all, numbers = Loop (m, , x) <
    body = b (int64 i, bool going, float[4] v)
        => (bool going, float[4] w, float[4] seen, int64 opposite) {
      w = Cos (v)
      seen = Relu (moved)
      opposite = Neg (i)
    }
  >
  y = Add (moved, last)
}
"""

#: Running sums, backward, of scalars.
SUMS = """
g (uint8 s, uint8[n] x) => (last, sums) {
  last, sums = Scan <num_scan_inputs = 1, scan_input_directions = [1],
      scan_output_directions = [1], body = b (v, element) => (w, sum) {
    w = Add (v, element)
    sum = Identity (w)
  }> (s, x)
}
"""

#: As often as an input says, or a constant.
COUNTED = """
g (int64[n] m, float[4] x) => (float[4] y) {
  pair = Constant <value = int64[2] {1, 2}> ()
  y = Loop (COUNT, , x) <
    body = b (int64 i, bool going, float[4] v) => (bool going, float[4] w) { w = Sin (v) }
  >
}
"""


def _loops(model: tercet.Model) -> list[str]:
    return [row.kernel for row in model.placement() if row.kernel.startswith("loop, ")]


def _same(flow: Flow) -> None:
    """Compare a loop that is planned with one that the host runs body by body."""
    planned = tercet.load(flow.model, backend="numpy")
    apart = tercet.load(flow.model, backend="numpy", control="host")
    for feeds in (*flow.feeds, *flow.feeds):
        expected = apart.run(feeds)
        for name, found in planned.run(feeds).items():
            np.testing.assert_array_equal(found, expected[name])
    assert not _loops(apart)


@pytest.mark.parametrize("flow", LOOPS, ids=str)
def test_planned_loops_give_what_the_host_does(flow: Flow) -> None:
    _same(flow)


@pytest.mark.parametrize("seed", range(12))
def test_loops_at_random(seed: int) -> None:
    model, feeds = random_flow(seed)
    planned = tercet.load(model, backend="numpy")
    apart = tercet.load(model, backend="numpy", control="host")
    for each in feeds:
        expected = apart.run(each)
        for name, found in planned.run(each).items():
            np.testing.assert_array_equal(found, expected[name])


def test_a_loop_in_a_loop_is_one_step() -> None:
    source = parse_model(HEADER + INNER)
    feeds = {"x": vector(3)}
    session = onnxruntime.InferenceSession(source.SerializeToString())
    expected: Any = session.run(None, feeds)[0]
    with tercet.load(source, backend="numpy") as model:
        np.testing.assert_allclose(model.run(feeds)["all"], expected, rtol=1e-6)
        assert len(_loops(model)) == 2
        assert [row.backend for row in model.placement()].count("host") == 0


def test_a_deadline_ends_a_planned_loop() -> None:
    with tercet.load(parse_model(HEADER + ENDLESS), backend="numpy") as model:
        with pytest.raises(tercet.TimeLimitError):
            model.run({"x": vector(4)}, timeout=0.2)
        assert len(_loops(model)) == 1


def test_steps_of_a_body_do_not_overwrite_what_it_is_given() -> None:
    source = parse_model(HEADER + READ_LAST)
    feeds = {"x": vector(4)}
    session = onnxruntime.InferenceSession(source.SerializeToString())
    expected: Any = session.run(None, feeds)
    with tercet.load(source, backend="numpy") as model:
        for found, wanted in zip(model.run(feeds).values(), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert len(_loops(model)) == 1


def test_memory_does_not_grow_with_iterations() -> None:
    x = np.arange(20000).astype(np.uint8)
    with tercet.load(parse_model(HEADER + SUMS), backend="numpy") as model:
        model.run({"s": x[0], "x": x[:9]})
        tracemalloc.start()
        try:
            found = model.run({"s": x[0], "x": x})
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        np.testing.assert_array_equal(found["sums"][::-1], np.cumsum(x[::-1], dtype=np.uint8))
        assert len(_loops(model)) == 1
        assert peak < 1 << 20


@pytest.mark.parametrize(("count", "size"), [("m", 2), ("m", 0), ("pair", 1)])
def test_a_trip_count_of_several_elements_is_refused(count: str, size: int) -> None:
    source = parse_model(HEADER + COUNTED.replace("COUNT", count))
    with pytest.raises(tercet.ModelError, match=r"'y' \(Loop\).*expected one element"):
        tercet.load(source, backend="numpy").run({"m": np.ones(size, np.int64), "x": vector(4)})
