"""How results look where an expression is shown: one line in a console, the whole in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from html import escape

from ..text import printable

_STYLE = "line-height: 1.25; overflow-x: auto; white-space: pre"
MAX_CHARACTERS = 200


class Shown(ABC):
    """A result: ``repr`` is one line of it, and a notebook shows what `str` says."""

    __slots__ = ()

    @abstractmethod
    def _about(self) -> str:
        """Say in a few words what it is."""

    def __repr__(self) -> str:
        return one_line(type(self).__name__, self._about())

    def _repr_html_(self) -> str:
        return f'<pre style="{_STYLE}">{escape(str(self))}</pre>'


def one_line(name: str, text: str) -> str:
    """Return ``<tercet.NAME text>``, without line breaks and not too long."""
    plain = printable(text.replace("\n", " "))
    cut = plain if len(plain) <= MAX_CHARACTERS else f"{plain[: MAX_CHARACTERS - 3]}..."
    return f"<tercet.{name} {cut}>"
