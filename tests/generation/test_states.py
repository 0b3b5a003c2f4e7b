"""Decoders with states that are no caches of positions, and prompts of several lengths."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from tercet import Generator, InputError

RECURRENT = Path(__file__).parents[1] / "producers" / "recurrent"
PROMPT = [7, 3, 9, 4]
BOTH = [PROMPT, PROMPT[:2]]
#: A running sum of embeddings is the state; a mask is read as onnxruntime-genai's builder reads it,
#: only for scores of attention, or to keep padding out of the sum.
TEXT = """<ir_version: 9, opset_import: ["": 17]>
decoder (int64[b,n] input_ids, int64[b,t] attention_mask, float[b,8] past_conv_0,
         float[b,1,p,8] past_key_0)
    => (float[b,n,16] logits, float[b,8] present_conv_0, float[b,1,t,8] present_key_0) {
  first = Constant<value_ints = [1]>()
  last = Constant<value_ints = [-1]>()
  words = Gather(table, input_ids)
  row = Unsqueeze(words, first)
  present_key_0 = Concat<axis = 2>(past_key_0, row)
  %s
  one = Constant<value_int = 1>()
  summed = CumSum(read, one)
  before = Unsqueeze(past_conv_0, first)
  states = Add(summed, before)
  present_conv_0 = Gather<axis = 1>(states, minus)
  logits = MatMul(states, head)
}"""
UNUSED = """counted = ReduceSum(attention_mask, first)
  zero = Constant<value_float = 0.0>()
  many = Cast<to = 1>(counted)
  nothing = Mul(many, zero)
  wide = Unsqueeze(nothing, last)
  read = Add(words, wide)"""
IN_SCORES = """key = Squeeze(present_key_0, first)
  transposed = Transpose<perm = [0, 2, 1]>(key)
  scores = MatMul(words, transposed)
  mask = Cast<to = 1>(attention_mask)
  hidden = Unsqueeze(mask, first)
  far = Constant<value_float = 1e4>()
  shown = Mul(hidden, far)
  masked = Add(scores, shown)
  chances = Softmax(masked)
  found = MatMul(chances, key)
  read = Add(words, found)"""
POSITIONS = """size = Shape<start = 1>(input_ids)
  from = Neg(size)
  end = Constant<value_ints = [1000]>()
  axis = Constant<value_int = 1>()
  counted = CumSum(attention_mask, axis)
  new = Slice(counted, from, end, first)
  positions = Cast<to = 1>(new)
  wide = Unsqueeze(positions, last)
  read = Mul(words, wide)"""
CHOSEN = """size = Shape<start = 1>(input_ids)
  from = Neg(size)
  end = Constant<value_ints = [1000]>()
  new = Slice(attention_mask, from, end, first)
  rows = Gather(table, new)
  read = Add(words, rows)"""
MULTIPLIED = """size = Shape<start = 1>(input_ids)
  from = Neg(size)
  end = Constant<value_ints = [1000]>()
  new = Slice(attention_mask, from, end, first)
  mask = Cast<to = 1>(new)
  wide = Unsqueeze(mask, last)
  read = Mul(words, wide)"""


def decoder(how: str, folder: Path) -> Path:
    model = parse_model(TEXT % how)
    rng = np.random.default_rng(0)
    for name, shape in (("table", (16, 8)), ("head", (8, 16))):
        weights = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    model.graph.initializer.append(numpy_helper.from_array(np.array(-1), "minus"))
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("how", [UNUSED, IN_SCORES, POSITIONS, CHOSEN])
def test_a_state_that_would_hold_padding(how: str, tmp_path: Path) -> None:
    with Generator(decoder(how, tmp_path)) as generator:
        assert len(generator.generate_ids([PROMPT, PROMPT], max_new_tokens=4).ids) == 2
        with pytest.raises(InputError, match=r"'past_conv_0' is a state of all that was read"):
            generator.generate_ids(BOTH, max_new_tokens=4)


def test_a_state_without_padding(tmp_path: Path) -> None:
    with Generator(decoder(MULTIPLIED, tmp_path)) as generator:
        alone = [generator.generate_ids(ids, max_new_tokens=6).ids[0] for ids in BOTH]
        assert generator.generate_ids(BOTH, max_new_tokens=6).ids == alone


@pytest.mark.parametrize("name", ["genai_lfm2_fp32", "genai_qwen3_5_fp32"])
def test_recurrent_decoders_of_onnxruntime_genai(name: str) -> None:
    """Convolutions and linear attention with states, as its builder writes them."""
    folder = RECURRENT / name
    expected = json.loads((folder / "expected.json").read_text())
    with Generator(folder) as generator:
        for prompt, ids, tokens in zip(
            *(expected[k] for k in ("prompts", "ids", "alone")), strict=True
        ):
            found = generator.generate(prompt, max_new_tokens=32)
            assert found.prompts == (tuple(ids),)
            assert found.ids == [tokens]
            twice = generator.generate([prompt, prompt], max_new_tokens=8)
            assert twice.ids == [tokens[:8]] * 2
        first = expected["prompts"][0]
        found = generator.generate(first, max_new_tokens=32, repetition_penalty=1.5)
        assert found.ids == [expected["penalty"]]
        with pytest.raises(InputError, match="is a state of all that was read"):
            generator.generate(expected["prompts"], max_new_tokens=4)
