"""Markdown pages of results: a title, how the page was made, the environment, tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def head(title: str, text: str, about: Mapping[str, str] | None = None) -> list[str]:
    """Return the first lines of a page, the last one empty.

    Args:
        title: the heading.
        text: one paragraph: the command that writes the page, and what its columns mean.
        about: the environment of the measurements, as a list; None for none.
    """
    facts = [f"- {name}: {value}" for name, value in (about or {}).items()]
    return [f"# {title}", "", text, "", *facts, *([""] if facts else [])]


def table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()
) -> list[str]:
    """Return the lines of a table.

    Args:
        titles: one per column.
        rows: the cells; a ``|`` in one is escaped.
        numbers: indices of right-aligned columns.
    """
    right = set(numbers)
    rule = ["---:" if i in right else "---" for i in range(len(titles))]
    return [_line(titles), _line(rule), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
