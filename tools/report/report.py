"""Self-contained HTML reports of saved comparisons, profiles and benchmarks.

The kind of a file is recognized by its fields: ``tercet compare``, ``tercet compare --layers``,
``tercet profile`` and ``tercet bench``. Sections come in that order, whatever the order of files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Protocol, cast

from rich.console import Console
from rich.text import Text

from ...arguments import public
from ...runtime.base import arguments as rules
from ...runtime.base.files import write_text
from ...runtime.base.notebook import one_line
from ...runtime.errors import InputError, UsageError
from ..common.console import bytes_text, counted
from ..common.results import read_json, saved_by
from .report_markup import Markup, element, page
from .report_sections import bench_section, compare_section, layers_section, profile_section
from .report_style import STYLE

Found = Mapping[str, Any]


class Result(Protocol):
    """A result of compare, compare_layers, profile or bench."""

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        ...


#: A result, its `to_dict`, or a file written with ``--json``.
Source = Result | Found | str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    fields: frozenset[str]
    section: Callable[[Sequence[Found]], Markup]


_KINDS = (
    _Kind("compare", frozenset({"runners", "reference"}), compare_section),
    _Kind("layers", frozenset({"layers", "mode"}), layers_section),
    _Kind("profile", frozenset({"rows", "phases_ms"}), profile_section),
    _Kind("bench", frozenset({"cases", "complaints"}), bench_section),
)


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """An HTML page; `write` saves it.

    Attributes:
        html: the page.
        sections: its sections, in order.
        figures: number of images.
    """

    html: str
    sections: tuple[str, ...]
    figures: int

    def __repr__(self) -> str:
        figures = counted(self.figures, "figure")
        return one_line("Report", f"{', '.join(self.sections)}; {figures}")

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        """Return the page in a separate frame, isolated from the notebook's style."""
        return f'<iframe srcdoc="{escape(self.html)}" width="100%" height="600"></iframe>'

    @public()
    def write(self, file: str | os.PathLike[str]) -> None:
        """Save it; raises OSError where the file cannot be written."""
        write_text(Path(file), self.html)

    def to_dict(self) -> dict[str, Any]:
        """Return its contents, for JSON."""
        size = len(self.html.encode())
        return {"sections": list(self.sections), "figures": self.figures, "bytes": size}


def _sources(name: str, value: Any) -> tuple[Any, ...]:
    """Accept one or several results, or files of them."""
    expected = "results of compare, profile or bench, or the files that --json wrote"
    alone = isinstance(value, str | bytes | os.PathLike | Mapping) or hasattr(value, "to_dict")
    found: tuple[Any, ...] = (value,) if alone else rules.items(name, value, expected)
    return tuple(
        each
        if isinstance(each, Mapping)
        else each.to_dict()
        if hasattr(each, "to_dict") and not isinstance(each, type)
        else rules.path(name, each)
        for each in found
    )


@public(sources=_sources)
def report(sources: Source | Sequence[Source], title: str = "") -> Report:
    """Make a report.

    Args:
        sources: one or several results of compare, profile and bench: objects, their `to_dict`, or
            files written with ``--json``.
        title: of the page; the models' names if empty.

    Raises:
        UsageError: there are no results.
        InputError: a file is not a result.
        OSError: a file cannot be read.
    """
    if not sources:
        raise UsageError(
            "a report needs at least one file written by compare, profile or bench with --json"
        )
    by_kind: dict[str, list[Found]] = {}
    for source in cast("Sequence[Path | Found]", sources):
        kind, found = _read(source)
        by_kind.setdefault(kind.name, []).append(found)
    kinds = [kind for kind in _KINDS if kind.name in by_kind]
    sections = [_section(kind, by_kind[kind.name]) for kind in kinds]
    said = title or f"tercet: {', '.join(_models(by_kind))}"
    links = [element("a", kind.name, href=f"#{kind.name}") for kind in kinds]
    html = page(said, STYLE, element("h1", said), element("nav", links), sections)
    return Report(html, tuple(kind.name for kind in kinds), html.count("<figure"))


def _read(source: Path | Found) -> tuple[_Kind, Found]:
    found = read_json(source)
    for kind in _KINDS:
        if isinstance(found, Mapping) and kind.fields <= set(found):
            return kind, found
    name = source if isinstance(source, Path) else "the mapping"
    raise InputError(
        f"{name} is neither a comparison nor a profile nor a benchmark; `tercet compare`, "
        "`tercet profile` and `tercet bench` write them with --json"
    )


def _section(kind: _Kind, found: Sequence[Found]) -> Markup:
    with saved_by("tercet compare --layers" if kind.name == "layers" else f"tercet {kind.name}"):
        return kind.section(found)


def _models(by_kind: Mapping[str, Sequence[Found]]) -> list[str]:
    names: dict[str, None] = {}
    for found in (one for group in by_kind.values() for one in group):
        cases = found.get("cases", [found])
        names.update(dict.fromkeys(Path(str(case["model"])).name for case in cases))
    return list(names)


def show_report(console: Console, file: Path, found: Report) -> None:
    """Print a line about a written report."""
    about = found.to_dict()
    sections = ", ".join(found.sections)
    size = bytes_text(about["bytes"])
    figures = counted(found.figures, "figure")
    console.print(Text(f"{file}: {sections}; {figures}, {size}"), overflow="fold")
