"""The recorded folders, and copies of them that are spoiled."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tercet import Generator, TercetError

#: Gives the generator of a recorded folder or file; see conftest.py.
Opened = Callable[..., Generator]
DECODERS = Path(__file__).parents[1] / "producers" / "decoders"


def told(name: str) -> Any:
    """What transformers generates with the same weights."""
    return json.loads((DECODERS / name / "expected.json").read_text())


def copied(name: str, target: Path) -> Path:
    """A copy of a folder."""
    return shutil.copytree(DECODERS / name, target / name)


def rewrite(path: Path, **fields: Any) -> None:
    """Set fields of a configuration, ``a__b`` for b in a; those that are None go."""
    data = json.loads(path.read_text())
    for name, value in fields.items():
        *outer, last = name.split("__")
        part = data
        for each in outer:
            part = part.setdefault(each, {})
        part[last] = value
        if value is None:
            del part[last]
    path.write_text(json.dumps(data))


def check_refused(
    folder: Path, spoil: Callable[[Path], object], kind: type[TercetError], text: str
) -> None:
    """Check that a generator refuses a spoiled folder: the error names it and contains `text`."""
    spoil(folder)
    with pytest.raises(kind) as caught:
        Generator(folder)
    assert text in str(caught.value)
    assert str(folder) in str(caught.value)
