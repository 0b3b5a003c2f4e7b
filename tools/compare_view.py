"""A comparison in a terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from .agreement import Agreement
from .compare import Comparison, Result
from .console import PIPE_WIDTH, counted, facts, grid, ms_text

DETAILED_OUTPUTS = 20


def comparison_text(comparison: Comparison) -> str:
    """Return what `show_comparison` prints, without colours."""
    text = io.StringIO()
    show_comparison(
        Console(file=text, width=PIPE_WIDTH, highlight=False, markup=False, emoji=False),
        comparison,
    )
    return text.getvalue().rstrip()


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Print latencies, differences and the verdict."""
    _show_head(console, comparison)
    _show_latencies(console, comparison.results)
    console.print()
    _show_differences(console, comparison)
    if comparison.skipped:
        console.print()
    for name, reason in comparison.skipped.items():
        console.print(Text.assemble((name, "yellow"), f" did not take part: {reason}"))
    _show_verdict(console, comparison)


def _show_head(console: Console, comparison: Comparison) -> None:
    precisions = dict.fromkeys(result.precision for result in comparison.results)
    facts(
        console,
        {
            "model": comparison.model,
            "inputs": str(comparison.inputs),
            "contestants": "\n".join(f"{r.name}: {r.about}" for r in comparison.results),
            "reference": comparison.reference.name,
            "precision": ", ".join(precisions),
        },
    )
    console.print()


def _show_latencies(console: Console, results: Sequence[Result]) -> None:
    table = grid("latency", "load ms", "cold ms", "steady ms", "p10", "p90", "runs", "speed")
    reference = results[0].steady.median
    for result in results:
        steady = result.steady
        speed = reference / steady.median
        table.add_row(
            Text(result.name),
            ms_text(result.load),
            ms_text(result.cold),
            *(ms_text(steady.quantile(q)) if steady.samples else "-" for q in (0.5, 0.1, 0.9)),
            str(len(steady.samples)),
            f"{speed:.2f}x" if steady.samples else "-",
        )
    console.print(table)


def _show_differences(console: Console, comparison: Comparison) -> None:
    table = grid("output", "against", "max abs", "max rel", "rel L2", "allowed", "verdict", left=2)
    rows = [(r, found) for r in comparison.results[1:] for found in r.agreements]
    shown = sorted(rows, key=lambda row: row[1].ok)[:DETAILED_OUTPUTS]
    for result, found in shown:
        table.add_row(
            Text(found.output),
            Text(result.name),
            *(_number(x) for x in (found.max_abs, found.max_rel, found.rel_l2)),
            _allowed(found),
            Text(found.verdict, "green" if found.ok else "bold red"),
        )
    console.print(table)
    if len(rows) > len(shown):
        more = counted(len(rows) - len(shown), "more output")
        console.print(Text(f"{more} not shown; --json has all", "dim"))
    for result, found in shown:
        if found.complaint:
            console.print(
                Text.assemble((f"{found.output} on {result.name}", "red"), f": {found.complaint}")
            )


def _allowed(found: Agreement) -> str:
    return _number(found.tolerance.bound(found.scale))


def _number(value: float) -> str:
    return "0" if value == 0 else "-" if value != value else f"{value:.1e}"


def _show_verdict(console: Console, comparison: Comparison) -> None:
    console.print()
    console.print(
        Text(
            "max rel: max abs by the greatest magnitude of the reference. cold: first run after "
            "loading. steady: median of later runs in turns, arrays in to arrays out.",
            "dim",
        )
    )
    if comparison.ok:
        others = [result.name for result in comparison.results[1:]]
        verb = "agrees" if len(others) == 1 else "agree"
        said = f"{', '.join(others)} {verb} with {comparison.reference.name}"
        console.print(Text(said, "bold green"))
        return
    wrong = [result.name for result in comparison.results if not result.ok]
    said = f"MISMATCH: {', '.join(wrong)} against {comparison.reference.name}"
    console.print(Text(said, "bold red"))
