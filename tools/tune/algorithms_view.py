"""Terminal view of selectors and measurements."""

from __future__ import annotations

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
    """Return the table of a selector, with measurements if there are any."""
    measured = any(algorithm.measured is not None for algorithm in row.algorithms)
    titles = ["", "algorithm", "estimate us", *(["measured us"] if measured else []), "workspace"]
    table = grid(*titles, left=2)
    table.add_column("why not", overflow="fold")
    table.columns[1].no_wrap = True
    for algorithm in row.algorithms:
        cells = [
            "*" if algorithm.chosen else "",
            f"{algorithm.algorithm} {algorithm.form}".strip(),
            "" if algorithm.estimate is None else f"{algorithm.estimate:.1f}",
        ]
        if measured:
            cells.append("" if algorithm.measured is None else f"{algorithm.measured:.1f}")
        workspace = bytes_text(algorithm.workspace) if algorithm.workspace else ""
        table.add_row(*cells, workspace, algorithm.reason)
    return table


def show_tuned(console: Console, found: Tuned) -> None:
    """Print the fastest algorithm of every task, next to the one chosen by estimates."""
    table = grid("task", "nodes", "fastest", "us", "heuristic", "us", "regret", left=1)
    for place in (2, 4):
        table.columns[place].justify, table.columns[place].overflow = "left", "fold"
    for row in found.rows:
        best = row.result.best
        chosen = row.heuristic
        table.add_row(
            row.result.task,
            str(row.nodes),
            best.title,
            f"{best.microseconds:.1f}",
            chosen.algorithm,
            f"{chosen.microseconds:.1f}",
            f"{100 * row.result.regret:.1f} %",
        )
    console.print(table)
    console.print(
        f"{counted(len(found.rows), 'task')}, {found.measured} of them measured now in "
        f"{found.seconds:.1f} s; all nodes together {found.best:.1f} us, "
        f"by the heuristic {found.heuristic:.1f} us (regret {100 * found.regret:.1f} %)"
    )


def show_report(console: Console, found: Tuned) -> None:
    """Print all measurements of every task."""
    for row in found.rows:
        console.print()
        console.print(Text(row.result.task, style="bold"))
        table = grid("algorithm", "us", "estimate us", "workspace", "error", left=1)
        table.add_column("why not", overflow="fold")
        for timing in row.result.timings:
            measured = not timing.reason
            table.add_row(
                timing.title,
                f"{timing.microseconds:.1f}" if measured else "",
                f"{timing.estimate:.1f}" if timing.estimate < 1e12 else "",
                bytes_text(timing.workspace) if timing.workspace else "",
                f"{timing.error:.1e}" if measured else "",
                timing.reason,
            )
        console.print(table)
    console.print()
    show_tuned(console, found)
