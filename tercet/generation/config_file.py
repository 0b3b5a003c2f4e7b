"""JSON configuration files: typed access to fields, with errors that name the file and field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, cast

from ..importers.onnx.reading.signatures import mistaken
from ..runtime.base.arguments import shown
from ..runtime.errors import FileError, ModelError

#: Strings, punctuation, and all else of a JSON text.
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
#: Larger files are rejected as configurations.
_MOST = 64 << 20


class ConfigFile:
    """The fields of a JSON object; fields of nested objects are addressed with dots.

    Args:
        path: the file, for error messages.
        data: the parsed object.
    """

    def __init__(self, path: Path, data: Mapping[str, Any]) -> None:
        self.path, self._data = path, data

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        """Read a file; raises ModelError if it is not a JSON object, FileError if it is missing."""
        try:
            if path.stat().st_size > _MOST:
                raise ModelError(f"has more than {_MOST} bytes", file=str(path))
            data: Any = json.loads(path.read_bytes())
        except OSError as error:
            raise FileError(error.errno, error.strerror, str(path)) from error
        except (ValueError, RecursionError) as error:
            raise ModelError(f"is not JSON: {mistaken(path) or error}", file=str(path)) from error
        if not isinstance(data, dict):
            raise ModelError("is not a JSON object", file=str(path))
        return cls(path, cast("dict[str, Any]", data))

    @classmethod
    def perhaps(cls, path: Path) -> ConfigFile:
        """Read a file; a missing file has no fields."""
        return cls.read(path) if path.is_file() else cls(path, {})

    def __bool__(self) -> bool:
        return bool(self._data)

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the fields, without those of nested objects."""
        return iter(self._data)

    def error(self, field: str, reason: str) -> ModelError:
        """Return a ModelError about a field."""
        return ModelError(reason, file=str(self.path), where=field)

    def get(self, field: str) -> Any:
        """Return the value of a field, or None if it is absent; ``a.b`` is field b of object a."""
        found: Any = self._data
        parts = field.split(".")
        for i, part in enumerate(parts):
            if found is None:
                return None
            if not isinstance(found, Mapping):
                raise self.error(".".join(parts[:i]), f"{shown(found)}: expected an object")
            found = cast("Mapping[str, Any]", found).get(part)
        return found

    def first(self, *fields: str) -> str:
        """Return the first of these fields that is present; the last one if none is."""
        return next((each for each in fields if self.get(each) is not None), fields[-1])

    def whole(self, field: str, minimum: int = 0) -> int | None:
        """Return an integer of at least this."""
        value = self.get(field)
        if value is None or (type(value) is int and value >= minimum):
            return value
        raise self.error(field, f"{shown(value)}: expected a whole number >= {minimum}")

    def token(self, field: str) -> int | None:
        """Return a token id, or None; some exporters write -1 for none."""
        value = self.get(field)
        if value is None or (type(value) is int and value >= 0):
            return value
        if value == -1:
            return None
        raise self.error(field, f"{shown(value)}: expected a token (a whole number)")

    def flag(self, field: str) -> bool:
        """Return a boolean; False if absent."""
        value = self.get(field)
        if value is None or type(value) is bool:
            return bool(value)
        raise self.error(field, f"{shown(value)}: expected true or false")

    def text(self, field: str) -> str | None:
        """Return a string; for a token given as an object, its content."""
        value = self.get(field)
        if isinstance(value, Mapping):
            value = cast("Mapping[str, Any]", value).get("content")
        if value is None or isinstance(value, str):
            return value
        raise self.error(field, f"{shown(value)}: expected a text")

    def file(self, field: str) -> Path | None:
        """Return the path of a file that a field names, below the folder of this one.

        Raises:
            ModelError: it names one outside, by the rules of any system.
        """
        name = self.text(field)
        if name is None:
            return None
        place = PureWindowsPath(name)
        if place.anchor or ".." in place.parts:
            raise self.error(
                field, f"{shown(name)} is outside of {self.path.parent}: expected a file in it"
            )
        return self.path.parent / name

    def tokens(self, field: str) -> tuple[int, ...]:
        """Return the token id or ids of a field; empty if absent."""
        value = self.get(field)
        if value is None:
            return ()
        several = cast("Sequence[Any]", value) if isinstance(value, list) else [value]
        if all(type(each) is int and each >= 0 for each in several):
            return tuple(several)
        raise self.error(field, f"{shown(value)}: expected a token (a whole number) or a list")


@dataclass(frozen=True, slots=True)
class StatedToken:
    """A token that a configuration states.

    Attributes:
        config: the configuration file.
        field: the field's name in it.
        token: the token.
    """

    config: ConfigFile
    field: str
    token: int

    def check(self, vocabulary: int, model: Path) -> None:
        """Raise ModelError if a model with this many tokens does not have it."""
        if self.token >= vocabulary:
            raise self.config.error(
                self.field, f"{self.token}, but {model} has {vocabulary} tokens"
            )


def field_at(text: bytes, line: int, column: int) -> str:
    """Return the field of a JSON text whose value has the byte at this line and column.

    Lines and columns count from 1; the fields of nested objects are joined with dots.
    """
    rows = text.split(b"\n")
    place = sum(len(row) + 1 for row in rows[: line - 1]) + column - 1
    path: list[str | int] = []
    name = ""
    for token in _TOKENS.finditer(text):
        if token.start() > place:
            break
        match token[0]:
            case b"{" | b"[" as opening:
                path.append("" if opening == b"{" else 0)
            case b"}" | b"]":
                path = path[:-1]
            case b":":
                path[-1:] = [name]
            case b",":
                path[-1:] = [each + 1 if isinstance(each, int) else "" for each in path[-1:]]
            case other:
                name = other.decode(errors="replace").strip('"')
    return ".".join(str(each) for each in path if each != "")
