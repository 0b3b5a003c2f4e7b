"""Terminal view of a layer-by-layer comparison."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..common.console import caution, counted, facts, grid
from .importing import NOT_READ
from .layer_matcher import Layer
from .layers import Layers

SHOWN = 12
#: What is said of steps that are nodes of the file.
OF_FILE = "the optimised graph lacks the wrong node: the steps are those of the file's graph"
_STYLES = {
    "wrong": "bold red",
    "inconclusive": "bold yellow",
    "not run": "yellow",
    "random": "dim",
    "not compared": "dim",
    "equal": "dim",
}


def show_layers(console: Console, found: Layers) -> None:
    """Print the first wrong step, then the steps that differ, worst first."""
    for each in (found, *found.others):
        _show_verdict(console, each)
    for finding in found.rewritten:
        said = f"a graph pass changes {finding.agreement.output}: {finding.agreement.reason}"
        style = "bold red" if finding.verdict == "wrong" else "bold yellow"
        console.print(Text(f"{said}; tercet bisect finds the rewrite", style))
    for finding in found.imported:
        where = f", first in {found.imported_in}" if found.imported_in else ""
        said = f"importing changes {finding.agreement.output}{where}: {finding.agreement.reason}"
        style = "bold red" if finding.verdict == "wrong" else "bold yellow"
        console.print(Text(f"{said}; the steps are those of the graph that was read", style))
    if found.of_file:
        console.print(Text(OF_FILE, "dim"))
    caution(console, NOT_READ, found.unread)
    caution(console, "not complete", found.stopped)
    console.print()
    facts(
        console,
        {
            "model": found.model,
            "against": found.other,
            "inputs": str(found.inputs),
            "reference": found.reference,
            "runner": "" if found.others else _runner_text(found),
        },
    )
    for each in (found, *found.others):
        console.print()
        if found.others:
            facts(console, {"runner": _runner_text(each)})
            console.print()
        _show_steps(console, each)


def _runner_text(found: Layers) -> str:
    mode = "the whole graph, tensor by tensor" if found.cumulative else "each step alone"
    return f"{found.runner}, {mode}"


def _show_steps(console: Console, found: Layers) -> None:
    refused = [layer for layer in found.layers if layer.refused and layer.ended is None]
    rows = found.worst[:SHOWN]
    if rows:
        table = grid(
            "step", "nodes", "operators", "max abs", "rounding", "excess", "verdict", left=3
        )
        for layer in rows:
            _add_row(table, layer)
        console.print(table)
        console.print()
    for layer in refused[:SHOWN]:
        console.print(Text.assemble((layer.name, "yellow"), f" was not run: {layer.refused}"))
    for layer in found.layers:
        if layer.repeatable is False:
            said = f" gave other bits in run {layer.unlike} than in the first"
            console.print(Text.assemble((layer.name, "bold red"), said))
    if found.nan:
        console.print(Text(f"the first NaN on {found.runner} is from {found.nan}", "yellow"))
    _show_counts(console, found)


def _add_row(table: Table, layer: Layer) -> None:
    worst = layer.worst
    if worst is None:
        return
    table.add_row(
        str(layer.number),
        Text(layer.name),
        Text(layer.operators),
        _number(worst.agreement.max_abs),
        _number(worst.agreement.tolerance.absolute),
        "-" if layer.excess != layer.excess else f"{layer.excess:.2g}",
        Text(layer.verdict, _STYLES.get(layer.verdict, "")),
    )


def _number(value: float) -> str:
    return "0" if value == 0 else "-" if value != value else f"{value:.1e}"


def _show_counts(console: Console, found: Layers) -> None:
    counts = Counter(layer.verdict for layer in found.layers)
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    if said:
        console.print(Text(f"{counted(len(found.layers), 'step')}: {said}", "dim"))
    if found.runs > 1:
        console.print(
            Text(
                f"{found.runs} runs of each: a step that is wrong in {found.rarest:.1%} of its "
                "runs or more is found in 95% of cases.",
                "dim",
            )
        )
    elif said:
        console.print(
            Text("one run of each: what is wrong in some runs only is found by --runs N", "dim")
        )
    if not found.worst:
        return
    console.print(
        Text(
            "rounding: the largest difference that rounding may cause in an element, measured in "
            "float64. excess: the largest ratio of a difference to what rounding may cause there.",
            "dim",
        )
    )


def _show_verdict(console: Console, found: Layers) -> None:
    """Print the answer: where the runner crashes, and its first wrong step."""
    if not found.layers:
        console.print(Text(f"{found.runner}: no step has been compared", "bold yellow"))
        return
    for layer in found.layers:
        if layer.ended is not None:
            where = f"step {layer.number}, {layer.name} ({layer.operators})"
            console.print(Text(f"CRASH: {found.runner} {layer.ended.cause} in {where}", "bold red"))
    first = found.first
    if first is None and found.whole:
        for finding in found.whole:
            said = f"{finding.agreement.output} of the whole graph: {finding.agreement.reason}"
            console.print(Text(said, "bold yellow"))
        said = f"no step of {found.runner} is wrong alone"
        if found.planned is not None:
            step = f"{found.planned.name} ({found.planned.operators})"
            said = f"{said}, but {step} is in the plan of the whole graph"
            console.print(Text(f"{said}, with the kernel and the layout of there", "bold red"))
            return
        said = f"{said}: --cumulative shows the first wrong tensor"
        console.print(Text(f"{said}, and tercet bisect the step", "bold yellow"))
        return
    if first is None:
        whole = replace(found, others=()).ok
        ran = "" if all(layer.ended is None for layer in found.layers) else " in its other steps"
        agree = f"no mismatch found on {found.runner}{ran}"
        console.print(Text(agree, "bold green" if whole else "bold yellow"))
        return
    said = f"first diverging step: {first.name} ({first.operators})"
    where = f", step {first.number} of {len(found.layers)} on {found.runner}"
    console.print(Text(f"{said}{where}", "bold red"))
    for finding in first.findings:
        if not finding.ok:
            said = f"  {finding.agreement.output}: {finding.agreement.reason}"
            console.print(Text(said))
    _show_inside(console, first)


def _show_inside(console: Console, layer: Layer) -> None:
    """Print which step of which body is wrong, down to the innermost."""
    inside = layer.inside
    if inside is None or inside.first is None:
        return
    first, total = inside.first, len(inside.layers)
    where = f"  in {inside.body}, iteration {inside.iteration}: {first.name} ({first.operators})"
    console.print(Text(f"{where}, step {first.number} of {total}", "bold red"))
    _show_inside(console, first)
