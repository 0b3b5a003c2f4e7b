"""Terminal view of a conformance report, and its progress bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from ..common.console import counted, facts, grid, open_console
from .report import ConformanceReport, NotPassed
from .run import Tell


@contextmanager
def progress_bar() -> Iterator[Tell]:
    """Yield a function that updates the progress; shown on a terminal only."""
    console = open_console(stderr=True)
    if not console.is_terminal:
        yield lambda done, of: None
        return
    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:

        def tell(done: int, of: int) -> None:
            if not bar.tasks:  # the number of cases is known only now
                bar.add_task("cases", total=of)
            bar.update(bar.tasks[0].id, completed=done, total=of)

        yield tell


def show_report(console: Console, report: ConformanceReport) -> None:
    """Print the scores, the cases that did not pass with reasons, and the verdict."""
    behind = f", then {report.fallback}" if report.fallback else ""
    score = report.score
    facts(
        console,
        {
            "suite": f"onnx {report.suite}",
            "backend": f"{report.backend}{behind} on {report.environment['device']}",
            "score": f"{score.passed} of {score.cases} ({score.passed / score.cases:.1%})",
            "time": f"{report.seconds:.0f} s",
        },
    )
    console.print()
    _show_categories(console, report)
    _show_operators(console, report)
    known = [found for found in report.not_passed if found.expected]
    _show_cases(console, "not passed, as expected", known)
    _show_cases(console, "NOT PASSED", report.unexpected)
    if report.surprises:
        console.print(Text("PASSED, but expected to fail", "bold red"))
        for case in report.surprises:
            console.print(Text(f"  {case}"))
        console.print()
    console.print(_verdict(report))


def _show_categories(console: Console, report: ConformanceReport) -> None:
    table = grid("category", "passed", "unsupported", "failed", "cases")
    for name, score in report.categories.items():
        statuses = [f.status for f in report.not_passed if f.case.split("/")[0] == name]
        counts = score.passed, statuses.count("unsupported"), statuses.count("failed"), score.cases
        table.add_row(name, *map(str, counts))
    console.print(table)
    console.print()


def _show_operators(console: Console, report: ConformanceReport) -> None:
    if not report.operators:
        return
    gaps = {name: score for name, score in report.operators.items() if not score.is_full}
    full = counted(len(report.operators) - len(gaps), "operator")
    if not gaps:
        console.print(f"all cases of {full} pass\n")
        return
    table = grid("operator", "passed", "cases")
    for name, score in gaps.items():
        table.add_row(Text(name), str(score.passed), str(score.cases))
    console.print(table)
    console.print(f"all cases of {full} pass\n")


def _show_cases(console: Console, title: str, cases: Sequence[NotPassed]) -> None:
    if not cases:
        return
    console.print(Text(title, "bold"))
    for reason, names in by_reason(cases).items():
        console.print(Padding(Text(", ".join(names)), (0, 0, 0, 2), expand=False))
        console.print(Padding(Text(reason, "dim"), (0, 0, 0, 4), expand=False))
    console.print()


def by_reason(cases: Sequence[NotPassed]) -> dict[str, list[str]]:
    """Return the ids of cases by the reason why they did not pass."""
    found: dict[str, list[str]] = {}
    for each in cases:
        found.setdefault(each.reason, []).append(each.case)
    return found


def _verdict(report: ConformanceReport) -> Text:
    if report.ok:
        return Text("everything is as expected", "green")
    said = []
    if report.unexpected:
        said.append(f"{counted(len(report.unexpected), 'unexpected failure')}")
    if report.surprises:
        said.append(f"{counted(len(report.surprises), 'case')} passed but expected to fail")
    return Text("; ".join(said), "bold red")
