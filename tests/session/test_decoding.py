"""Decoders step by step: what comes out is what onnxruntime gives, whatever the exporter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import tercet
from tercet import InputError, ModelError, UnsupportedError
from tercet.runtime.ir.types import Array
from tercet.runtime.session.cache_layout import DecoderLayout
from tercet.runtime.session.decoding import CachedDecoder
from tercet.runtime.session.open_decoder import open_decoder
from tercet.runtime.session.opened_caches import passed_decoder
from tercet.runtime.session.token_scores import scores_at

from ..generation.stepwise import Stepwise
from .conftest import OnNumpy

PRODUCERS = Path(__file__).parents[1] / "producers"
#: Without those of dynamically quantized int8: onnxruntime's products of uint8 by int8 saturate on
#: CPUs without VNNI, and give others than the specification.
DECODERS = sorted(
    path
    for pattern in ("*/genai*", "quantized/decoder_*", "*/transformers_gpt2*", "*/*_llama_*")
    for path in PRODUCERS.glob(f"{pattern}.onnx")
    if "dynamic" not in path.stem
)
GENAI = [path for path in DECODERS if path.stem.startswith("genai")]
PROMPT = np.array([[3, 17, 5, 9, 11, 4]], np.int64)
STEPS = 26  # and the prompt: positions that the recorded files have room for
#: quantize_static declares what it quantizes as floats.
pytestmark = pytest.mark.filterwarnings("ignore:.*the file declares types:tercet.ModelWarning")


def test_there_are_some() -> None:
    assert len(DECODERS) >= 15


@pytest.mark.parametrize("path", DECODERS, ids=lambda path: path.stem)
def test_greedy_tokens_are_those_of_onnxruntime(path: Path, on_numpy: OnNumpy) -> None:
    wanted, scores = Stepwise(path).greedy(PROMPT[0].tolist(), STEPS)
    tolerance = 2e-2 if path.stem.endswith("fp16") else 1e-4
    with open_decoder(on_numpy(path)) as decoder:
        logits = decoder.step(PROMPT)
        for token, score in zip(wanted, scores, strict=True):
            np.testing.assert_allclose(logits[0, -1], score, tolerance, tolerance)
            assert int(logits[0, -1].argmax()) == token
            logits = decoder.step(np.array([[token]], np.int64))
        assert decoder.length == PROMPT.shape[1] + STEPS


def passed(model: tercet.Model) -> CachedDecoder[Any]:
    """A decoder that takes the caches which the last step returned."""
    return passed_decoder(model, DecoderLayout.of(model.imported))


@pytest.mark.parametrize("opened", [open_decoder, passed], ids=["chosen", "passed"])
@pytest.mark.parametrize("path", DECODERS, ids=lambda path: path.stem)
def test_what_is_rewound_is_as_if_it_had_not_been_read(
    path: Path,
    opened: Callable[[tercet.Model], CachedDecoder[Any]],
    on_numpy: OnNumpy,
) -> None:
    first, other = PROMPT[:, :4], np.array([[7, 8]], np.int64)
    with opened(on_numpy(path)) as decoder:
        decoder.step(first)
        wanted = decoder.step(other)
        decoder.reset()
        decoder.step(PROMPT)
        kept = decoder.rewind(4)
        assert kept == decoder.length == (4 if decoder.layout.can_rewind else 0)
        found = decoder.step(np.concatenate([first[:, kept:], other], 1))[:, -2:]
        np.testing.assert_allclose(found, wanted, 2e-2 if "fp16" in path.stem else 1e-5, 1e-5)


@pytest.mark.parametrize("path", GENAI, ids=lambda path: path.stem)
def test_a_prompt_may_come_in_parts(path: Path, on_numpy: OnNumpy) -> None:
    tolerance = 2e-3 if path.stem.endswith("fp16") else 1e-5
    with open_decoder(on_numpy(path)) as decoder:
        whole = decoder.step(PROMPT)
        decoder.reset()
        parts = [decoder.step(PROMPT[:, at : at + 2]) for at in (0, 2, 4)]
        np.testing.assert_allclose(np.concatenate(parts, 1), whole, tolerance, tolerance)


@pytest.mark.parametrize("path", GENAI, ids=lambda path: path.stem)
def test_sequences_that_are_padded_are_as_each_alone(path: Path, on_numpy: OnNumpy) -> None:
    rows = [PROMPT[0, :3], PROMPT[0]]
    steps = np.array([[5, 6, 7], [8, 9, 10]], np.int64)
    model = on_numpy(path)
    tolerance = 2e-3 if path.stem.endswith("fp16") else 1e-5
    with open_decoder(model, batch=2) as decoder:
        assert decoder.padding in ("left", "right")
        mask, ids = np.zeros((2, 6), np.int64), np.full((2, 6), 2, np.int64)
        for i, row in enumerate(rows):
            place = slice(6 - len(row), 6) if decoder.padding == "left" else slice(len(row))
            mask[i, place], ids[i, place] = 1, row
        prompt = decoder.step(ids, mask)
        later = [decoder.step(steps[:, i : i + 1]) for i in range(3)]
    for i, row in enumerate(rows):
        with open_decoder(model) as decoder:
            alone = decoder.step(row[None])
            found = prompt[i][mask[i] == 1]
            np.testing.assert_allclose(found, alone[0], tolerance, tolerance)
            for k in range(3):
                alone = decoder.step(steps[i : i + 1, k : k + 1])
                np.testing.assert_allclose(later[k][i], alone[0], tolerance, tolerance)


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


def test_more_than_the_capacity_is_refused_and_changes_nothing(
    on_numpy: OnNumpy,
) -> None:
    with open_decoder(on_numpy(GENAI[-1]), capacity=7) as decoder:
        wanted = decoder.step(PROMPT)
        with pytest.raises(InputError, match="8 positions; the caches have room for 7, of which 6"):
            decoder.step(PROMPT[:, :2])
        assert decoder.length == 6
        decoder.reset()
        np.testing.assert_array_equal(decoder.step(PROMPT), wanted)


@pytest.mark.parametrize(
    ("ids", "mask", "text"),
    [
        (np.zeros(3, np.int64), None, r"ids int64\[3\]: expected int64 \[2, n\]"),
        (np.zeros((1, 3), np.int64), None, r"expected int64 \[2, n\]"),
        (np.zeros((2, 0), np.int64), None, "n >= 1"),
        (np.zeros((2, 2)), None, "expected int64"),
        (np.zeros((2, 2), np.int64), np.ones((2, 3), np.int64), r"mask \[2, 3\]: expected"),
        (np.zeros((2, 2), np.int64), np.eye(2, dtype=np.int64), "every sequence is padded"),
    ],
)
def test_ids_that_do_not_fit(ids: Array, mask: Array | None, text: str, on_numpy: OnNumpy) -> None:
    with (
        open_decoder(on_numpy(GENAI[-1]), batch=2) as decoder,
        pytest.raises(InputError, match=text),
    ):
        decoder.step(ids, mask)


def layout(
    *,
    ids: str = "input_ids",
    past: str = "past_key",
    present: str = "present_key",
    before: str = "b,2,p,4",
    after: str = "b,2,t,4",
    also: str = "",
    logits: str = "float[b,n,9] logits",
    pairs: dict[str, str] | None = None,
) -> DecoderLayout:
    """The layout of a decoder that gives what it takes, of these names and sizes."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        g (int64[b,n] i, float[{before}] p {also}) => ({logits}, float[{after}] q)
        {{
            f = Cast<to=1>(i)
            two = Constant<value_ints=[2]>()
            column = Unsqueeze(f, two)
            nine = Constant<value_ints=[1,1,9]>()
            {logits.split()[-1]} = Expand(column, nine)
            q = {"Neg(p)" if before == after else "Concat<axis=2>(p, p)"}
        }}"""
    )
    names = {"i": ids, "p": past, "q": present}
    graph = model.graph
    for each in (*graph.input, *graph.output):
        each.name = names.get(each.name, each.name)
    for node in graph.node:
        for list_ in (node.input, node.output):
            list_[:] = [names.get(name, name) for name in list_]
    with tercet.load(model, stop_at=0) as loaded:
        return DecoderLayout.of(loaded.imported, file="m.onnx", pairs=pairs)


@pytest.mark.parametrize(
    ("past", "present"),
    [
        ("past_key_values.0.key", "present.0.key"),
        ("past_key_values.0.key", "present_key_values.0.key"),
        ("past_key_0", "present_key_0"),
        ("past_0_key", "present_key_0"),
        ("key_cache_in_3", "key_cache_out_3"),
        ("past_conv.4", "present_conv.4"),
        ("cache_k0", "new_k0"),
        ("past", "present"),
    ],
)
def test_pairs_by_their_names(past: str, present: str) -> None:
    (found,) = layout(past=past, present=present).caches
    assert (found.past, found.present, found.axis, found.grows) == (past, present, 2, True)
    assert found.sizes(3, 5) == (3, 2, 5, 4)


def test_pairs_that_the_caller_names() -> None:
    (found,) = layout(past="a", present="z", pairs={"a": "z"}).caches
    assert (found.past, found.present) == ("a", "z")
    with pytest.raises(ModelError, match="output 'y': the model has no such output"):
        layout(past="a", present="z", pairs={"a": "y"})


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("b,2,p,4", "b,2,p,4", (2, False, None)),  # a buffer of any size
        ("b,2,64,4", "b,2,64,4", (2, False, 64)),
        ("b,4,p,h", "b,4,t,h", (2, True, None)),
    ],
)
def test_axes_of_caches(before: str, after: str, expected: tuple[object, ...]) -> None:
    (found,) = layout(before=before, after=after).caches
    assert (found.axis, found.grows, found.room) == expected


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"past": "other"}, "m.onnx: input 'other': a decoder has no such input"),
        ({"also": ", float[b,3] noise"}, "m.onnx: input 'noise': a decoder has no such input"),
        ({"before": "b,q,p,h", "after": "b,q,p,h"}, "input 'past_key': .* has 3 axes of unknown"),
        ({"also": ", int64[b,1,1,n] attention_mask"}, r"a mask must be \[batch, length\]"),
    ],
)
def test_layouts_that_are_none(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        layout(**given)


def test_the_only_ids_and_the_only_scores_need_no_names() -> None:
    found = layout(ids="words", logits="float[b,n,9] y")
    assert (found.inputs["ids"].name, found.logits.name) == ("words", "y")


def test_decoders_of_encoders_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"input 'encoder_hidden_states'.*encoder-decoder"):
        layout(also=", float[b,n,8] encoder_hidden_states")


def test_a_model_without_scores() -> None:
    with (
        tercet.load(PRODUCERS / "transformers" / "transformers_vit_O2.onnx") as model,
        pytest.raises(ModelError, match="has no input of token ids"),
    ):
        open_decoder(model)


def test_a_buffer_of_any_size_needs_a_capacity() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g (int64[b,n] ids, float[b,p,4] past) => (float[b,n,9] logits, float[b,p,4] present) {
            f = Cast<to=1>(ids)
            two = Constant<value_ints=[2]>()
            column = Unsqueeze(f, two)
            nine = Constant<value_ints=[1,1,9]>()
            logits = Expand(column, nine)
            present = Neg(past)
        }"""
    with tercet.load(onnx.parser.parse_model(text)) as model:
        with pytest.raises(InputError, match=r"'past' is a buffer of unspecified size.*capacity"):
            open_decoder(model)
        with open_decoder(model, capacity=8) as decoder:
            assert decoder.step(PROMPT).shape == (1, 6, 9)


def test_a_batch_of_another_size() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g (int64[1,n] ids) => (float[1,n,9] logits) {
            f = Cast<to=1>(ids)
            two = Constant<value_ints=[2]>()
            column = Unsqueeze(f, two)
            nine = Constant<value_ints=[1,1,9]>()
            logits = Expand(column, nine)
        }"""
    with (
        tercet.load(onnx.parser.parse_model(text)) as model,
        pytest.raises(InputError, match="batch=2: the model takes 1 at a time"),
    ):
        open_decoder(model, batch=2)


def test_scores_of_positions() -> None:
    """Of several sequences, and of the last position alone."""
    scores = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32)
    found = scores_at(scores, np.array([2, 1]), 3)
    np.testing.assert_array_equal(found, [scores[0, 2], scores[1, 1]])
    found = scores_at(scores[:, 2:], np.array([2, 2]), 3)
    np.testing.assert_array_equal(found, scores[:, 2])
    with pytest.raises(InputError, match="scores of the last position only"):
        scores_at(scores[:, 2:], np.array([2, 1]), 3)
