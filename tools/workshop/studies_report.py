"""Results of a study as tables, sentences and curves: data, Markdown and SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil, floor, log2
from textwrap import fill
from typing import Any

from ..common.console import finite
from ..common.markdown import head, table
from ..report.report_markup import Markup, element, svg
from ..report.report_style import STYLE

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        key: of the rows.
        title: above it.
        form: how its numbers are written, as `format` takes it; texts are written as they are.
    """

    key: str
    title: str
    form: str = ""

    def text(self, row: Row) -> str:
        """Return the cell of a row; empty where it has none."""
        value = row.get(self.key)
        if value is None:
            return ""
        if isinstance(value, bool):
            return "yes" if value else "no"
        return value if isinstance(value, str) else format(value, self.form)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under titles; the first column is text.

    Attributes:
        title: what it shows.
        columns: in order.
        rows: numbers and texts by key.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def cells(self) -> list[list[str]]:
        """Return all rows as texts."""
        return [[column.text(row) for column in self.columns] for row in self.rows]


@dataclass(frozen=True, slots=True)
class Curves:
    """Numbers over numbers, on a logarithmic axis to the right and a linear one upwards.

    Attributes:
        name: of the file.
        title: what it shows.
        across: what the horizontal axis counts.
        upwards: what the vertical axis counts.
        lines: points by name.
    """

    name: str
    title: str
    across: str
    upwards: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Study:
    """What one study found.

    Attributes:
        name: of the study.
        about: what is measured, and how.
        tables: the figures.
        findings: what follows from them, a sentence each.
        curves: what is to be drawn.
    """

    name: str
    about: str
    tables: tuple[Table, ...]
    findings: tuple[str, ...] = ()
    curves: tuple[Curves, ...] = ()


@dataclass(slots=True)
class StudyReport:
    """All studies of one call.

    Attributes:
        about: machine, versions, date.
        studies: what they found.
        seconds: what each took, by name.
        failed: why a study has no result, by name.
    """

    about: Mapping[str, str]
    studies: list[Study] = field(default_factory=list[Study])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    failed: dict[str, str] = field(default_factory=dict[str, str])

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        found = {
            "environment": dict(self.about),
            "studies": {study.name: _data(study) for study in self.studies},
            "seconds": self.seconds,
            "failed": self.failed,
        }
        return finite(found)


def _data(study: Study) -> dict[str, Any]:
    tables = {table.title: [dict(row) for row in table.rows] for table in study.tables}
    curves = [asdict(curve) for curve in study.curves]
    return {
        "about": study.about,
        "tables": tables,
        "findings": list(study.findings),
        "curves": curves,
    }


#: Columns of a page.
TEXT = 100

# ── Markdown ─────────────────────────────────────────────────────────────────────────────────────


def markdown(report: StudyReport) -> str:
    """Return all studies as a page."""
    text = (
        "Written by `python -m tercet.tools.workshop.studies`; `docs/algorithms.md` describes the "
        "algorithms.\n*us* and *ms* are device times between events around a recorded graph of "
        "many calls:\nmedians, with a warm cache. Errors are the maximum difference from float64 "
        "at a few\nhundred pixels, as a fraction of the largest result there. *Floor* is the "
        "longer of the times\nfor arithmetic and for moving each byte once, by the rates of an "
        "H200's data sheet."
    )
    lines = head("Studies of kernels", text, report.about)
    for study in report.studies:
        lines += [f"## {study.name}", "", fill(study.about, TEXT), ""]
        for each in study.tables:
            lines += [f"{each.title}:", "", *_table(each), ""]
        lines += [fill(f"- {each}", TEXT, subsequent_indent="  ") for each in study.findings]
        lines += [""] if study.findings else []
        for curve in study.curves:
            lines += [f"![{curve.title}](studies_{curve.name}.svg)", ""]
    for name, reason in report.failed.items():
        lines += [f"## {name}", "", f"failed: {reason}", ""]
    return "\n".join(lines)


def _table(found: Table) -> list[str]:
    titles = [column.title for column in found.columns]
    return table(titles, found.cells(), range(1, len(titles)))


# ── SVG ──────────────────────────────────────────────────────────────────────────────────────────

WIDTH, HEIGHT, LEFT, TOP = 760.0, 320.0, 60.0, 30.0
COLOURS = 6
#: Lines in the colours that the style sheet has for surfaces.
_STROKES = "\n".join(
    f".s{i} {{ stroke: var(--c{i}); stroke-width: 2; fill: none; }}" for i in range(COLOURS)
)


def picture(curves: Curves) -> str:
    """Return curves as an SVG document."""
    points = [point for line in curves.lines.values() for point in line]
    low, high = log2(min(x for x, _ in points)), log2(max(x for x, _ in points))
    step = _step(max(y for _, y in points))
    top = step * ceil(max(y for _, y in points) / step)

    def px(x: float) -> float:
        return LEFT + (log2(x) - low) / max(high - low, 1e-9) * (WIDTH - LEFT - 190)

    def py(y: float) -> float:
        return TOP + (1 - y / top) * HEIGHT

    parts = _axes(curves, sorted({x for x, _ in points}), (step, top), px, py)
    for number, (name, line) in enumerate(curves.lines.items()):
        kind = number % COLOURS
        path = "L".join(f"{px(x):.1f} {py(y):.1f}" for x, y in line)
        dashes = None if number < COLOURS else "6 4"
        y = TOP + 12 + 18 * number
        parts += [
            element("path", d=f"M{path}", class_=f"s{kind}", stroke_dasharray=dashes),
            *(
                element(
                    "circle",
                    element("title", f"{name}: {x:g}, {value:.4g}"),
                    cx=px(x),
                    cy=py(value),
                    r=3.0,
                    class_=f"k{kind}",
                )
                for x, value in line
            ),
            element("path", d=f"M{WIDTH - 176} {y - 4}h20", class_=f"s{kind}",
                    stroke_dasharray=dashes),
            element("text", name, x=WIDTH - 150, y=y, class_="soft small"),
        ]  # fmt: skip
    style = element("style", Markup(STYLE + _STROKES))
    return svg(WIDTH, TOP + HEIGHT + 46, curves.title, style, parts) + "\n"


def _step(maximum: float) -> float:
    """Return a round number that goes into `maximum` four to ten times."""
    power = 10.0 ** floor(log2(maximum) / log2(10))
    return next(power * part for part in (0.1, 0.2, 0.5, 1.0) if maximum <= 10 * power * part)


def _axes(
    curves: Curves, xs: Sequence[float], ticks: tuple[float, float], px: Any, py: Any
) -> list[Markup]:
    step, top = ticks
    right, bottom = px(xs[-1]), py(0)
    parts = [element("text", curves.upwards, x=LEFT, y=TOP - 12, class_="soft small")]
    for number in range(round(top / step) + 1):
        y = py(step * number)
        parts.append(element("line", x1=LEFT, x2=right, y1=y, y2=y, class_="grid"))
        text = f"{step * number:g}"
        parts.append(
            element("text", text, x=LEFT - 6, y=y + 4, text_anchor="end", class_="soft small")
        )
    for x in xs:
        parts.append(
            element(
                "text", f"{x:g}", x=px(x), y=bottom + 16, text_anchor="middle", class_="soft small"
            )
        )
    parts.append(element("text", curves.across, x=LEFT, y=bottom + 34, class_="soft small"))
    return parts
