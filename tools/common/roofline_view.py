"""Terminal view of work, limits, and where time is lost."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from .console import bytes_text, count_text, counted, grid, ms_text
from .roofline import Costed, Share

#: What `work_cells` are.
WORK = "FLOP", "bytes", "limit", "of limit", "bound"

#: What the columns mean.
FLOP_NOTE = "FLOP: two per multiply-accumulate."
NOTE = (
    f"{FLOP_NOTE} limit: the shortest time by the rate of the products, of "
    "the memory, or of launches, whichever is longest (bound). A row may be faster where a cache "
    "holds the data, or where an algorithm multiplies less than the specification."
)


def work_cells(row: Costed) -> Sequence[str]:
    """Return the cells of `WORK`, of one call but for the limit."""
    return (
        count_text(2 * row.macs) if row.macs else "",
        bytes_text(row.nbytes) if row.nbytes else "",
        "" if row.limit is None else ms_text(row.limit),
        _percent(row.limit, row.seconds),
        ", ".join(row.factors) if row.bound == "compute" else row.bound,
    )


def _percent(limit: float | None, seconds: float | None) -> str:
    """Return the limit as a part of a time; nothing where it is the limit that is taken for it."""
    return f"{limit / seconds:.0%}" if limit and seconds and limit != seconds else ""


def show_lost(console: Console, shares: Sequence[Share], top: int, time: str = "ms") -> None:
    """Print kinds of kernels, and how much more than their limits they take.

    Args:
        console: where.
        shares: what to print, in this order.
        top: maximum number of lines; 0 for all.
        time: title of the column of times.
    """
    whole = sum(share.lost for share in shares)
    table = grid("kernel", "rows", time, "FLOP", "bytes", "limit", "of limit", "lost", "share")
    shown = shares[: top or None]
    for share in shown:
        table.add_row(
            Text(share.name),
            str(share.rows),
            ms_text(share.seconds),
            count_text(2 * share.macs) if share.macs else "",
            bytes_text(share.nbytes) if share.nbytes else "",
            ms_text(share.limit) if share.limit else "",
            _percent(share.limit, share.limit + share.lost),
            ms_text(share.lost) if share.lost else "",
            f"{share.lost / whole:.1%}" if share.lost else "",
        )
    console.print(table)
    show_rest(console, len(shares) - len(shown), "line")
    console.print(Text(_sum_text(shares), "bold"))
    console.print()


def show_rest(console: Console, rest: int, noun: str) -> None:
    """Print how many lines of a table are not shown, if any."""
    if rest > 0:
        said = f"{counted(rest, f'more {noun}')} not shown; --top 0 shows all"
        console.print(Text(said, "dim"))


def _sum_text(shares: Sequence[Share]) -> str:
    seconds, limit, lost = (
        ms_text(sum(getattr(share, name) for share in shares))
        for name in ("seconds", "limit", "lost")
    )
    worst = ", ".join(f"{share.name} {ms_text(share.lost)}" for share in shares[:3] if share.lost)
    said = f"{seconds} ms, {limit} ms of them within the limits, {lost} ms lost"
    return f"{said}: {worst}" if worst else said
