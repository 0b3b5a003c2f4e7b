"""docs/conformance.md: the scores of all measured backends, and the reason for every gap."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ... import backends
from ...runtime.errors import UsageError
from .report import ConformanceReport, NotPassed, Score
from .suite import operators_without_case

_SHOWN_CASES = 4

_HEAD = (
    "Written by `tercet conformance --backend B --write docs/conformance.md` from what was "
    "measured last of each backend (`docs/results/conformance_*.json`); not to be edited. Every "
    "case that comes with the `onnx` package is run, and judged by the comparison of ONNX's own "
    "runner with the case's tolerances. `node` and `model` are made by its Python code, the others "
    "are files. Cases that can be passed by luck alone count as not passed."
)
_LIGHT = (
    "The models in `light` are networks without their weights, whose expected outputs are one "
    "repeated number: they show that a model runs, not that it is right."
)
_OPERATORS = (
    "Cases of `node`, those of the functions that stand for an operator among them; empty where "
    "none is passed."
)
_FACTS = ("backend", "score", "share", "onnx", "tercet", "device", "seconds", "date")


def check_whole(page: Path | None, pattern: str, categories: Sequence[str] | None) -> None:
    """Raise UsageError if a page would be written about a part of the suite."""
    if page is not None and (pattern or categories):
        raise UsageError("--write is for the whole suite: leave out -k and --category")


def write_page(page: Path, report: ConformanceReport) -> None:
    """Store a report next to the page, in ``results``; write the page of all reports there."""
    folder = page.parent / "results"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"conformance_{_title(report).replace(' + ', '_')}.json"
    file.write_text(json.dumps(report.to_dict(), indent=1) + "\n", encoding="utf-8")
    page.write_text(markdown(read_reports(folder)), encoding="utf-8")


def read_reports(folder: Path) -> list[ConformanceReport]:
    """Return the stored reports of a folder, tercet's own backends first."""
    files = folder.glob("conformance_*.json")
    found = [
        ConformanceReport.from_dict(json.loads(file.read_text(encoding="utf-8"))) for file in files
    ]
    own = backends.names()
    return sorted(
        found, key=lambda r: (r.backend not in own, [*own, r.backend].index(r.backend), r.fallback)
    )


def markdown(reports: Sequence[ConformanceReport]) -> str:
    """Return the page."""
    titles = [_title(report) for report in reports]
    sections = [
        "# ONNX's own test suite",
        _HEAD,
        _table(_FACTS, map(_facts, reports)),
        "## Categories",
        _table(("category", *titles), _rows([report.categories for report in reports])),
        _LIGHT,
        "## Operators",
        _OPERATORS,
        _table(("operator", *titles), _rows([report.operators for report in reports])),
        f"ONNX has no case for {', '.join(operators_without_case())}.",
        *(part for report in reports for part in _gaps(report)),
    ]
    return "\n\n".join(sections) + "\n"


def _title(report: ConformanceReport) -> str:
    return " + ".join(name for name in (report.backend, report.fallback) if name)


def _facts(report: ConformanceReport) -> list[str]:
    about, score = report.environment, report.score
    share = f"{score.passed / score.cases:.1%}"
    when = f"{report.seconds:.0f}", about["date"]
    return [
        _title(report),
        str(score),
        share,
        report.suite,
        about["tercet"],
        about["device"],
        *when,
    ]


def _rows(columns: Sequence[Mapping[str, Score]]) -> Iterable[list[str]]:
    for name in dict.fromkeys(name for column in columns for name in column):
        scores = [column.get(name) for column in columns]
        yield [name, *(str(score) if score and score.passed else "" for score in scores)]


def _gaps(report: ConformanceReport) -> Iterable[str]:
    """Yield the section about cases that a backend does not pass."""
    yield f"## What {_title(report)} does not pass"
    if not report.not_passed:
        yield "Nothing."
        return
    found: dict[tuple[str, str], list[NotPassed]] = {}
    for each in report.not_passed:
        found.setdefault((each.operator or each.case.split("/")[0], each.reason), []).append(each)
    rows = ([name, _cases(cases), reason] for (name, reason), cases in sorted(found.items()))
    yield _table(("operator or category", "cases", "reason"), rows)


def _cases(cases: Sequence[NotPassed]) -> str:
    if len(cases) > _SHOWN_CASES:
        return str(len(cases))
    return ", ".join(f"`{each.case.split('/')[1]}`" for each in cases)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )
