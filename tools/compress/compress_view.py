"""Terminal view of a compressed model."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ..common.console import bytes_text, facts, grid
from .compress import Compression


def show_compression(console: Console, found: Compression) -> None:
    """Print the file, each weight, and the changes of outputs."""
    size, external = found.exported.nbytes
    where = str(found.exported.file or "in memory")
    facts(
        console,
        {
            "model": found.exported.model,
            "written": f"{where}, {bytes_text(size + external)}",
            "constants": f"{bytes_text(found.before)} before, {bytes_text(found.after)} after: "
            f"{_ratio(found.before, found.after)}",
            "Huffman codes": f"would need {bytes_text(found.huffman)}: "
            f"{_ratio(found.before, found.huffman)}",
        },
    )
    console.print()
    table = grid("weights of layer", "elements", "density", "values", "before", "after", "error")
    for each in found.weights:
        table.add_row(
            Text(f"{each.name} of {each.node}"),
            f"{each.elements:,}",
            f"{each.density:.1%}",
            f"{each.values}" if each.values else "all",
            bytes_text(each.before),
            bytes_text(each.after),
            f"{each.error:.1e}",
        )
    if found.weights:
        console.print(table)
    else:
        console.print("nothing compressed: no weights have two axes and --min-elements elements")
    console.print()
    console.print(Text(f"both models on {found.inputs}", "dim"))
    table = grid("output", "error", "same top 1")
    for output in found.outputs:
        table.add_row(Text(output.name), f"{output.error:.1e}", f"{output.top1:.1%}")
    console.print(table)
    console.print(
        Text("error: relative L2 distance from the original; nothing was retrained", "dim")
    )


def _ratio(before: int, after: int) -> str:
    return f"{before / max(after, 1):.1f}x"
