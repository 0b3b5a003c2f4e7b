"""Representations of results: one line in a console, everything in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from ..text import printable

_STYLE = "line-height: 1.25; overflow-x: auto; white-space: pre"
MAX_CHARACTERS = 200


class Shown(ABC):
    """A result whose ``repr`` is one line; notebooks show `str`."""

    __slots__ = ()

    @abstractmethod
    def _about(self) -> str:
        """Return a description of a few words."""

    def __repr__(self) -> str:
        return one_line(type(self).__name__, self._about())

    def _repr_html_(self) -> str:
        from html import escape  # which imports the names of all entities

        return f'<pre style="{_STYLE}">{escape(str(self))}</pre>'


def one_line(name: str, text: str) -> str:
    """Return ``<tercet.NAME text>``, shortened and without line breaks."""
    plain = printable(text.replace("\n", " "))
    cut = plain if len(plain) <= MAX_CHARACTERS else f"{plain[: MAX_CHARACTERS - 3]}..."
    return f"<tercet.{name} {cut}>"


def html_table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return an HTML table of two columns with a caption."""
    from html import escape  # which imports the names of all entities

    cells = (f"<td>{escape(kind)}</td><td>{escape(printable(text))}</td>" for kind, text in rows)
    body = "".join(f"<tr>{each}</tr>" for each in cells)
    return f"<table><caption>{escape(title)}</caption>{body}</table>"
