"""What folders say of how tokens are chosen: done as transformers does it, or said or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from tercet import Generator, ModelError, ModelWarning, UsageError
from tercet.generation.folder import read_folder

from .folders import DECODERS, Opened, check_refused, copied, rewrite
from .record import FIELDS, FILE, PROMPTS, TABLE, TOKENS

LLAMA, GENAI = "optimum_llama", "genai_llama_int4"
CONFIG = {LLAMA: "generation_config.json", GENAI: "genai_config.json"}
#: What transformers generates, by prompt and configuration.
RECORDED: dict[str, list[int]] = json.loads(FILE.read_text())["tokens"]


# ── transformers' tokens ─────────────────────────────────────────────────────────────────────────


def bigrams(folder: Path, **generation: Any) -> Path:
    """Write a folder of a model whose logits are a row of a table."""
    folder.mkdir(exist_ok=True)
    floats = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "n", TOKENS])
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "n"])
    node = helper.make_node("Gather", ["table", "input_ids"], ["logits"])
    weights = [onnx.numpy_helper.from_array(TABLE, "table")]
    graph = helper.make_graph([node], "bigrams", [ids], [floats], weights)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "model.onnx")
    (folder / "config.json").write_text(json.dumps({"vocab_size": TOKENS}))
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@pytest.mark.parametrize("fields", FIELDS, ids=json.dumps)
@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_tokens_are_those_of_transformers(
    fields: dict[str, Any],
    prompt: list[int],
    tmp_path: Path,
) -> None:
    wanted = RECORDED[json.dumps([prompt, fields])]
    with Generator(bigrams(tmp_path / "m", **fields)) as generator:
        assert generator.generate_ids(prompt).ids == [wanted]


# ── what is not done ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "fields", "text"),
    [
        (LLAMA, {"num_beams": 4, "typical_p": 1.0, "eta_cutoff": 3e-4},
         "settings that tercet does not support: num_beams=4, eta_cutoff=0.0003"),
        (LLAMA, {"num_return_sequences": 2}, "not support: num_return_sequences=2"),
        (LLAMA, {"forced_bos_token_id": 3}, "not support: forced_bos_token_id=3"),
        (LLAMA, {"max_time": 0.5}, "not support: max_time=0.5"),
        (LLAMA, {"min_length": 9, "max_length": 5}, "min_length: 9, but max_length is 5"),
        (LLAMA, {"min_new_tokens": 9, "max_new_tokens": 5},
         "min_new_tokens: 9, but max_new_tokens is 5"),
        (LLAMA, {"eos_token_id": [288, 300]}, "eos_token_id: 288, 300, but"),
        (GENAI, {"search__num_beams": 2}, "not support: search.num_beams=2"),
        (GENAI, {"search__temprature": 2},
         "search.temprature: no such setting; did you mean 'temperature'?"),
        (GENAI, {"search__min_length": 65}, "search.min_length: 65, but max_length is 64"),
        (GENAI, {"model__eos_token_id": 288}, "model.eos_token_id: 288, but"),
        (GENAI, {"model__decoder__num_hidden_layers": 99},
         "model.decoder.num_hidden_layers: 99, but"),
        (GENAI, {"model__decoder__sliding_window": {"window_size": 8}},
         "model.decoder.sliding_window.slide_key_value_cache: tercet does not drop"),
    ],
)  # fmt: skip
def test_what_is_not_done_is_said(
    name: str, fields: dict[str, Any], text: str, tmp_path: Path
) -> None:
    folder = copied(name, tmp_path)
    rewrite(folder / CONFIG[name], **fields)
    with pytest.warns(ModelWarning) as caught:
        Generator(folder).close()
    (said,) = [str(each.message) for each in caught]
    assert text in said
    assert str(folder / CONFIG[name]) in said


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (LLAMA, {"length_penalty": 2.0, "early_stopping": True, "num_beam_groups": 2}),
        (LLAMA, {"use_cache": False, "cache_implementation": "static", "output_scores": True}),
        (LLAMA, {"num_beams": 1, "sequence_bias": [], "bad_words_ids": [], "stop_strings": []}),
        (GENAI, {"search__diversity_penalty": 0.5, "search__length_penalty": 2}),
        (GENAI, {"search__past_present_share_buffer": False, "search__chunk_size": 4}),
        (GENAI, {"search__top_p": 0, "search__random_seed": -1, "search__max_length": 0}),
        (GENAI, {"model__decoder__session_options": {"provider_options": [{"cuda": {}}]}}),
        (GENAI, {"model__decoder__num_hidden_layers": 99, "model__decoder__layer_types": ["x"]}),
        (GENAI, {"model__decoder__inputs__position_ids": "position_ids"}),
        (GENAI, {"model__decoder__sliding_window": {"window_size": 8, "layers": [0]}}),
        (
            GENAI,
            {
                "model__decoder__sliding_window": {
                    "window_size": 8,
                    "slide_key_value_cache": False,
                }
            },
        ),
    ],
    ids=str,
)
def test_hints_for_other_runtimes_are_none(
    name: str,
    fields: dict[str, Any],
    opened: Opened,
    tmp_path: Path,
    recwarn: pytest.WarningsRecorder,
) -> None:
    expected = opened(DECODERS / name).generate_ids([0, 5, 6, 7], max_new_tokens=4).ids
    folder = copied(name, tmp_path)
    rewrite(folder / CONFIG[name], **fields)
    with Generator(folder) as generator:
        assert generator.generate_ids([0, 5, 6, 7], max_new_tokens=4).ids == expected
    assert not recwarn.list


@pytest.mark.parametrize(
    ("name", "fields", "text"),
    [
        (LLAMA, {"top_k": -5}, "top_k: -5: expected a whole number >= 0"),
        (LLAMA, {"top_k": 2.5}, "top_k: 2.5: expected a whole number >= 0"),
        (LLAMA, {"top_p": 1.5}, "top_p: 1.5: expected a number from 0 to 1"),
        (LLAMA, {"top_p": 0}, "top_p: 0: expected a number above 0"),
        (LLAMA, {"min_p": 3}, "min_p: 3: expected a number from 0 to 1"),
        (LLAMA, {"temperature": -1}, "temperature: -1: expected 0, or a number from 1e-30"),
        (LLAMA, {"temperature": 1e-320}, "expected 0, or a number from 1e-30 to 1e+30"),
        (LLAMA, {"repetition_penalty": 0}, "repetition_penalty: 0: expected a number from 1e-30"),
        (LLAMA, {"repetition_penalty": 1e300}, "expected a number from 1e-30 to 1e+30"),
        (LLAMA, {"max_new_tokens": 0}, "max_new_tokens: 0: expected a whole number >= 1"),
        (GENAI, {"search__min_p": 3}, "search.min_p: 3: expected a number from 0 to 1"),
        (GENAI, {"search__random_seed": -2}, "search.random_seed: -2: expected a whole number"),
        (GENAI, {"search__max_length": 65},
         "search.max_length: 65, but model.context_length is 64"),
        (GENAI, {"model__vocab_size": 287}, "model.vocab_size: 287, but"),
        (GENAI, {"model__decoder__inputs__input_ids": "tokens"},
         "model.decoder.inputs.input_ids: 'tokens', but in"),
        (GENAI, {"model__decoder__inputs__attention_mask": "mask"},
         "model.decoder.inputs.attention_mask: 'mask', but in"),
        (GENAI, {"model__decoder__outputs__logits": "scores"},
         "model.decoder.outputs.logits: 'scores', but in"),
        (GENAI, {"model__decoder__inputs__past_key_names": "past.%d.k"},
         "model.decoder.inputs.past_key_names: 'past.%d.k', but"),
        (GENAI, {"model__decoder__outputs__present_value_names": "present"},
         "model.decoder.outputs.present_value_names: 'present', but"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(
    name: str, fields: dict[str, Any], text: str, tmp_path: Path
) -> None:
    """Whether or not sampling is on."""
    folder = copied(name, tmp_path)
    check_refused(folder, lambda f: rewrite(f / CONFIG[name], **fields), ModelError, text)


def test_fewer_tokens_than_a_configuration_counts(tmp_path: Path) -> None:
    """A model may have more: those fill up its last rows."""
    folder = bigrams(tmp_path / "m")
    (folder / "config.json").write_text(json.dumps({"vocab_size": TOKENS - 1}))
    Generator(folder).close()
    (folder / "config.json").write_text(json.dumps({"vocab_size": TOKENS + 1}))
    with pytest.raises(ModelError, match=r"config\.json: vocab_size: 25, but .* has 24 tokens"):
        Generator(folder)


def test_the_seed_of_a_folder(tmp_path: Path) -> None:
    folder = copied(GENAI, tmp_path)
    how = {"max_new_tokens": 8, "temperature": 3.0}
    with Generator(folder) as generator:
        seeds = [generator.generate_ids([0, 5], seed=seed, **how).ids for seed in (0, 7)]
    assert seeds[0] != seeds[1]
    rewrite(folder / CONFIG[GENAI], search__random_seed=7)
    with Generator(folder) as generator:
        assert generator.generate_ids([0, 5], **how).ids == seeds[1]
        assert generator.generate_ids([0, 5], seed=0, **how).ids == seeds[0]


def test_settings_that_leave_no_token(tmp_path: Path) -> None:
    folder = bigrams(tmp_path / "m", suppress_tokens=list(range(TOKENS)))
    with (
        Generator(folder) as generator,
        pytest.raises(
            ModelError, match=r"generation_config\.json: .* suppress every token after 2"
        ),
    ):
        generator.generate_ids([1, 2])


@pytest.mark.parametrize("temperature", [1e-31, 1e31, -1.0, float("nan"), float("inf")])
def test_temperatures_out_of_range(temperature: float, tmp_path: Path) -> None:
    with (
        Generator(bigrams(tmp_path / "m")) as generator,
        pytest.raises(UsageError, match=r"temperature=.*: expected"),
    ):
        generator.generate_ids([1, 2], temperature=temperature)


def test_every_recorded_folder_is_right(recwarn: pytest.WarningsRecorder) -> None:
    for folder in sorted(DECODERS.iterdir()):
        if folder.is_dir() and folder.name != "transformersjs_llama":
            assert not read_folder(folder).warnings
            Generator(folder).close()
    assert not recwarn.list
