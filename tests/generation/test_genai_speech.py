"""Whisper as onnxruntime-genai's builder writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tercet import Generator, ModelError, UsageError
from tercet.generation.folder import read_folder

from .encoders import copied, features, told
from .folders import check_refused, rewrite

GENAI = "genai_whisper"
STEPS = "feature_extraction.sequence"


def spoilt(tmp_path: Path, file: str, **fields: Any) -> Path:
    """Return a copy of the folder with other fields in a file; None removes one."""
    folder = copied(GENAI, tmp_path)
    rewrite(folder / file, **fields)
    return folder


def words(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "tokenizer.json").read_text())["added_tokens"]


@pytest.mark.parametrize("language", [None, "de"])
@pytest.mark.parametrize("task", ["transcribe", "translate"])
def test_tokens_are_those_of_transformers(language: str | None, task: str, tmp_path: Path) -> None:
    """Features, too: of a sound, and with the settings of audio_processor_config.json."""
    folder = copied(GENAI, tmp_path)
    wanted = told(GENAI)["alone"][f"{language or ''} {task}"]
    with Generator(folder) as generator:
        sound = generator.audio_features(folder / "sound.wav")
        np.testing.assert_allclose(sound, features(GENAI), atol=1e-5)
        found = generator.generate_features(
            sound, language=language, task=task, max_new_tokens=len(wanted)
        )
        assert found.ids == [wanted]


def test_the_settings_of_transformers_count_if_they_are_there(tmp_path: Path) -> None:
    folder = copied(GENAI, tmp_path)
    (folder / "preprocessor_config.json").write_text('{"feature_size": 5}')
    found = read_folder(folder)
    assert found.sound is not None
    assert found.sound.path.name == "preprocessor_config.json"


def test_models_of_english_take_neither_language_nor_task(tmp_path: Path) -> None:
    """OpenAI's have 51864 tokens, and special tokens of all languages in their tokenizers."""
    folder = spoilt(tmp_path, "genai_config.json", model__vocab_size=51_864)
    start = read_folder(folder).start
    assert start is not None
    assert start.tokens(None, None, lambda among: [among[0]]) == [[288, 294]]
    with pytest.raises(UsageError, match="language='de': the model takes none"):
        start.tokens("de", None, lambda among: [among[0]])


def test_a_start_token_that_the_folder_states(tmp_path: Path) -> None:
    folder = spoilt(tmp_path, "genai_config.json", model__decoder_start_token_id=7)
    others = [each for each in words(folder) if "start" not in each["content"]]
    rewrite(folder / "tokenizer.json", added_tokens=others)
    start = read_folder(folder).start
    assert start is not None
    assert (start.ids, start.languages, start.tasks) == ((7,), {}, {})


def test_a_start_token_that_the_model_lacks(tmp_path: Path) -> None:
    folder = spoilt(tmp_path, "genai_config.json", model__decoder_start_token_id=295)
    with pytest.raises(ModelError, match=r"decoder_start_token_id: 295, but .* has 295 tokens"):
        Generator(folder)


SPOILED = [
    ("tokenizer.json", {"added_tokens": []}, "model.decoder_start_token_id: is not there, nor"),
    ("tokenizer.json", {"added_tokens": {}}, "model.decoder_start_token_id: is not there, nor"),
    (
        "genai_config.json",
        {"model__encoder__filename": "gone.onnx"},
        "model.encoder.filename: there is no file 'gone.onnx'",
    ),
    (
        "genai_config.json",
        {"model__encoder__filename": None},
        "model.encoder.filename: is not there; it names the model",
    ),
    (
        "audio_processor_config.json",
        {"feature_extraction__sequence": []},
        f"{STEPS}: []: expected AudioDecoder, STFTNorm, LogMelSpectrum",
    ),
    (
        "audio_processor_config.json",
        {"feature_extraction__sequence": [{"operation": {"type": "AudioDecoder"}}, 3]},
        f"{STEPS}: AudioDecoder, : expected AudioDecoder, STFTNorm, LogMelSpectrum",
    ),
    (
        "audio_processor_config.json",
        {
            "feature_extraction__sequence": [
                {"operation": {"type": kind, "attrs": 5}}
                for kind in ("AudioDecoder", "STFTNorm", "LogMelSpectrum")
            ]
        },
        "operation.attrs: 5: expected an object",
    ),
]


@pytest.mark.parametrize(("file", "fields", "text"), SPOILED)
def test_folders_that_do_not_fit(
    file: str, fields: dict[str, Any], text: str, tmp_path: Path
) -> None:
    check_refused(
        copied(GENAI, tmp_path),
        lambda folder: rewrite(folder / file, **fields),
        ModelError,
        text,
    )
