"""Terminal view of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from ..common.console import STYLES, caution, counted, facts, grid, ms_text
from ..common.measure import Timing
from .bench_cases import Against, Bench, BenchCase


def show_bench(console: Console, found: Bench) -> None:
    """Print the environment, the cases of each model, and violated limits."""
    facts(console, found.environment)
    for model in dict.fromkeys(case.model for case in found.cases):
        console.print()
        _show_model(console, model, [case for case in found.cases if case.model == model])
    for what, reason in found.skipped.items():
        console.print(Text.assemble((what, "yellow"), f": {reason}"))
    console.print(
        Text(
            "Times are from host arrays to host arrays. cold: first run. warm: second run. steady: "
            "runs after the warm-up. error: relative L2 distance from float64. verdict: whether "
            "rounding explains the difference from float64.",
            "dim",
        )
    )
    if found.against:
        _show_against(console, found.against)
    caution(console, "not complete", found.stopped)
    for complaint in found.complaints:
        console.print(Text(complaint, "bold red"))


def _show_model(console: Console, model: str, found: Sequence[BenchCase]) -> None:
    console.print(Text(model, "bold"))
    cases = [case for case in found if not case.without]
    table = grid("runner", "batch", "load ms", "cold ms", "warm ms", "steps", "error", "verdict")
    for case in {(c.runner, c.precision, c.batch): c for c in cases}.values():
        phases = (ms_text(seconds) for seconds in (case.load, case.cold, case.warm))
        error = "-" if case.error is None else f"{case.error:.0e}"
        steps = "-" if case.steps is None else str(case.steps)
        verdict = Text(case.verdict or "-", STYLES.get(case.verdict or "", "dim"))
        table.add_row(_who(case), str(case.batch), *phases, steps, error, verdict)
    console.print(table)
    console.print()
    table = grid("steady, ms", "batch", "callers", "p10", "p50", "p90", "p99", "items/s")
    for case in cases:
        setting = str(case.batch), str(case.concurrency)
        table.add_row(_who(case), *setting, *_times(case.steady), _rate(case.rate))
        if case.device is not None:
            table.add_row(Text("  device only", "dim"), "", "", *_times(case.device), "")
    console.print(table)
    for case in cases:
        without = [other for other in found if other.without and _same_run(other, case)]
        if without:
            console.print()
            _show_passes(console, case, without)


def _same_run(one: BenchCase, other: BenchCase) -> bool:
    return replace(one, without="").key == replace(other, without="").key


def _show_passes(console: Console, whole: BenchCase, without: Sequence[BenchCase]) -> None:
    """Print what each graph pass is worth: the time without it relative to that with all."""
    setting = f"batch {whole.batch}, {counted(whole.concurrency, 'caller')}"
    console.print(Text(f"graph passes, {_who(whole)}, {setting}"))
    table = grid("", "steps", "p10 ms", "p50 ms", "p90 ms", "ratio to all", "error")
    for case in (whole, *sorted(without, key=_time, reverse=True)):
        table.add_row(
            f"without {case.without}" if case.without else "all passes",
            "-" if case.steps is None else str(case.steps),
            *_times(case.device or case.steady)[:3],
            f"{_time(case) / _time(whole):.2f}",
            "-" if case.error is None else f"{case.error:.0e}",
        )
    console.print(table)


def _time(case: BenchCase) -> float:
    return (case.device or case.steady).median


def _who(case: BenchCase) -> Text:
    exact = case.precision == "float32"
    return Text(case.runner if exact else f"{case.runner}, {case.precision}")


def _times(timing: Timing) -> list[str]:
    return [ms_text(timing.quantile(q)) for q in (0.1, 0.5, 0.9, 0.99)]


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def _show_against(console: Console, found: Sequence[Against]) -> None:
    console.print()
    table = grid("p50 of", "old ms", "new ms", "ratio", "old error", "new error", "")
    styles = {"slower": "bold red", "faster": "green"}
    for each in found:
        details = [each.model, each.runner, f"batch {each.batch}", each.precision]
        if each.concurrency != 1:
            details.append(f"{each.concurrency} callers")
        if each.without:
            details.append(f"without {each.without}")
        errors = ("-" if e is None else f"{e:.0e}" for e in (each.error_before, each.error_after))
        table.add_row(
            Text(", ".join(details)),
            ms_text(each.before / 1e3),
            ms_text(each.after / 1e3),
            f"{each.ratio:.2f}",
            *errors,
            Text(each.verdict, styles.get(each.verdict, "dim")),
        )
    console.print(table)
