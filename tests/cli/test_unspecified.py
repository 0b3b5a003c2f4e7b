"""What an operator leaves unspecified: whatever it is is right."""

from collections.abc import Iterator

import numpy as np
import onnx
import pytest

import tercet
from tercet.runtime.ir.types import Array
from tercet.tools.verdict.error_bounds import Judge
from tercet.tools.workshop.onnxruntime_process import run_onnxruntime

#: Of six rows of a cache the first four have positions after this step.
MODEL = onnx.parser.parse_model("""
  <ir_version: 8, opset_import: ["" : 21, "com.microsoft" : 1]>
  windows (float[1,1,48] q, float[1,1,6,16] k, float[1,1,6,16] v, int32[1] last, int32 total)
      => (float[1,1,16] y, float[1,1,6,16] keys, float[1,1,6,16] values, float[1,1,6,16] twice)
  {
    y, keys, values = com.microsoft.GroupQueryAttention
        <num_heads = 1, kv_num_heads = 1, local_window_size = 4, sliding_window_cache = 1>
        (q, "", "", k, v, last, total)
    twice = Add (keys, keys)
  }""")


@pytest.fixture(scope="module")
def known() -> Iterator[tuple[Judge, dict[str, Array]]]:
    """A judge, and what onnxruntime computes."""
    rng = np.random.default_rng(0)
    shapes = {"q": (1, 1, 48), "k": (1, 1, 6, 16), "v": (1, 1, 6, 16)}
    feeds: dict[str, Array] = {n: rng.standard_normal(s, np.float32) for n, s in shapes.items()}
    feeds |= {"last": np.array([3], np.int32), "total": np.array(4, np.int32)}
    with tercet.load(MODEL, stop_at=0) as plain:
        yield Judge(plain.imported, feeds), dict(run_onnxruntime(MODEL, feeds))


@pytest.mark.parametrize("row", range(6))
@pytest.mark.parametrize("wrong", [1.0, np.nan])
def test_rows_with_a_position_are_judged(
    known: tuple[Judge, dict[str, Array]], row: int, wrong: float
) -> None:
    judge, reference = known
    found = reference["keys"].copy()
    found[..., row, :] += wrong
    expected = "MISMATCH" if row < 4 else "ok"
    assert judge.agreement("keys", reference["keys"], found).verdict == expected


def test_what_is_computed_from_the_others_proves_nothing(
    known: tuple[Judge, dict[str, Array]],
) -> None:
    judge, reference = known
    given = reference["twice"].copy()
    given[..., 4:, :] = 0  # of what is there, which may be NaN, nothing is known
    found = given.copy()
    found[..., 4:, :] += 1
    result = judge.agreement("twice", given, found)
    assert result.verdict == "inconclusive"
    assert "unspecified" in result.reason
    found[..., 0, 0] += 1
    assert judge.agreement("twice", given, found).verdict == "MISMATCH"


#: Of six rows of a buffer, two sequences have three and five after this step.
BUFFERS = """
  <ir_version: 8, opset_import: ["" : 21, "com.microsoft" : 1]>
  buffers ({q}[2,1,48] q, {c}[2,1,6,16] k, {c}[2,1,6,16] v, int32[2] last, int32 total {more})
      => ({q}[2,1,16] y, {c}[2,1,6,16] keys, {c}[2,1,6,16] values)
  {{
    y, keys, values = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1 {bits}>
        (q, "", "", k, v, last, total {inputs})
  }}"""
QUANTIZED = {
    "bits": ', kv_cache_bit_width = 8, k_quant_type = "PER_TENSOR", v_quant_type = "PER_TENSOR"',
    "inputs": ', "", "", "", "", "", scale, scale',
    "more": ", float[1] scale",
}


@pytest.mark.parametrize("cache", ["float", "int8"])
@pytest.mark.parametrize("row", range(6))
def test_rows_of_a_buffer_that_a_sequence_has_are_judged(cache: str, row: int) -> None:
    rng = np.random.default_rng(0)
    given = QUANTIZED if cache == "int8" else dict.fromkeys(QUANTIZED, "")
    model = onnx.parser.parse_model(BUFFERS.format(q="float", c=cache, **given))
    shapes = {"q": (2, 1, 48), "k": (2, 1, 6, 16), "v": (2, 1, 6, 16)}
    feeds: dict[str, Array] = {n: rng.standard_normal(s, np.float32) for n, s in shapes.items()}
    feeds |= {"last": np.array([2, 4], np.int32), "total": np.array(5, np.int32)}
    if cache == "int8":
        feeds |= {name: (feeds[name] * 50).astype(np.int8) for name in ("k", "v")}
        feeds["scale"] = np.array([0.05], np.float32)
    reference = dict(run_onnxruntime(model, feeds))
    with tercet.load(model, stop_at=0) as plain:
        judge = Judge(plain.imported, feeds)
    for sequence, rows in enumerate((3, 5)):
        found = reference["keys"].copy()
        found[sequence, :, row] += 1
        expected = "MISMATCH" if row < rows else "ok"
        assert judge.agreement("keys", reference["keys"], found).verdict == expected


#: Of five rows of a prompt, two sequences have three and five.
PROMPT = """
  <ir_version: 8, opset_import: ["" : 21, "com.microsoft" : 1]>
  prompts (float[2,5,48] q, int32[2] last, int32 total)
      => (float[2,5,16] y, float[2,1,5,16] keys, float[2,1,5,16] values, float[2,1,5,5] qk,
          float[2,5,16] next)
  {
    y, keys, values, qk = com.microsoft.GroupQueryAttention
        <num_heads = 1, kv_num_heads = 1, qk_output = 2> (q, "", "", "", "", last, total)
    next = Softmax (y)
  }"""


@pytest.fixture(scope="module")
def padded() -> tuple[Judge, dict[str, Array]]:
    """A judge, and what onnxruntime computes."""
    feeds: dict[str, Array] = {
        "q": np.random.default_rng(0).standard_normal((2, 5, 48), np.float32)
    }
    feeds |= {"last": np.array([2, 4], np.int32), "total": np.array(5, np.int32)}
    model = onnx.parser.parse_model(PROMPT)
    with tercet.load(model, stop_at=0) as plain:
        return Judge(plain.imported, feeds), dict(run_onnxruntime(model, feeds))


@pytest.mark.parametrize("name", ["y", "qk", "next"])
@pytest.mark.parametrize("row", range(5))
def test_rows_of_a_prompt_that_are_no_padding_are_judged(
    padded: tuple[Judge, dict[str, Array]], name: str, row: int
) -> None:
    judge, reference = padded
    given = np.nan_to_num(reference[name])  # of padding, nothing is known
    for sequence, rows in enumerate((3, 5)):
        found = given.copy()
        found[sequence, ..., row, :1] += 1
        expected = "inconclusive" if name == "next" else "ok"
        expected = "MISMATCH" if row < rows else expected
        assert judge.agreement(name, given, found).verdict == expected


#: What a processor makes of numbers that an integer cannot be is its own; it may be masked.
INTEGERS = """<ir_version: 10, opset_import: ["" : 21]>
  g (float[6] x, float[6] z) => (int32[6] y, float[6] back, float[6] next)
  { r = Add (x, z)  y = Cast <to = 6> (r)  back = Cast <to = 1> (y)  next = Mul (back, z) }"""


@pytest.mark.parametrize("at", range(6))
def test_integers_of_what_is_none_prove_nothing(at: int) -> None:
    model = onnx.parser.parse_model(INTEGERS)
    x = np.array([1.5, -np.inf, np.nan, 3e9, -3e9, -7.5], np.float32)
    feeds: dict[str, Array] = {"x": x, "z": np.zeros(6, np.float32)}
    with tercet.load(model, stop_at=0) as plain:
        judge, reference = Judge(plain.imported, feeds), plain.run(feeds)
    is_open = 0 < at < 5
    for name, expected in (("y", "ok"), ("back", "inconclusive")):
        given = np.asarray(reference[name])
        found = given.copy()
        found[at] = 77
        result = judge.agreement(name, given, found)
        assert result.verdict == (expected if is_open else "MISMATCH")
    given = np.asarray(reference["next"])
    found = given.copy()
    found[at] = 77
    assert judge.agreement("next", given, found).verdict == "MISMATCH"
