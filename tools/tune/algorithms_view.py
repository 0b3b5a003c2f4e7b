"""Terminal view of selectors and measurements."""

from __future__ import annotations

from math import inf

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..common.console import bytes_text, counted, grid
from .algorithms import Algorithms, NodeRow
from .tuning import Tuned


def show_algorithms(console: Console, found: Algorithms) -> None:
    """Print the selector of each node; nodes with the same task are merged."""
    console.print(f"for {found.target}")
    tasks: dict[str, list[NodeRow]] = {}
    for row in found.nodes:
        tasks.setdefault(row.task, []).append(row)
    for task, rows in tasks.items():
        console.print()
        console.print(Text(", ".join(row.node for row in rows), style="bold"))
        count = sum(map(len, rows[0].forms.values()))
        forms = f"; {counted(count, 'form')} to measure" if count else ""
        console.print(Text(f"{task}{forms}", style="dim"))
        console.print(_table(rows[0]))


def _table(row: NodeRow) -> Table:
    """Return the table of a selector."""
    table = grid("", "algorithm", "estimate us", "workspace", left=2)
    table.add_column("why not", overflow="fold")
    table.columns[1].no_wrap = True
    for algorithm in row.algorithms:
        cells = [
            "*" if algorithm.chosen else "",
            algorithm.algorithm,
            "" if algorithm.estimate is None else f"{algorithm.estimate:.1f}",
        ]
        workspace = bytes_text(algorithm.workspace) if algorithm.workspace else ""
        table.add_row(*cells, workspace, algorithm.reason)
    return table


def show_tuned(console: Console, found: Tuned) -> None:
    """Print what the network takes before and after each group of equal steps is tuned."""
    table = grid("task", "steps", "by estimates", "fastest", "before us", "after us", left=1)
    for place in (2, 3):
        table.columns[place].justify, table.columns[place].overflow = "left", "fold"
    for group in found.groups:
        table.add_row(
            group.task,
            str(group.steps),
            group.kernel,
            group.chosen or "the same",
            f"{group.before:.1f}",
            f"{group.after:.1f}",
        )
    console.print(table)
    gained = 100 * (1 - found.after / found.before) if found.before else 0.0
    console.print(
        f"{counted(len(found.groups), 'group')} of equal steps, {found.measured} of them measured "
        f"now in {found.seconds:.1f} s; the network takes {found.after:.1f} us, by estimates "
        f"{found.before:.1f} us ({gained:.1f} % less)"
    )


def show_report(console: Console, found: Tuned) -> None:
    """Print all measurements of every group."""
    for group in found.groups:
        console.print()
        console.print(Text(f"{group.task}: {counted(group.steps, 'step')}", style="bold"))
        table = grid("candidate", "change us", "estimate us", "workspace", left=1)
        table.add_column("why not", overflow="fold")
        table.add_row(group.kernel, "0.0", "", "", "")
        for timing in group.timings:
            table.add_row(
                timing.title,
                f"{timing.change:+.1f}" if timing.change < inf else "",
                f"{timing.estimate:.1f}" if timing.estimate < 1e12 else "",
                bytes_text(timing.workspace) if timing.workspace else "",
                timing.reason,
            )
        console.print(table)
    console.print()
    show_tuned(console, found)
