"""Results that are written while they are measured, so that a time limit loses none of them.

What a later call measures at the same commit, on the same machine, is added to them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from ...runtime.base.files import write_text

T = TypeVar("T")

#: What may differ between two calls whose results belong together.
VARYING = ("date", "GPU now")

#: Fields of results by their names in older files.
_FORMER = {"contestant": "runner", "contestants": "runners", "streams": "concurrency"}


def earlier(
    file: Path,
    about: Mapping[str, str],
    parse: Callable[[dict[str, Any]], T],
    part: str = "results",
    varying: Collection[str] = VARYING,
) -> list[T]:
    """Return the results of a file; none if it is not there, is damaged, or is of something else.

    Args:
        file: JSON, as `to_json` gives it.
        about: the environment that they must be of.
        parse: makes a result of its dictionary.
        part: which list of the file.
        varying: what may differ between the two environments.
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
    """Return JSON that an older version may have written with the names of its fields today."""
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
    """Write files by name, each so that an interruption leaves the old one; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]
