"""Tokenizers (the `tokenizers` library) and chat templates (jinja2); both come with an extra."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from ..runtime.base.arguments import shown
from ..runtime.errors import InputError, ModelError, UnsupportedError
from .config_file import ConfigFile, field_at
from .folder import ModelFolder

_EXTRA = "pip install 'tercet[generate]'"
#: Special tokens that templates refer to by name.
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


class FolderTokenizer:
    """The tokenizer of a folder.

    Args:
        folder: a folder with ``tokenizer.json``.

    Raises:
        ModelError: the file is missing or malformed.
        UnsupportedError: the library is not installed.
    """

    def __init__(self, folder: ModelFolder) -> None:
        self._folder = folder
        if folder.tokenizer is None:
            raise ModelError(
                "has no tokenizer.json; save it there with transformers' "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...), or give token ids "
                "(generate_ids)",
                file=str(folder.path),
            )
        try:
            import tokenizers
        except ImportError as error:
            raise UnsupportedError(
                f"{folder.tokenizer}: texts need the library tokenizers",
                remedy=f"install it with {_EXTRA}, or give token ids (generate_ids)",
            ) from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(folder.tokenizer))
        except Exception as error:  # the library raises nothing more precise
            raise ModelError(
                f"is none that tokenizers {tokenizers.__version__} reads: {error}",
                file=str(folder.tokenizer),
                where=_field_of(folder.tokenizer, str(error)),
            ) from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

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

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Format a conversation with the model's chat template, up to where the model answers.

        Args:
            messages: each with ``role`` and ``content``.

        Raises:
            ModelError: the folder has no template, or the template fails.
            UnsupportedError: jinja2 is not installed.
        """
        where, text = self._template
        try:
            from jinja2 import TemplateError
            from jinja2.ext import loopcontrols
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise UnsupportedError(
                f"{where}: chat templates need the library jinja2",
                remedy=f"install it with {_EXTRA}, or give the prompt as a text",
            ) from error
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _marked_answers()]
        )
        environment.filters["tojson"] = _as_json
        environment.globals.update(raise_exception=_raise, strftime_now=_now)
        values = {"tools": None, "documents": None, "add_generation_prompt": True}
        try:
            template = environment.from_string(text)
            return template.render(messages=list(messages), **values, **self._special)
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise ModelError(f"the chat template fails: {error}", file=where) from error

    @property
    def _special(self) -> dict[str, str]:
        config = self._folder.tokens or ConfigFile(self._folder.path, {})
        found = {name: config.text(name) for name in _SPECIAL}
        return {name: text for name, text in found.items() if text is not None}

    @cached_property
    def _template(self) -> tuple[str, str]:
        """The template, and the file it comes from."""
        file = self._folder.path / "chat_template.jinja"
        if file.is_file():
            return str(file), file.read_text(encoding="utf-8")
        for config in (
            self._folder.tokens,
            ConfigFile.perhaps(self._folder.path / "chat_template.json"),
        ):
            found = None if config is None else config.get("chat_template")
            if isinstance(found, list):
                named = [each for each in found if isinstance(each, Mapping)]
                found = {each.get("name"): each.get("template") for each in named}.get("default")
            if config is not None and isinstance(found, str):
                return f"{config.path}: chat_template", found
        raise ModelError(
            "has no chat template (chat_template.jinja, or chat_template in "
            "tokenizer_config.json); give the prompt as a text",
            file=str(self._folder.path),
        )


def _field_of(file: Path, reason: str) -> str:
    """Return the field where the library stopped to read a file; empty if it does not say so."""
    place = re.search(r"at line (\d+) column (\d+)", reason)
    return "" if place is None else field_at(file.read_bytes(), int(place[1]), int(place[2]))


def _marked_answers() -> type[Any]:
    """Return the jinja2 extension for ``{% generation %}``, which marks the model's answers."""
    from jinja2.ext import Extension

    class MarkedAnswers(Extension):
        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    MarkedAnswers.tags = {"generation"}
    return MarkedAnswers


def _as_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **how: Any) -> str:
    """Serialize as templates expect: JSON without HTML escapes."""
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, **how)


def _raise(text: str) -> NoReturn:
    """What templates call to reject a conversation."""
    from jinja2 import TemplateError

    raise TemplateError(text)


def _now(form: str) -> str:
    """The current date, which some templates include."""
    return datetime.now().strftime(form)
