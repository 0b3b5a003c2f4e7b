"""Turns texts, conversations and token ids into prompts that fit the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ..runtime.base import arguments as rules
from ..runtime.errors import InputError
from ..runtime.ir.types import Array
from ..runtime.session.cache_layout import DecoderLayout
from ..runtime.session.io_types import TensorInfo
from .folder import ModelFolder
from .text_stream import TextStream
from .tokens import FolderTokenizer

#: One text, several texts, or the messages of a conversation.
Prompt = str | Sequence[str] | Sequence[Mapping[str, Any]]
#: Token ids of one prompt or of several.
Ids = Sequence[int] | Sequence[Sequence[int]]

_TEXTS = "a text, a list of texts, or messages"


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts that are generated as one batch.

    Attributes:
        ids: the tokens of each prompt.
        tokenizer: decodes the results; None if ids are requested.
        is_answered: whether the result is a separate text rather than a continuation.
        features: encoder input [batch, ...] instead of tokens; `ids` is then empty.
    """

    ids: list[list[int]]
    tokenizer: FolderTokenizer | None = None
    is_answered: bool = False
    features: Array | None = None

    @property
    def count(self) -> int:
        """Number of prompts."""
        return len(self.ids)

    def stream(self, number: int, stops: Sequence[str]) -> TextStream | None:
        """Return the decoder for the text that follows a prompt."""
        if self.tokenizer is None:
            return None
        before = () if self.is_answered else self.ids[number]
        return TextStream(self.tokenizer.decode, stops, before)

    def check(self, folder: ModelFolder, layout: DecoderLayout, capacity: int | None) -> None:
        """Raise InputError if a prompt is empty, too long, or has unknown tokens."""
        if self.features is not None:
            return
        vocabulary = (layout.logits.shape or (None,))[-1] if folder.encoder is None else None
        room, says = capacity, folder.context
        if folder.encoder is not None:
            says = folder.source
            room = None if says is None else says.size
        for number, tokens in enumerate(self.ids):
            which = f"prompt {number}" if len(self.ids) > 1 else "the prompt"
            if not tokens:
                raise InputError(
                    f"{which} has no tokens; begin with one, such as that of the start"
                )
            if isinstance(vocabulary, int) and max(tokens) >= vocabulary:
                raise InputError(
                    f"{which} has the token {max(tokens)}; the model knows {vocabulary} "
                    f"({folder.tokenizer or folder.model})"
                )
            if room is not None and len(tokens) > room:
                where = "" if says is None else f" ({says.config.path}: {says.field})"
                whose = "the caches have" if folder.encoder is None else "the encoder has"
                raise InputError(
                    f"{which} has {len(tokens)} tokens; {whose} room for {room}{where}"
                )


def read_texts(prompt: Prompt, tokenizer: FolderTokenizer) -> Prompts:
    """Return the tokens of texts or of a conversation; raises UsageError for anything else."""
    given = cast("Sequence[Any]", prompt)
    if isinstance(given, str):
        return Prompts([tokenizer.encode(given)], tokenizer)
    if not isinstance(given, list | tuple) or not given:
        raise rules.refused("prompt", given, _TEXTS)
    if all(isinstance(each, Mapping) for each in given):
        text = tokenizer.chat(cast("Sequence[Mapping[str, Any]]", given))
        return Prompts([tokenizer.encode(text, special=False)], tokenizer, is_answered=True)
    if not all(isinstance(each, str) for each in given):
        raise rules.refused("prompt", given, _TEXTS)
    return Prompts([tokenizer.encode(each) for each in given], tokenizer)


def read_ids(ids: Ids) -> Prompts:
    """Return token ids as lists; raises UsageError if they are not integers."""
    given = cast("Sequence[Any]", ids.tolist() if isinstance(ids, np.ndarray) else ids)
    if not isinstance(given, list | tuple) or not given:
        raise rules.refused("ids", given, "a list of tokens, or a list of such lists")
    prompts = given if isinstance(given[0], list | tuple) else [given]
    token = rules.whole(0)
    return Prompts([[token("ids", t) for t in rules.items("ids", p, "tokens")] for p in prompts])


def read_features(
    features: Any, info: TensorInfo | None, tokenizer: FolderTokenizer | None
) -> Prompts:
    """Return features as prompts without tokens.

    Args:
        features: encoder input [batch, ...], or one sample without the batch axis.
        info: the encoder's input; None for encoders of text.
        tokenizer: decodes the results; None if ids are requested.

    Raises:
        InputError: there are none.
    """
    array = np.asarray(features)
    rank = array.ndim if info is None else len(info.shape or ())
    batch = array.shape[0] if array.ndim == rank and rank else 1
    if not batch:
        raise InputError(f"features {list(array.shape)}: expected {info}")
    return Prompts([[] for _ in range(batch)], tokenizer, is_answered=True, features=array)
