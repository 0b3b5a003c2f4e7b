"""Tokenizers: the `tokenizers` library, which comes with an extra."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..importers.onnx.reading.signatures import mistaken
from ..runtime.base.arguments import shown
from ..runtime.base.closable import Closable
from ..runtime.errors import InputError, ModelError, UnsupportedError
from .chat_template import ChatTemplates
from .config_file import field_at
from .folder import ModelFolder

_EXTRA = "pip install 'tercet[generate]'"


class FolderTokenizer(Closable):
    """The tokenizer of a folder.

    Args:
        folder: a folder with ``tokenizer.json``.

    Raises:
        ModelError: the file is missing or malformed.
        UnsupportedError: the library is not installed.
    """

    def __init__(self, folder: ModelFolder) -> None:
        self._templates = ChatTemplates(folder)
        if folder.tokenizer is None:
            raise ModelError(
                "has no tokenizer.json; save it there with transformers' "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...), or give token ids "
                "(generate_ids, --ids)",
                file=str(folder.path),
            )
        try:
            import tokenizers
        except ImportError as error:
            raise UnsupportedError(
                f"{folder.tokenizer}: texts need the library tokenizers",
                remedy=f"install it with {_EXTRA}, or give token ids (generate_ids, --ids)",
            ) from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(folder.tokenizer))
        except Exception as error:  # the library raises nothing more precise
            raise ModelError(
                f"is none that tokenizers {tokenizers.__version__} reads: "
                f"{mistaken(folder.tokenizer) or error}",
                file=str(folder.tokenizer),
                where=_field_of(folder.tokenizer, str(error)),
            ) from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def close(self) -> None:
        """End the process that formats conversations; the next conversation starts another."""
        self._templates.close()

    @property
    def size(self) -> int:
        """One more than the largest token id."""
        return max(self._tokenizer.get_vocab().values(), default=-1) + 1

    def token(self, text: str) -> int | None:
        """Return the id of a single token given as text."""
        return self._tokenizer.token_to_id(text)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the token ids of a text, with the special tokens that the tokenizer adds.

        Args:
            text: any.
            special: False for a text that already has its special tokens, as chat templates write
                them.

        Raises:
            InputError: the text has half of a surrogate pair, which no encoding has.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the prompt {shown(text)} is no Unicode text: {error}") from error
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens; special tokens are skipped."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    # ── chats ────────────────────────────────────────────────────────────────────────────────

    def chat(self, messages: Sequence[Mapping[str, Any]], **values: Any) -> str:
        """Format a conversation with the model's chat template, up to where the model answers.

        The template runs in a process of its own, with limits on its memory, time and text.

        Args:
            messages: each with ``role`` and ``content``.
            **values: further variables of the template, as for transformers' `apply_chat_template`:
                ``tools`` (JSON schemas), ``documents``, ``add_generation_prompt=False``,
                ``enable_thinking``, …

        Raises:
            ModelError: the folder has no template, or the template fails.
            LimitError: the template needs more memory or time, or writes more, than it may.
            UnsupportedError: jinja2 is not installed.
        """
        return self._templates.render(messages, values)


def _field_of(file: Path, reason: str) -> str:
    """Return the field where the library stopped to read a file; empty if it does not say so."""
    place = re.search(r"at line (\d+) column (\d+)", reason)
    return "" if place is None else field_at(file.read_bytes(), int(place[1]), int(place[2]))
