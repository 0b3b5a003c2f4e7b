"""How results look where an expression is shown: one line in a console, the whole in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any, TypeVar

from .text import printable

T = TypeVar("T")
_STYLE = "line-height: 1.25; overflow-x: auto; white-space: pre"
MOST_CHARACTERS = 200


class Shown:
    """What a notebook shows as the whole of `str`."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f'<pre style="{_STYLE}">{escape(str(self))}</pre>'


def shown_as(about: Callable[[Any], str]) -> Callable[[type[T]], type[T]]:
    """Decorate a class of results: ``repr`` is one line, and a notebook shows what `str` says.

    Args:
        about: what is to be said of an instance, in a few words.
    """

    def decorate(kind: type[T]) -> type[T]:
        def line(self: Any) -> str:
            return one_line(kind.__name__, about(self))

        setattr(kind, "__repr__", line)  # noqa: B010 - a dataclass has one of its own
        setattr(kind, "_repr_html_", vars(Shown)["_repr_html_"])  # noqa: B010
        return kind

    return decorate


def one_line(name: str, text: str) -> str:
    """Return ``<tercet.NAME text>``, without line breaks and not too long."""
    plain = printable(text.replace("\n", " "))
    cut = plain if len(plain) <= MOST_CHARACTERS else f"{plain[: MOST_CHARACTERS - 3]}..."
    return f"<tercet.{name} {cut}>"
