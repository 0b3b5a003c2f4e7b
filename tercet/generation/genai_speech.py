"""Whisper as onnxruntime-genai's builder writes it: start tokens, and how features are made.

``genai_config.json`` states neither: the start tokens are special tokens of ``tokenizer.json``, and
``audio_processor_config.json`` lists the steps of onnxruntime-extensions' feature extractor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ..runtime.base.arguments import shown
from .config_file import ConfigFile, StatedToken
from .start import Start

#: The special token that a text of speech begins with; languages are between it and the tasks.
_START, _SILENT = "<|startoftranscript|>", "<|notimestamps|>"
_TASKS = ("transcribe", "translate")
#: The number of tokens of OpenAI's models of English only, which take neither language nor task.
_ENGLISH = 51_864
#: The steps of Whisper's features; the last one has all settings.
_STEPS = ("AudioDecoder", "STFTNorm", "LogMelSpectrum")
#: Fields of ``preprocessor_config.json`` by attribute of the last step.
_FIELDS = {
    "n_mel": "feature_size",
    "n_fft": "n_fft",
    "hop_length": "hop_length",
    "chunk_size": "chunk_length",
}
#: Samples a second, unless the first step says otherwise.
_RATE = 16_000


def start_of_genai(genai: ConfigFile) -> Start:
    """Return the start tokens of an encoder-decoder.

    Args:
        genai: ``genai_config.json``.

    Raises:
        ModelError: neither it nor ``tokenizer.json`` has one.
    """
    name = "model.decoder_start_token_id"
    words = ConfigFile.perhaps(genai.path.parent / "tokenizer.json")
    special = dict(_special(words))
    stated = genai.token(name)
    if stated is None and _START not in special:
        raise genai.error(
            name, f"is not there, nor {_START} in tokenizer.json; the decoder begins with it"
        )
    first = special.get(_START) if stated is None else stated
    assert first is not None
    begins = [StatedToken(words, "added_tokens", first)]
    if stated is not None:
        begins = [StatedToken(genai, name, first)]
    tasks = {task: special[f"<|{task}|>"] for task in _TASKS if f"<|{task}|>" in special}
    languages: dict[str, int] = {}
    if _START in special and tasks:
        places = range(special[_START] + 1, min(tasks.values()))
        languages = {text.strip("<|>"): at for text, at in special.items() if at in places}
    if not languages or genai.whole("model.vocab_size") == _ENGLISH:
        languages, tasks = {}, {}
    silent = [special[_SILENT]] if _SILENT in special else []
    others = [*languages.values(), *tasks.values(), *silent]
    begins += [StatedToken(words, "added_tokens", token) for token in others]
    return Start((first,), languages, tasks, tuple(silent), words, tuple(begins))


def _special(words: ConfigFile) -> Iterator[tuple[str, int]]:
    """Yield the special tokens of ``tokenizer.json`` and their ids."""
    found = words.get("added_tokens")
    for each in cast("Sequence[Any]", found) if isinstance(found, list) else ():
        entry = cast("Mapping[str, Any]", each) if isinstance(each, Mapping) else {}
        text, token = entry.get("content"), entry.get("id")
        if isinstance(text, str) and type(token) is int and token >= 0:
            yield text, token


def sound_of_genai(path: Path) -> ConfigFile | None:
    """Return how features are made, with the fields of ``preprocessor_config.json``.

    Args:
        path: the folder.

    Returns:
        None if nothing there says so.

    Raises:
        ModelError: the steps are not Whisper's, or lack a setting; the message names them.
    """
    file = path / "audio_processor_config.json"
    plain = ConfigFile.perhaps(path / "preprocessor_config.json")
    steps = ConfigFile.perhaps(file)
    if plain or not steps:
        return plain if plain else None
    where = "feature_extraction.sequence"
    by_type: dict[str, ConfigFile] = {}
    found = steps.get(where)
    for each in cast("Sequence[Any]", found) if isinstance(found, list) else ():
        step = ConfigFile(file, cast("Mapping[str, Any]", each) if isinstance(each, dict) else {})
        by_type[step.text("operation.type") or ""] = step
    if tuple(by_type) != _STEPS:
        raise steps.error(
            where, f"{', '.join(by_type) or shown(found)}: expected {', '.join(_STEPS)}"
        )
    first, _, last = by_type.values()
    data = {field: last.get(f"operation.attrs.{name}") for name, field in _FIELDS.items()}
    rate = first.get("operation.attrs.target_sample_rate")
    return ConfigFile(file, {**data, "sampling_rate": _RATE if rate is None else rate})
