"""Terminal view of an export."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import ValueInfoProto
from rich.console import Console
from rich.text import Text

from ..common.console import STYLES, bytes_text, counted, facts, grid
from .writing import ExportResult


def show_exported(console: Console, found: ExportResult) -> None:
    """Print the file, the numbers of nodes before and after, and the verdict."""
    opsets = ", ".join(f"{domain or 'ai.onnx'} {v}" for domain, v in found.opsets.items())
    size, external = found.nbytes
    written = f"{found.file}, {bytes_text(size)}"
    if external:
        written += f", and {bytes_text(external)} in {found.file}.data"
    facts(
        console,
        {
            "model": found.model,
            "written": written,
            "format": f"IR version {found.proto.ir_version}, opset {opsets}",
            "inputs": _values(found.proto.graph.input),
            "outputs": _values(found.proto.graph.output),
            "rewrites": ", ".join(f"{count} {name}" for name, count in found.rewrites.items()),
            "frozen": ", ".join(found.frozen),
            "folded into it": ", ".join(found.folded),
        },
    )
    console.print()
    table = grid("operator", "before", "after")
    for kind, (before, after) in found.operators.items():
        table.add_row(Text(kind), str(before), str(after), style="bold" if before != after else "")
    table.add_section()
    table.add_row("all nodes", *map(str, found.nodes))
    console.print(table)
    if found.inputs is not None:
        _show_check(console, found)


def _values(values: Iterable[ValueInfoProto]) -> str:
    return ", ".join(value.name for value in values)


def _show_check(console: Console, found: ExportResult) -> None:
    console.print()
    console.print(Text(f"checked on {found.inputs}", "dim"))
    for result in found.agreements:
        if result.reason:
            console.print(
                Text.assemble((result.output, STYLES[result.verdict]), f": {result.reason}")
            )
    if found.ok:
        worst = max((result.max_abs for result in found.agreements), default=0.0)
        outputs = counted(len(found.agreements), "output")
        said = (
            f"{outputs} equal to the original"
            if worst == 0
            else f"{outputs} within rounding: {worst:.1e}"
        )
        console.print(Text(said, "bold green"))
    elif found.verdict == "inconclusive":
        said = "inconclusive: what was written may compute something else"
        console.print(Text(said, STYLES[found.verdict]))
    else:
        console.print(Text("MISMATCH: what was written computes something else", "bold red"))
