"""Terminal view of a profile, and of the difference of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from ..common.console import (
    abridged,
    bytes_text,
    caution,
    count_text,
    counted,
    facts,
    grid,
    ms_text,
)
from ..common.roofline import Share
from ..common.roofline_view import NOTE, WORK, show_lost, show_rest, work_cells
from .memory_map import ArenaMap, arena_text
from .peaks import Peaks
from .profile_rows import ProfiledRow
from .profiling import Profile
from .profiling_diff import ProfileDifference

TOP = 15
LEGEND = 6
_GRAPH = (
    "in graph: how much longer the graph of a run takes with the row than with those before it "
    "alone, medians; shares and lost time are of these. "
)
_BARS = " ▁▂▃▄▅▆▇█"


def show_profile(console: Console, found: Profile, top: int = TOP) -> None:
    """Print phases, the slowest rows, operators and shapes, and memory.

    Args:
        console: the console.
        found: the profile.
        top: maximum rows of a table; 0 for all.
    """
    _show_head(console, found)
    if found.rows:
        _show_steps(console, found, top)
    else:
        console.print(Text("no steps: every output is an input or a constant", "dim"))
    caution(console, "not complete", found.stopped)


def _show_steps(console: Console, found: Profile, top: int) -> None:
    _show_rows(console, found, top)
    if found.peaks:
        show_lost(console, found.by_kernel(), top, "in graph" if found.has_graph else "ms")
    _show_shares(console, "operator", found.by_operator(), found.rows_seconds, top)
    _show_shares(console, "shapes", found.by_shape(), found.rows_seconds, top)
    for arena in _largest(found.arenas):
        _show_arena(console, arena)
    _show_sum(console, found)


def _show_head(console: Console, found: Profile) -> None:
    total = found.total
    share = f"p10 {ms_text(total.quantile(0.1))}, p90 {ms_text(total.quantile(0.9))}"
    facts(
        console,
        {
            "model": found.model,
            "backend": f"{found.backend}, {found.precision}",
            "inputs": str(found.inputs),
            "run": f"{ms_text(total.median)} ms, median of {len(total.samples)} ({share})",
            "peaks": "\n".join(map(_peaks_text, found.peaks.values())),
        },
    )
    console.print()
    table = grid("phase", "ms", "share")
    whole = sum(found.phases.values())
    for name, seconds in found.phases.items():
        if seconds:
            table.add_row(name, ms_text(seconds), f"{seconds / whole:.1%}")
    console.print(table)
    console.print()


def _peaks_text(peaks: Peaks) -> str:
    products = {peaks.precision: peaks.flops, **peaks.others}
    said = [
        f"{bytes_text(int(peaks.copy))}/s copied",
        *(f"{count_text(int(rate))}FLOP/s of {name}" for name, rate in products.items()),
        *([f"{peaks.launch * 1e6:.2f} us per launch"] if peaks.launch else []),
        *(
            f"{bytes_text(int(rate))}/s {way}"
            for rate, way in ((peaks.upload, "up"), (peaks.download, "down"))
            if rate
        ),
    ]
    return f"{peaks.device}: {', '.join(said)}, measured with {peaks.backend}"


def _show_rows(console: Console, found: Profile, top: int) -> None:
    graph = found.has_graph
    times = ("alone", "in graph") if graph else ("ms",)
    table = grid("node", "operator", *times, "share", *WORK, left=2)
    rows = [row for row in found.rows if row.seconds is not None]
    rows.sort(key=lambda row: -(row.taken or 0.0))
    whole = sum(row.taken or 0.0 for row in rows)
    shown = rows[: top or None]
    for row in shown:
        table.add_row(*_row_cells(row, whole, graph=graph))
        told = row.details[: top or None]
        left_out = len(row.details) - len(told)
        more = (f"… {counted(left_out, 'more layer')}",) if left_out else ()
        for line in (*((row.kernel,) if told else ()), *told, *more):
            table.add_row(Text(f"  {line}"), style="dim")
    console.print(table)
    show_rest(console, len(rows) - len(shown), "row")
    console.print()


def _row_cells(row: ProfiledRow, whole: float, *, graph: bool) -> Sequence[str | Text]:
    taken = row.taken or 0.0
    times = f" x{row.calls}" if row.calls > 1 else ""
    between = "" if row.in_graph is None else ms_text(row.in_graph)
    return (
        Text(abridged(row.nodes) or row.title),
        Text((abridged(row.operators.split(" + ")) or row.kind) + times),
        ms_text(row.seconds or 0.0),
        *((between,) if graph else ()),
        f"{taken / whole:.1%}" if whole else "-",
        *work_cells(replace(row, seconds=taken)),
    )


def _show_shares(
    console: Console, title: str, shares: Sequence[Share], whole: float, top: int
) -> None:
    table = grid(title, "rows", "ms", "share", "GMAC/s", "GB/s")
    shown = shares[: top or None]
    for share in shown:
        seconds = share.seconds or float("inf")
        table.add_row(
            Text(share.name),
            str(share.rows),
            ms_text(share.seconds),
            f"{share.seconds / whole:.1%}" if whole else "-",
            f"{share.macs / seconds / 1e9:.1f}" if share.macs else "",
            f"{share.nbytes / seconds / 1e9:.1f}" if share.nbytes else "",
        )
    console.print(table)
    show_rest(console, len(shares) - len(shown), "line")
    console.print()


def _largest(arenas: Sequence[ArenaMap]) -> list[ArenaMap]:
    """Return the largest arena of each device."""
    found: dict[str, ArenaMap] = {}
    for arena in arenas:
        if arena.device not in found or arena.nbytes > found[arena.device].nbytes:
            found[arena.device] = arena
    return [arena for arena in found.values() if arena.nbytes]


def _show_arena(console: Console, arena: ArenaMap) -> None:
    lines, letters = arena_text(arena)
    sizes = f"{bytes_text(arena.nbytes)}, {bytes_text(arena.floor)} live at one time"
    console.print(Text(f"arena on {arena.device}: {sizes}; rows from left to right", "dim"))
    for line in lines:
        console.print(Text(f"  |{line}|"))
    console.print(Text(f"  |{_sparkline(arena.live(), len(lines[0]))}| live bytes"))
    for letter, tensor in list(letters.items())[:LEGEND]:
        span = f"rows {max(0, tensor.first)} to {min(tensor.last, arena.rows - 1)}"
        console.print(
            Text(f"  {letter} {tensor.name}, {bytes_text(tensor.nbytes)}, {span}"), overflow="fold"
        )
    console.print()


def _sparkline(live: Sequence[int], columns: int) -> str:
    maximum = max(live, default=0) or 1
    rows = len(live)
    found: list[str] = []
    for column in range(columns):
        first, last = column * rows // columns, max((column + 1) * rows // columns, 1)
        level = max(live[first : max(last, first + 1)], default=0) / maximum
        found.append(_BARS[round(level * (len(_BARS) - 1))])
    return "".join(found)


def _show_sum(console: Console, found: Profile) -> None:
    rows, total = found.rows_seconds, found.total.median
    console.print(
        Text(
            f"rows {ms_text(rows)} ms; with feed and fetch {found.covered:.1%} of an "
            f"uninstrumented run, {ms_text(total)} ms; profiling overhead {found.overhead:+.1%}",
            "bold",
        )
    )
    console.print(
        Text(
            f"Times are means of the middle half of the runs. {_GRAPH if found.has_graph else ''}"
            f"{NOTE}",
            "dim",
        )
    )


def show_difference(console: Console, found: ProfileDifference, top: int = TOP) -> None:
    """Print the rows and operators with the largest changes, and the totals."""
    facts(console, {"before": found.before, "after": found.after})
    console.print()
    for title, changes in (("node", found.rows), ("operator", found.operators)):
        table = grid(title, "before ms", "after ms", "change ms", "ratio")
        shown = changes[: top or None]
        for change in shown:
            pair = (change.before, change.after)
            table.add_row(
                Text(change.name),
                *("-" if ms is None else ms_text(ms / 1e3) for ms in pair),
                f"{change.change:+.3f}",
                "-" if change.ratio is None else f"{change.ratio:.2f}",
            )
        console.print(table)
        show_rest(console, len(changes) - len(shown), "line")
        console.print()
    ratio = "" if found.total.ratio is None else f", ratio {found.total.ratio:.2f}"
    said = f"run: {found.total.before:.3f} ms before, {found.total.after:.3f} ms after{ratio}"
    console.print(Text(said, "bold"))
