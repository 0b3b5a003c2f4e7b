"""Terminal view of an inspection."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from ...runtime.session.placement import PlacedRow, Placement
from ...runtime.text import printable
from ..common.console import abridged, bytes_text, count_text, counted, facts, grid, listed, ms_text
from ..common.roofline import lost_where
from ..common.roofline_view import FLOP_NOTE, NOTE, WORK, show_lost, work_cells
from .capability import LATER, NOBODY, PASSES, REASON, Capability
from .inspection import Inspection, Passes, memory_dict
from .lint import Finding, first_of
from .pass_texts import differences_of

#: Maximum width of a list of node numbers.
WIDEST = 40

_NOUNS = {
    "view": ("view",),
    "reformat": ("change of format", "changes of format"),
    "copy": ("copy", "copies"),
    "host": ("single node on the host", "single nodes on the host"),
    "later": ("node planned when it first runs", "nodes planned when they first run"),
}


def show_inspection(console: Console, found: Inspection, *, diff: bool = False) -> None:
    """Print everything that was requested.

    Args:
        console: where.
        found: the result.
        diff: whether to show each pass's changes to the graph's text.
    """
    _show_facts(console, found)
    _show_operators(console, found)
    for each in found.strange:
        console.print(Text(printable(f"unknown operator: {each}"), "bold red"))
    if found.strange:
        console.print()
    if found.nodes:
        _show_nodes(console, found)
    if found.passes is not None:
        _show_passes(console, found.passes)
        if diff:
            _show_texts(console, found.passes)
    if found.capabilities is not None:
        _show_capabilities(console, found.backend, found.capabilities)
    if found.placement is not None:
        _show_placement(console, found, found.placement)
        if found.nodes:
            _show_costs(console, found)
    if found.memory is not None:
        _show_memory(console, found)
    if found.findings is not None:
        _show_findings(console, found.findings)


def _show_facts(console: Console, found: Inspection) -> None:
    source = found.source
    opsets = ", ".join(f"{domain or 'ai.onnx'} {v}" for domain, v in source.opsets.items())
    shapes = [f"{name} {'x'.join(map(str, s)) or 'scalar'}" for name, s in found.shapes.items()]
    held = found.constants
    by_dtype = ", ".join(f"{bytes_text(n)} of {name}" for name, n in held.by_dtype.items())
    facts(
        console,
        {
            "model": f"{found.model}, {bytes_text(found.nbytes)}",
            "producer": source.producer,
            "format": f"IR version {source.ir_version}, opset {opsets}",
            "metadata": "\n".join(printable(f"{k} = {v}") for k, v in source.metadata.items()),
            "warnings": "\n".join(map(printable, source.warnings)),
            "inputs": "\n".join(map(str, found.inputs)),
            "outputs": "\n".join(map(str, found.outputs)),
            "parameters": f"{held.parameters:,}" + (f" ({by_dtype})" if by_dtype else ""),
            "costs for": found.note or listed(shapes),
            "MACs": "" if found.note else _macs_text(found),
            "activations": "" if found.activations is None else _activations_text(found),
        },
    )
    console.print()


def _macs_text(found: Inspection) -> str:
    unit = f" ({count_text(found.macs)})" if found.macs >= 1000 else ""
    unknown = f"; not known for {counted(found.unknown, 'node')}" if found.unknown else ""
    return f"{found.macs:,}{unit}{unknown}"


def _activations_text(found: Inspection) -> str:
    return f"{bytes_text(found.activations or 0)}: all that nodes compute from inputs"


def _show_operators(console: Console, found: Inspection) -> None:
    table = grid("operator", "nodes", "MACs", "share", "parameters")
    for row in found.operators:
        share = f"{row.macs / found.macs:.1%}" if row.macs else ""
        macs = "?" if row.unknown else f"{row.macs:,}" if row.macs else ""
        parameters = f"{row.parameters:,}" if row.parameters else ""
        table.add_row(Text(row.operator), str(row.nodes), macs, share, parameters)
    table.add_section()
    total = f"{found.macs:,}", "", f"{found.constants.parameters:,}"
    table.add_row("all", str(sum(row.nodes for row in found.operators)), *total)
    console.print(table)
    console.print()


def _show_nodes(console: Console, found: Inspection) -> None:
    table = grid("no.", "node", "operator", "output", "MACs", "share", "params", "bytes", left=4)
    for row in found.nodes:
        macs = "?" if row.macs is None else count_text(row.macs) if row.macs else ""
        table.add_row(
            str(row.number),
            Text(row.name),
            Text(row.operator),
            Text(row.output.replace("float32", "")),
            macs,
            f"{row.macs / found.macs:.1%}" if row.macs else "",
            count_text(row.parameters) if row.parameters else "",
            "" if not row.nbytes else bytes_text(row.nbytes),
        )
    console.print(table)
    console.print()


def _show_texts(console: Console, passes: Passes) -> None:
    """Print the changes of each pass as a diff."""
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for name, difference in differences_of(passes.texts):
        console.print(Text(name, "bold"))
        for line in difference.splitlines():
            style = "" if line.startswith(("+++", "---")) else styles.get(line[:1], "dim")
            console.print(Text(line, style), overflow="fold")
        console.print()


def _show_capabilities(console: Console, backend: str, capabilities: Sequence[Capability]) -> None:
    """Print which backend runs which operators, unsupported ones first."""
    table = grid("operator", "nodes", "runs on", "numbers", left=4)
    styles = {NOBODY: "bold red", PASSES: "dim", LATER: "yellow", "plan": "dim"}
    who = {PASSES: "removed", LATER: "when run", "plan": "view"}
    for row in capabilities:
        runs_on = Text(who.get(row.backend, row.backend), styles.get(row.backend, ""))
        table.add_row(Text(row.operator), str(row.nodes), runs_on, Text(_shortened(row.where)))
        if row.reason and row.backend not in (LATER, "host"):
            table.add_row(Text(f"  {row.reason}", "dim"), "", "", "")
    console.print(table)
    missing = sum(row.nodes for row in capabilities if not row.ok)
    if missing:
        unknown = sum(row.nodes for row in capabilities if row.reason == REASON)
        said = f"{backend}: {counted(missing, 'node')} would not run"
        if missing > unknown:
            said += f"; --fallback numpy runs {'it' if missing - unknown == 1 else 'them'}"
        if unknown:
            said += "; --operators FILE.py defines unknown operators"
        console.print(Text(said, "bold red"))
    elif any(row.backend == LATER for row in capabilities):
        said = (
            f"{backend} runs everything that is known before a run; "
            "bodies and data-dependent shapes are planned during it"
        )
        console.print(Text(said, "bold yellow"))
    else:
        console.print(Text(f"{backend} runs the whole model", "bold green"))
    console.print()


def _shortened(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[: text.rindex(',', 0, WIDEST)]}, …"


def _show_passes(console: Console, passes: Passes) -> None:
    table = grid("pass", "rewrites")
    for name, count in passes.counts.items():
        table.add_row(Text(name), str(count))
    if passes.counts:
        console.print(table)
        console.print()
    table = grid("operator", "before", "after")
    for kind, (before, after) in passes.operators.items():
        style = "bold" if before != after else "dim"
        table.add_row(Text(kind), str(before), str(after), style=style)
    table.add_section()
    numbers = zip(*passes.operators.values(), strict=True)
    table.add_row("all nodes", *(str(sum(column)) for column in numbers))
    pair = passes.before, passes.after
    table.add_row("bytes of constants", *(f"{c.nbytes:,}" for c in pair))
    table.add_row("parameters", *(f"{c.parameters:,}" for c in pair))
    console.print(table)
    for refused in passes.refused:
        console.print(Text(f"{refused.name}: {refused.text}", style="yellow"))
    console.print()


def _show_placement(console: Console, found: Inspection, placement: Placement) -> None:
    table = grid("node", "operator", "runs on", "kernel", left=4)
    for row in placement:
        title, operator = _titles(row)
        style = "yellow" if row.kind in ("copy", "reformat") else ""
        table.add_row(Text(title), Text(operator), row.backend, Text(row.kernel), style=style)
        for line in filter(None, (row.reason, *row.details)):
            table.add_row(Text(f"  {line}"), "", "", "", style="dim")
    console.print(table)
    console.print(Text(_placement_summary(found.backend, placement), "dim"))
    for line in found.floats:
        console.print(Text(line, style="yellow"))
    console.print()


def _show_costs(console: Console, found: Inspection) -> None:
    costs = [each for each in found.costs if each.kind != "view"]
    has_times = found.rates is not None
    table = grid("node", "kernel", *(("estimate", *WORK) if has_times else WORK[:2]), left=2)
    for each in costs:
        row, cells = each.row, work_cells(each)
        estimate = "" if row.estimate is None else ms_text(row.estimate)
        numbers = (estimate, *cells) if has_times else cells[:2]
        table.add_row(Text(_titles(row)[0]), Text(row.kernel), *numbers)
    console.print(table)
    if has_times:
        console.print()
        show_lost(console, lost_where(costs), 0, "estimate")
    console.print(Text(f"Times are milliseconds. {NOTE}" if has_times else FLOP_NOTE, "dim"))
    console.print()


def _titles(row: PlacedRow) -> tuple[str, str]:
    if row.nodes:
        return abridged(row.nodes), abridged(row.operators.split(" + "))
    return f"{', '.join(row.inputs)}, {bytes_text(row.nbytes)}", row.kind


def _placement_summary(backend: str, placement: Placement) -> str:
    steps: dict[str, int] = {}
    runs = [row for row in placement if row.backend != NOBODY]
    for row in runs:
        if row.kind == "step":
            steps[row.backend] = steps.get(row.backend, 0) + 1
    said = [f"{counted(count, 'step')} on {name}" for name, count in steps.items()]
    for kind, nouns in _NOUNS.items():
        rows = [row for row in runs if row.kind == kind]
        moved = sum(row.nbytes for row in rows)
        if rows:
            said.append(counted(len(rows), *nouns) + (f" of {bytes_text(moved)}" if moved else ""))
    if missing := sum(row.backend == NOBODY for row in placement):
        said.append(f"{counted(missing, 'node')} that nothing runs")
    return f"{backend}: {', '.join(said) or 'nothing to do in a run'}"


def _show_memory(console: Console, found: Inspection) -> None:
    if found.memory is None:
        return
    titles = ("arena", "floor", "no reuse", "workspace", "sum", "weights")
    table = grid(f"memory, {found.backend}", *titles)
    for device, kinds in memory_dict(found.memory).items():
        table.add_row(device, *(bytes_text(nbytes) for nbytes in kinds.values()))
    console.print(table)
    console.print(
        Text(
            "arena: memory of all activations. floor: the most bytes alive at one time, a lower "
            "bound for every arena. workspace: the maximum of all steps, which share it, beside "
            "their sum.",
            "dim",
        )
    )


def _show_findings(console: Console, findings: Sequence[Finding]) -> None:
    for each in findings:
        console.print(Text(printable(f"{each.rule}: {each.text}"), "yellow"), overflow="fold")
        console.print(Text(printable(f"  at {first_of(each.nodes)}"), "dim"), overflow="fold")
        console.print(Text(f"  {each.advice}"), overflow="fold")
    said = counted(len(findings), "slow pattern") if findings else "no slow patterns found"
    console.print(Text(said, "bold yellow" if findings else "bold green"))
