"""Terminal view of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from ..common.console import STYLES, caution, counted, facts, grid, ms_text
from ..verdict.agreement import Agreement, Word
from ..verdict.differences import Differences
from ..verdict.error_bounds import WORDS
from .compare import Comparison, ComparisonResult

DETAILED_OUTPUTS = 20
#: Outputs of a runner whose reasons are told at once.
REASONS = 6
#: Maximum runners side by side in a table of statistics.
ABREAST = 4


def show_comparison(console: Console, comparison: Comparison, *, stats: bool = False) -> None:
    """Print the verdict, then latencies and differences.

    Args:
        console: where.
        comparison: the result.
        stats: whether to show the distribution of differences for all outputs; always shown for
            wrong ones.
    """
    _show_verdict(console, comparison)
    _show_head(console, comparison)
    _show_latencies(console, comparison.results)
    _show_differences(console, comparison)
    _show_statistics(console, comparison, everything=stats)
    if comparison.skipped:
        console.print()
    for name, reason in comparison.skipped.items():
        console.print(Text.assemble((name, "yellow"), f" did not take part: {reason}"))
    _show_legend(console, comparison)


def _show_head(console: Console, comparison: Comparison) -> None:
    precisions = dict.fromkeys(result.precision for result in comparison.results)
    facts(
        console,
        {
            "model": comparison.model,
            "inputs": str(comparison.inputs),
            "runners": "\n".join(map(_about, comparison.results)),
            "reference": comparison.reference.name,
            "precision": ", ".join(precisions),
        },
    )
    console.print()


def _about(result: ComparisonResult) -> str:
    exact = "" if result.error is None else f"; {result.error:.0e} from float64"
    return f"{result.name}: {result.about}{exact}"


def _show_latencies(console: Console, results: Sequence[ComparisonResult]) -> None:
    table = grid("latency", "load ms", "cold ms", "steady ms", "p10", "p90", "runs", "speed")
    reference = results[0].steady.median
    for result in results:
        steady = result.steady
        if not steady.samples and result.load != result.load:
            continue  # saved outputs
        speed = reference / steady.median
        table.add_row(
            Text(result.name),
            ms_text(result.load),
            ms_text(result.cold),
            *(ms_text(steady.quantile(q)) if steady.samples else "-" for q in (0.5, 0.1, 0.9)),
            str(len(steady.samples)),
            f"{speed:.2f}x" if speed == speed else "-",
        )
    if table.row_count:
        console.print(table)


def _show_differences(console: Console, comparison: Comparison) -> None:
    table = grid("output", "against", "max abs", "max rel", "rel L2", "rounding", "verdict", left=2)
    rows = [(r, found) for r in comparison.results[1:] for found in r.agreements]
    if not rows:
        return
    console.print()
    shown = sorted(rows, key=lambda row: -WORDS.index(row[1].verdict))[:DETAILED_OUTPUTS]
    for result, found in shown:
        table.add_row(
            Text(found.output),
            Text(result.name),
            *(_number(x) for x in (found.max_abs, found.max_rel, found.rel_l2)),
            _allowed(found),
            Text(found.verdict, STYLES[found.verdict]),
        )
    console.print(table)
    if len(rows) > len(shown):
        more = counted(len(rows) - len(shown), "more output")
        console.print(Text(f"{more} not shown; --json has all", "dim"))
    _show_not_finite(console, comparison.results[1:])


def _show_not_finite(console: Console, results: Sequence[ComparisonResult]) -> None:
    """Say which outputs have NaN or infinities, which no difference shows where all agree."""
    rows = [(r, found) for r in results for found in r.agreements if found.nan or found.inf]
    for result, found in rows[:REASONS]:
        kinds = (found.nan, "NaN", "NaN"), (found.inf, "infinity", "infinities")
        said = " and ".join(counted(*kind) for kind in kinds if kind[0])
        console.print(Text(f"{found.output} on {result.name} has {said}", "yellow"))
    if rows:
        console.print(Text("tercet run names the first node that makes them", "dim"))


#: The rows of `_show_statistics`.
_STATISTICS: dict[str, Callable[[Differences], str]] = {
    "mean abs": lambda d: _number(d.mean),
    "median": lambda d: _number(d.median),
    "90 % below": lambda d: _number(d.p90),
    "99 % below": lambda d: _number(d.p99),
    "99.9 % below": lambda d: _number(d.p999),
    "cosine": lambda d: "-" if d.cosine != d.cosine else f"{d.cosine:.9f}",
    "PSNR": lambda d: "-" if abs(d.psnr) == float("inf") else f"{d.psnr:.1f} dB",
    "ulp, 99 % below": lambda d: "" if d.ulp_p99 is None else f"{d.ulp_p99:,.0f}",
    "ulp, most": lambda d: "" if d.ulp is None else f"{d.ulp:,}",
    "top-1 the same": lambda d: "" if d.top1 is None else f"{d.top1:.1%}",
    "top-5 the same": lambda d: "" if d.top5 is None else f"{d.top5:.1%}",
}


def _show_statistics(console: Console, comparison: Comparison, *, everything: bool) -> None:
    """Print a table for each output, with one column per runner."""
    outputs = dict.fromkeys(f.output for r in comparison.results for f in r.agreements)
    for output in outputs:
        columns = {
            result.name: found.differences
            for result in comparison.results
            for found in result.agreements
            if found.output == output and found.differences and (everything or not found.ok)
        }
        names = list(columns)
        for at in range(0, len(names), ABREAST):
            _show_columns(
                console, output, {name: columns[name] for name in names[at : at + ABREAST]}
            )


def _show_columns(console: Console, output: str, columns: Mapping[str, Differences | None]) -> None:
    console.print()
    table = grid(output, *columns)
    for title, text in _STATISTICS.items():
        cells = ["" if found is None else text(found) for found in columns.values()]
        if any(cells):
            table.add_row(Text(title), *cells)
    console.print(table)


def _allowed(found: Agreement) -> str:
    return _number(found.tolerance.bound(found.scale))


def _number(value: float) -> str:
    return "0" if value == 0 else "-" if value != value else f"{value:.1e}"


def _show_verdict(console: Console, comparison: Comparison) -> None:
    """Print the answer: crashes, then what disagrees, the worst first, or that all agree.

    What a file allows may be why they do.
    """
    others, reference = comparison.results[1:], comparison.reference.name
    for end in comparison.ended:
        console.print(Text(f"CRASH: {end}", STYLES["MISMATCH"]))
    for word in ("MISMATCH", "inconclusive"):
        named = [result for result in others if result.verdict == word]
        if named:
            said = f"{word}: {', '.join(result.name for result in named)} against {reference}"
            console.print(Text(said, STYLES[word]))
        for result in named:
            _show_reasons(console, result, word)
    if others and all(result.ok for result in others):
        verb = "agrees" if len(others) == 1 else "agree"
        said = f"{', '.join(result.name for result in others)} {verb} with {reference}"
        console.print(Text(said, "bold green"))
        for result in others:
            _show_reasons(console, result, "ok")
    caution(console, "not complete", comparison.stopped)
    console.print()


def _show_reasons(console: Console, result: ComparisonResult, word: Word) -> None:
    own = [found for found in result.agreements if found.verdict == word and found.reason]
    for found in own[:REASONS]:
        name = f"  {found.output} on {result.name}"
        console.print(Text.assemble((name, STYLES[word]), f": {found.reason}"))
    if len(own) > REASONS:
        more = counted(len(own) - REASONS, "more output")
        console.print(Text(f"  {more} of {result.name}; see the table", "dim"))


def _show_legend(console: Console, comparison: Comparison) -> None:
    if len(comparison.results) < 2:
        return
    console.print()
    console.print(
        Text(
            "max rel: max abs divided by the largest magnitude of the reference. "
            "rounding: the largest difference that it may cause in an element, "
            f"{_bounds_text(comparison)}. cold: "
            "first run after loading. steady: median of later runs, interleaved, arrays in to "
            f"arrays out.{_chance_text(comparison.results)}",
            "dim",
        )
    )


def _chance_text(results: Sequence[ComparisonResult]) -> str:
    """Return in which share of its runs a runner must be wrong for that to be seen."""
    ran = [each for each in results if each.load == each.load]  # saved outputs have no runs
    shares = [f"{each.rarest:.1%} of {each.name}'s ({each.compared} compared)" for each in ran]
    if not shares:
        return ""
    said = "A fault that only some runs have is found in 95% of cases if it spoils at least"
    return f" {said} {', '.join(shares)}."


def _bounds_text(comparison: Comparison) -> str:
    """Return a description of the bounds' origin."""
    origins = {f.tolerance.origin for r in comparison.results for f in r.agreements}
    said = {
        "float64": "measured in float64",
        "dtype": "by its dtype",
        "given": "given by rtol and atol",
    }
    return ", or ".join(text for origin, text in said.items() if origin in origins)
