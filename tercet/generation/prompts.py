"""What is to be continued: texts, conversations or token ids, as tokens that fit the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ..runtime.base import arguments as rules
from ..runtime.errors import InputError
from ..runtime.session.cache_layout import DecoderLayout
from .folder import Folder
from .text_stream import TextStream
from .tokens import Tokenizer

#: A text, several, or the messages of a conversation.
Prompt = str | Sequence[str] | Sequence[Mapping[str, Any]]
#: Tokens, or those of several prompts.
Ids = Sequence[int] | Sequence[Sequence[int]]

_TEXTS = "a text, a list of texts, or messages"


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts that are continued together.

    Attributes:
        ids: the tokens of each.
        tokenizer: makes texts of what follows; None where ids are asked for.
        is_chat: whether what follows is an answer, and not more of the same text.
    """

    ids: list[list[int]]
    tokenizer: Tokenizer | None = None
    is_chat: bool = False

    def stream(self, number: int, stops: Sequence[str]) -> TextStream | None:
        """Return what makes text of the tokens that follow a prompt."""
        if self.tokenizer is None:
            return None
        before = () if self.is_chat else self.ids[number]
        return TextStream(self.tokenizer.decode, stops, before)

    def check(self, folder: Folder, layout: DecoderLayout, capacity: int | None) -> None:
        """Raise InputError for a prompt that is empty or too long, or has unknown tokens."""
        vocabulary = (layout.logits.shape or (None,))[-1]
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
            if capacity is not None and len(tokens) > capacity:
                context = folder.context
                says = "" if context is None else f" ({context.config.path}: {context.field})"
                raise InputError(
                    f"{which} has {len(tokens)} tokens; the caches have room for {capacity}{says}"
                )


def read_texts(prompt: Prompt, tokenizer: Tokenizer) -> Prompts:
    """Return the tokens of texts, or of a conversation; raises UsageError for anything else."""
    given = cast("Sequence[Any]", prompt)
    if isinstance(given, str):
        return Prompts([tokenizer.encode(given)], tokenizer)
    if not isinstance(given, list | tuple) or not given:
        raise rules.refused("prompt", given, _TEXTS)
    if all(isinstance(each, Mapping) for each in given):
        text = tokenizer.chat(cast("Sequence[Mapping[str, Any]]", given))
        return Prompts([tokenizer.encode(text, special=False)], tokenizer, is_chat=True)
    if not all(isinstance(each, str) for each in given):
        raise rules.refused("prompt", given, _TEXTS)
    return Prompts([tokenizer.encode(each) for each in given], tokenizer)


def read_ids(ids: Ids) -> Prompts:
    """Return tokens as lists; raises UsageError for what are none."""
    given = cast("Sequence[Any]", ids.tolist() if isinstance(ids, np.ndarray) else ids)
    if not isinstance(given, list | tuple) or not given:
        raise rules.refused("ids", given, "a list of tokens, or a list of such lists")
    prompts = given if isinstance(given[0], list | tuple) else [given]
    token = rules.whole(0)
    return Prompts([[token("ids", t) for t in rules.items("ids", p, "tokens")] for p in prompts])
