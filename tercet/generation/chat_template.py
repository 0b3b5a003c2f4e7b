"""Chat templates: found in a folder, and rendered by a process of their own.

A template comes with the model, and may ask for any amount of memory and time. So jinja2 runs in a
separate process (`template_process`), which starts with the first conversation and answers until it
is closed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..runtime.base.closable import Closable
from ..runtime.base.worker import Ended, Isolated, TooLarge, TooSlow
from ..runtime.errors import FileError, InputError, LimitError, ModelError, UnsupportedError
from .config_file import ConfigFile
from .folder import ModelFolder

#: Bytes of memory that the process may take, seconds per conversation, and characters of its text.
MEMORY, SECONDS, CHARACTERS = 512 << 20, 10, 1 << 24
#: What the process imports.
_NEEDED = ("jinja2", "markupsafe")
_SCRIPT = Path(__file__).with_name("template_process.py")
_REMEDY = "install it with pip install 'tercet[generate]', or give the prompt as a text"
#: Names of a message's reasoning; templates read the first, gpt-oss's the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")


class ChatTemplates(Closable):
    """The chat templates of a folder, and the process that renders them.

    Args:
        folder: the folder's configuration.
    """

    def __init__(self, folder: ModelFolder) -> None:
        self._folder = folder
        self._worker: Isolated | None = None
        self._found: dict[str, tuple[str, str]] | None = None

    def close(self) -> None:
        """End the process, if there is one; the next conversation starts another."""
        if self._worker is not None:
            self._worker.close()

    def render(self, messages: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> str:
        """Return the text of a conversation; see `FolderTokenizer.chat`."""
        where, template = self._chosen(values.get("tools"))
        given = {"tools": None, "documents": None, "add_generation_prompt": True}
        try:
            known = _plain({**given, **self._special, **values, "messages": _normal(messages)})
        except RecursionError:
            raise InputError("the conversation contains itself, or is nested too deeply") from None
        if self._worker is None:
            self._worker = _worker(where)
        try:
            with self._worker.lock:
                if not self._worker.start():
                    raise UnsupportedError(
                        f"{where}: chat templates need a process of their own, and none starts",
                        remedy="sys.executable must be Python; or give the prompt as a text",
                    )
                found = self._worker.ask({"template": template, "values": known})
        except TooSlow:
            found = {"limit": "time"}
        except TooLarge:
            found = {"limit": "memory"}
        except Ended as error:
            raise ModelError(f"the chat template fails: {error}", file=where) from None
        except ValueError as error:  # an integer of too many digits
            raise InputError(f"the conversation cannot be passed on: {error}") from error
        return _text(where, found)

    def _chosen(self, tools: object) -> tuple[str, str]:
        """Return where a template comes from, and its text."""
        if self._found is None:
            self._found = _templates(self._folder)
        if tools is not None and "tool_use" in self._found:
            return self._found["tool_use"]
        if "default" not in self._found:
            raise ModelError(
                "has no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json); give the prompt as a text",
                file=str(self._folder.path),
            )
        return self._found["default"]

    @property
    def _special(self) -> dict[str, str]:
        """The special tokens that templates refer to by name."""
        config = self._folder.tokens
        if config is None:
            return {}
        names = [name for name in config if name.endswith("_token")]
        found = {name: config.text(name) for name in names if _is_token(config.get(name))}
        more = config.get("extra_special_tokens")
        if isinstance(more, Mapping):
            nested = [f"extra_special_tokens.{name}" for name in cast("Mapping[str, Any]", more)]
            found |= {name.partition(".")[2]: config.text(name) for name in nested}
        return {name: text for name, text in found.items() if text is not None}


def _is_token(value: object) -> bool:
    return isinstance(value, str | Mapping)


def _worker(where: str) -> Isolated:
    """Return the process; raises UnsupportedError if there is no jinja2."""
    folders: list[str] = []
    for name in _NEEDED:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise UnsupportedError(
                f"{where}: chat templates need the library {name}", remedy=_REMEDY
            )
        folders.append(str(Path(spec.origin).parent.parent))
    limits = map(str, (os.pathsep.join(folders), MEMORY, SECONDS, CHARACTERS))
    return Isolated(_SCRIPT, *limits, patience=SECONDS, memory=MEMORY)


def _text(where: str, answer: Mapping[str, str]) -> str:
    """Return the text of an answer; raises what it says otherwise."""
    if "text" in answer:
        return answer["text"]
    if "error" in answer:
        raise ModelError(f"the chat template fails: {answer['error']}", file=where)
    reached = {
        "time": f"takes more than {SECONDS} s",
        "memory": f"takes more than {MEMORY >> 20} MiB of memory",
        "length": f"writes more than {CHARACTERS:,} characters",
        "depth": "calls itself, or nests, too deeply",
    }
    raise LimitError(
        f"{where}: the chat template {reached[answer['limit']]}; give the prompt as a text"
    )


def _templates(folder: ModelFolder) -> dict[str, tuple[str, str]]:
    """Return the templates of a folder by name, each with the file it comes from."""
    file = folder.path / "chat_template.jinja"
    if file.is_file():
        try:
            return {"default": (str(file), file.read_text(encoding="utf-8"))}
        except OSError as error:
            raise FileError(error.errno, error.strerror, str(file)) from error
        except UnicodeDecodeError as error:
            raise ModelError(f"is no text in UTF-8: {error}", file=str(file)) from error
    found: dict[str, tuple[str, str]] = {}
    for config in (ConfigFile.perhaps(folder.path / "chat_template.json"), folder.tokens):
        stated = None if config is None else config.get("chat_template")
        if config is None:
            continue
        named = cast("Sequence[Any]", stated) if isinstance(stated, list) else ()
        pairs = [(each.get("name"), each.get("template")) for each in named if _is_pair(each)]
        for name, template in [("default", stated), *pairs]:
            if isinstance(name, str) and isinstance(template, str):
                found[name] = f"{config.path}: chat_template", template
    return found


def _is_pair(value: object) -> bool:
    return isinstance(value, Mapping)


def _normal(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as transformers passes them to a template.

    Fields without a value are left out, and reasoning has all of its names.
    """
    found: list[dict[str, Any]] = []
    for message in messages:
        stated = {name: value for name, value in message.items() if value is not None}
        thought = next((stated[name] for name in _REASONING if name in stated), None)
        if thought is not None:
            stated = {"thinking": thought, **stated, "reasoning_content": thought}
        found.append(stated)
    return found


def _plain(value: Any) -> Any:
    """Return what JSON has of a value; for anything else, a text with its type."""
    match value:
        case None | bool():
            return value
        case str():
            return str.__str__(value)
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case Mapping():
            pairs = cast("Mapping[Any, Any]", value).items()
            return {str(name): _plain(each) for name, each in pairs}
        case list() | tuple():
            return [_plain(each) for each in cast("Sequence[Any]", value)]
        case np.generic():
            return _plain(value.item())
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
        case _:
            return f"<{type(value).__name__}>"
