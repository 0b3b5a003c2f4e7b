"""Terminal view of nodes that must stay float32."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ..common.console import caution, counted, facts, grid
from .precision import PrecisionResult

SHOWN = 15


def show_kept(console: Console, found: PrecisionResult) -> None:
    """Print the errors, the most expensive nodes, and the option that meets the tolerance."""
    facts(
        console,
        {
            "model": found.model,
            "inputs": str(found.inputs),
            "backend": found.backend,
            "nodes in 16 bits": f"{len(found.candidates)} could compute in {found.precision}",
            "tolerance": f"{found.tolerance:g} of the greatest magnitude",
            "runs": str(found.runs),
        },
    )
    console.print()
    table = grid("nodes kept in float32", "error")
    table.add_row("none", f"{found.error_half:.1e}")
    if found.keep and len(found.keep) < len(found.candidates):
        table.add_row(f"{len(found.keep)} of them", f"{found.error:.1e}")
    table.add_row("all", f"{found.error_float32:.1e}")
    console.print(table)
    console.print()
    if found.alone:
        _show_worst(console, found)
    caution(console, "not complete", found.stopped)
    _show_verdict(console, found)


def _show_worst(console: Console, found: PrecisionResult) -> None:
    table = grid("node", f"error in {found.precision} alone", "")
    rows = found.table()
    for row in rows[:SHOWN]:
        kept = Text("stays float32", "yellow") if row["keep"] else Text("")
        error = row["error_alone"]
        table.add_row(Text(row["node"]), "-" if error is None else f"{error:.1e}", kept)
    console.print(table)
    if len(rows) > SHOWN:
        console.print(
            Text(f"{counted(len(rows) - SHOWN, 'more node')} not shown; --json has all", "dim")
        )
    console.print()


def _show_verdict(console: Console, found: PrecisionResult) -> None:
    if not found.ok:
        said = "the tolerance cannot be kept: float32 itself is further off"
        console.print(Text(said, "bold red"))
    elif not found.keep:
        said = f"all nodes meet the tolerance in {found.precision}"
        console.print(Text(said, "bold green"))
    else:
        few = "" if found.stopped else ", of which none can be spared"
        said = f"{counted(len(found.keep), 'node')} must stay float32{few}:"
        console.print(Text(said, "bold"))
        option = f"--precision {found.precision} --keep-float32 '{','.join(found.keep)}'"
        console.print(Text(option), overflow="fold", soft_wrap=True)
