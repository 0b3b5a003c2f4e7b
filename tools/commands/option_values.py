"""What the texts of options say: names, numbers, and values by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...runtime.errors import UsageError


def algorithms_of(texts: Sequence[str] | None) -> dict[str, str]:
    """Return algorithms by node or operator, from --algorithm NODE=NAME."""
    found: dict[str, str] = {}
    for text in texts or ():
        node, equals, name = text.rpartition("=")
        if not (node and equals and name):
            raise UsageError(f"--algorithm {text}: expected NODE=NAME, such as Conv=winograd_f2")
        found[node] = name
    return found


def backend_options_of(texts: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    """Return options by backend, from --backend-option BACKEND.OPTION=VALUE.

    Raises:
        UsageError: an option cannot be parsed.
    """
    from ...backends.options import parsed

    return parsed({name: value for name, _, value in (t.partition("=") for t in texts or ())})


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Return the numbers in a comma-separated option."""
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError as error:
        raise UsageError(
            f"{option} {text}: expected one number, or one per channel, separated by commas"
        ) from error


def figures(option: str, texts: Sequence[str] | None, *, whole: bool = False) -> dict[str, float]:
    """Return numbers by name, from [NAME=]X; "" is the name of those without one."""
    found: dict[str, float] = {}
    for text in texts or ():
        name, _, figure = text.rpartition("=")
        try:
            found[name] = int(figure) if whole else float(figure)
        except ValueError as error:
            kind = "a whole number" if whole else "a number"
            raise UsageError(
                f"{option} {text}: expected {kind}, or NAME={kind.split()[-1]}"
            ) from error
    return found


def integers(option: str, text: str) -> tuple[int, ...]:
    """Return the integers in a comma-separated option."""
    try:
        return tuple(int(number) for number in split(text))
    except ValueError as error:
        raise UsageError(f"{option} {text}: expected whole numbers, separated by commas") from error


def split(names: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list."""
    return tuple(name for name in names.split(",") if name)


def names_of(text: str) -> tuple[str, ...]:
    """Return comma-separated names, or the lines of a file after an @."""
    if not text.startswith("@"):
        return split(text)
    lines = Path(text[1:]).read_text(encoding="utf-8").splitlines()
    return tuple(line.strip() for line in lines if line.strip())
