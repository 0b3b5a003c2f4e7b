"""Inputs of one decoder step, with the past of the preceding tokens."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...api import Loadable, Operators, load
from ...arguments import in_data_dir, public
from ...runtime.base import arguments as rules
from ...runtime.errors import FileError, InputError, UsageError
from ...runtime.ir.types import Array
from ...runtime.session.cache_layout import DecoderLayout
from ...runtime.session.opened_caches import passed_decoder
from .archives import read_npy
from .inputs import Inputs


def _tokens(name: str, value: Any) -> tuple[int, ...]:
    expected = "the tokens of one sequence, such as [1, 15, 7]"
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = value.tolist()
    found = rules.items(name, value, expected)
    if not found:
        raise rules.refused(name, value, expected)
    whole = rules.whole(0)
    return tuple(whole(name, each) for each in found)


@public(tokens=_tokens, step=rules.optional(rules.whole(0)))
@in_data_dir
def decode_inputs(
    source: Loadable,
    tokens: Sequence[int],
    step: int | None = None,
    *,
    operators: Operators | None = None,
    external_data_dir: str | os.PathLike[str] | None = None,
) -> dict[str, Array]:
    """Return the inputs of a decoder step that reads one token after those before it.

    They are for `compare`, `compare_layers`, `bisect`, `profile` and `Model.run`. The past is
    computed by numpy on the unoptimised file.

    Args:
        source: a path, bytes, or a `ModelProto`.
        tokens: the sequence from its start.
        step: index of the token to read; the last one if None.
        operators: custom operators; see `tercet.load`.
        external_data_dir: the folder of the model's external data; its own if None.

    Raises:
        ModelError, UnsupportedError: the model is not a decoder; see `Generator`.
        InputError: the sequence has no such token, or the caches have no room.
    """
    if step is None:
        step = len(tokens) - 1
    if step >= len(tokens):
        raise InputError(f"step={step}: there are {len(tokens)} tokens, counted from 0")
    with load(source, stop_at=0, operators=operators) as model:
        layout = DecoderLayout.of(model.imported, file=model.source.file)
        room = layout.room or max(len(tokens), *(each.window or 1 for each in layout.caches), 1)
        ids = np.array([tokens], np.int64)
        with passed_decoder(model, layout, capacity=room) as decoder:
            if step:
                decoder.step(ids[:, :step])
            return decoder.feeds(ids[:, step : step + 1])


def step_inputs(source: Path, text: str, step: int | None) -> Inputs:
    """Return the inputs requested by --tokens and --decode-step.

    Args:
        source: the model.
        text: comma-separated tokens; or a file: .npy, output of ``tercet generate --json``, or
            numbers in a text.
        step: see `decode_inputs`.
    """
    tokens = read_tokens(text)
    arrays = decode_inputs(source, tokens, step)
    at = len(tokens) - 1 if step is None else step
    return Inputs(arrays, dict.fromkeys(arrays, f"token {at} of {len(tokens)}, behind its past"))


def read_tokens(text: str) -> tuple[int, ...]:
    """Return the tokens of --tokens; raises UsageError if they are invalid."""
    if re.fullmatch(r"\d+(,\d+)*", text):
        return tuple(map(int, text.split(",")))
    file = Path(text)
    if not file.is_file():
        raise UsageError(f"--tokens {text}: neither numbers with commas between, nor a file")
    try:
        if file.suffix.lower() == ".npy":
            (found,) = read_npy(file).values()
            return _tokens("--tokens", found.reshape(-1))
        data = file.read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(error.errno, error.strerror, str(file)) from error
    except ValueError as error:
        raise UsageError(f"--tokens {text}: is not text: {error}") from error
    try:
        return _tokens(f"--tokens {text}", _of_text(data))
    except (LookupError, TypeError, ValueError) as error:
        raise UsageError(f"--tokens {text}: has no tokens: {error}") from error


def _of_text(data: str) -> list[Any]:
    """Return the tokens of a text: JSON, or numbers with any separators but letters."""
    if not data.lstrip().startswith(("{", "[")):
        return [int(each) for each in re.split(r"[\s,;]+", data.strip())]
    found: Any = json.loads(data)
    if isinstance(found, dict):  # of tercet generate
        first = found["continuations"][0]
        return [*found["prompts"][first["prompt"]], *first["ids"]]
    return found
