"""Result files written during measurement, so that a time limit loses nothing.

Later measurements at the same commit and on the same machine are added.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from ...runtime.base.files import write_text
from ...runtime.errors import InputError, TercetError

T = TypeVar("T")

#: Fields of the environment that may differ between results of one file.
VARYING = ("date", "GPU now")

#: Current names of fields by their names in older files.
_FORMER = {"contestant": "runner", "contestants": "runners", "streams": "concurrency"}


def read_json(source: str | os.PathLike[str] | Mapping[str, Any]) -> Any:
    """Return the contents of a JSON file with current field names; a mapping is taken as it is.

    Raises:
        InputError: the file is not JSON.
        OSError: it cannot be read.
    """
    if isinstance(source, Mapping):
        return with_new_names(source)
    try:
        return with_new_names(json.loads(Path(source).read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{os.fspath(source)} is not JSON, as tercet's commands write it with --json: {error}"
        ) from error


@contextmanager
def saved_by(command: str) -> Generator[None]:
    """Convert errors that the fields of a saved result cause into an InputError.

    Args:
        command: the command that writes such a result, such as ``tercet profile MODEL``.
    """
    try:
        yield
    except TercetError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"a file of `{command}` is damaged or was written by another version "
            f"({type(error).__name__}: {error}); write it again with --json"
        ) from error


def earlier(
    file: Path,
    about: Mapping[str, str],
    parse: Callable[[dict[str, Any]], T],
    part: str = "results",
    varying: Collection[str] = VARYING,
) -> list[T]:
    """Return the results of a file; none if it is missing, damaged, or about something else.

    Args:
        file: JSON, as written by `to_json`.
        about: the required environment.
        parse: makes a result from its dictionary.
        part: which list of the file.
        varying: fields of the environment that may differ.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if _lasting(data["environment"], varying) != _lasting(about, varying):
            return []
        return [parse(entry) for entry in data[part]]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []


def _lasting(about: Mapping[str, str], varying: Collection[str]) -> dict[str, str]:
    return {name: text for name, text in about.items() if name not in varying}


def with_new_names(found: Any) -> Any:
    """Return JSON of an older version with current field names."""
    if isinstance(found, Mapping):
        fields = cast("Mapping[str, Any]", found)
        return {_FORMER.get(key, key): with_new_names(value) for key, value in fields.items()}
    if isinstance(found, list):
        return [with_new_names(each) for each in cast("list[Any]", found)]
    return found


def to_json(about: Mapping[str, str], **parts: Sequence[Mapping[str, Any]]) -> str:
    """Return an environment with lists of results as text."""
    return json.dumps({"environment": dict(about), **parts}, indent=1) + "\n"


def write(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files atomically by name; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]
