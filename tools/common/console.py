"""Console output: tables, numbers, JSON, and progress."""

from __future__ import annotations

import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from errno import EPIPE
from threading import Timer
from time import monotonic
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ...runtime.text import message
from .stacked import stacked

if TYPE_CHECKING:
    from ...runtime.session.model import Model

PIPE_WIDTH = 80
MAX_COLUMNS = 100_000
QUIET_SECONDS = 1.0

#: Number of names shown from the start and the end of a long list.
_ENDS = 3
#: Number of lines of a longer list that are shown.
MAX_LISTED = 20
#: Called with the current activity, any number of times.
Say = Callable[[str], None]

#: How verdicts are printed.
STYLES: Mapping[str, str] = {"ok": "green", "inconclusive": "bold yellow", "MISMATCH": "bold red"}


def silent(text: str) -> None:
    """Ignore progress messages."""


def open_console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, else `PIPE_WIDTH` ($COLUMNS) columns.

    In a pipe, tables are as wide as necessary, so that `grep` finds every name unbroken.
    """
    stream = sys.stderr if stderr else sys.stdout
    piped = not (stream.isatty() or "COLUMNS" in os.environ)
    console = SafeConsole(
        file=stream,
        width=PIPE_WIDTH if piped else None,
        highlight=False,
        emoji=False,
        markup=False,
    )
    console.widens = piped
    return console


class SafeConsole(Console):
    """A console that shows control characters in names instead of sending them to the terminal.

    Every text passes through `render`, whatever table or panel contains it.

    Attributes:
        widens: whether tables may exceed the console's width instead of breaking names.
    """

    widens = False

    def print(self, *objects: Any, crop: bool | None = None, **style: Any) -> None:
        """Print like rich."""
        super().print(*objects, crop=not self.widens if crop is None else crop, **style)

    def on_broken_pipe(self) -> None:
        """Leave it to the command line, which has an exit code for it."""
        raise BrokenPipeError(EPIPE, "the reader of the output has gone")

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render like rich, with texts escaped by `message`."""
        if isinstance(renderable, str):
            renderable = message(renderable)
        elif isinstance(renderable, Text):
            renderable = _escaped(renderable)
        elif self.widens and isinstance(renderable, Table):
            wide = (options or self.options).update(max_width=MAX_COLUMNS)
            options = wide.update(max_width=Measurement.get(self, wide, renderable).maximum)
        elif isinstance(renderable, Table) and renderable.show_header:
            found = stacked(self, renderable, options or self.options)
            renderable = renderable if found is None else found
        return super().render(renderable, options)


def _escaped(text: Text) -> Text:
    """Return the text escaped by `message`; a changed text loses the styles of its parts."""
    plain = message(text.plain)
    return text if plain == text.plain else text.blank_copy(plain)


def lines(text: str) -> RenderableType:
    """Return our own multi-line text, aligned with its first line."""
    return Group(*map(Text, text.split("\n")))


def text_of(show: Callable[[Console, Any], None], found: Any) -> str:
    """Return the output of a view, without colours, in `PIPE_WIDTH` columns."""
    text = io.StringIO()
    console = SafeConsole(file=text, width=PIPE_WIDTH, highlight=False, markup=False, emoji=False)
    show(console, found)
    return text.getvalue().rstrip()


class Remaining:
    """Estimates the remaining time of a stage from texts such as ``step 3 of 20``."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._stage, self._begin, self._first = "", 0.0, 0

    def of(self, text: str) -> str:
        """Return ``, about 12 s left`` if it can be estimated, else nothing."""
        match = re.search(r"(\d+) of (\d+)", text)
        if match is None:
            return ""
        done, total = int(match[1]), int(match[2])
        stage = f"{text[: match.start()]}/{total}"
        if stage != self._stage or done < self._first:
            self._stage, self._begin, self._first = stage, self._now(), done
        if done == self._first or done > total:
            return ""
        left = (self._now() - self._begin) / (done - self._first) * (total - done + 1)
        return f", about {left:.0f} s left"


@contextmanager
def progress() -> Iterator[Say]:
    """Yield a function that shows the current stage, on a terminal, after a second."""
    console = open_console(stderr=True)
    if not console.is_interactive:
        yield silent
        return
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("working", total=None)
    timer = Timer(QUIET_SECONDS, bar.start)
    timer.daemon = True
    timer.start()
    remaining = Remaining()
    try:
        yield lambda text: bar.update(task, description=text + remaining.of(text))
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def announce_compiling(model: Model, say: Say) -> None:
    """Report kernels that the model's backends compile to `say` from now on."""

    def tell(now: Any) -> None:
        done = f"{now.compiled} done, {now.cached} from the cache"
        others = f" and {now.pending - 1} more" if now.pending > 1 else ""
        compiling = f"compiling {now.latest}{others} ({done})"
        say(now.measuring or (compiling if now.pending else "first run"))

    for backend in model.backends:
        compiler = getattr(backend.device, "compiler", None)
        if compiler is not None:
            compiler.on_change = tell


def grid(*titles: str, left: int = 1) -> Table:
    """Return a table without vertical lines: `left` columns of text, then numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, title in enumerate(titles):
        if i < left:
            table.add_column(title, overflow="fold")
        else:
            table.add_column(title, justify="right", no_wrap=True)
    return table


def print_table(
    console: Console, titles: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1
) -> None:
    """Print rows in a `grid`."""
    table = grid(*titles, left=left)
    for cells in rows:
        table.add_row(*cells)
    console.print(table)


def caution(console: Console, what: str, why: str) -> None:
    """Print what limits a result, and why; nothing where there is no reason."""
    if why:
        console.print(Text(f"{what}: {why}", "bold yellow"))


def facts(console: Console, pairs: Mapping[str, str]) -> None:
    """Print names with descriptions, one per line, wrapped in their column."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, text in pairs.items():
        if text:
            table.add_row(name, lines(text))
    console.print(table)


def print_json(console: Console, data: Mapping[str, Any]) -> None:
    """Print `data` as JSON, with NaN and infinities as null.

    Names are preserved: characters that the stream lacks, or a terminal would interpret, are
    escaped as in JSON.
    """
    text = json.dumps(finite(data), indent=2, allow_nan=False, ensure_ascii=False)
    encoding = console.encoding

    def said(match: re.Match[str]) -> str:
        char = match[0]
        fits = char.isprintable() and char.encode(encoding, "ignore")
        return char if fits else json.dumps(char)[1:-1]

    console.file.write(re.sub(r"[^\n -~]", said, text) + "\n")


def finite(data: Any) -> Any:
    """Return the data with None for NaN and infinities, which JSON lacks."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, Sequence) and not isinstance(data, str):
        return [finite(value) for value in data]
    return data


def ms_text(seconds: float) -> str:
    """Return milliseconds with up to four significant digits: ``0.00123``, ``4.56``, ``1234``."""
    ms = seconds * 1e3
    size = abs(ms)
    if size >= 100:
        return f"{ms:.0f}"
    digits = 1 if size >= 10 else 2 if size >= 1 else 3 if size >= 0.1 else 4 if size >= 0.01 else 5
    return f"{ms:.{digits}f}" if ms else "0"


def bytes_text(nbytes: int) -> str:
    """Return bytes in decimal units: ``640 B``, ``10.7 MB``."""
    if nbytes < 1000:
        return f"{nbytes} B"
    return f"{_scaled(nbytes)}B"


def count_text(number: int) -> str:
    """Return a count in decimal units: ``640``, ``15.5 G``."""
    return str(number) if number < 1000 else _scaled(number)


def _scaled(number: int) -> str:
    value, units = float(number), iter("kMGTP")
    unit = ""
    while value >= 999.5 and (larger := next(units, "")):
        value, unit = value / 1000, larger
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {unit}"


def abridged(names: Sequence[str]) -> str:
    """Return names joined by plus signs; of many, the first and last ones."""
    left_out = len(names) - 2 * _ENDS
    if left_out <= _ENDS:
        return " + ".join(names)
    return " + ".join((*names[:_ENDS], f"… {left_out} more …", *names[-_ENDS:]))


def listed(entries: Sequence[str]) -> str:
    """Return entries one per line; of many, the first `MAX_LISTED` and how many more there are."""
    more = len(entries) - MAX_LISTED
    if more <= 1:
        return "\n".join(entries)
    return "\n".join((*entries[:MAX_LISTED], f"… {more} more; --json has all"))


def counted(number: int, thing: str, things: str = "") -> str:
    """Return a number with its noun: ``1 step``, ``2 copies``."""
    return f"{number} {thing if number == 1 else things or thing + 's'}"


def value_text(value: float) -> str:
    """Return a tensor element in at most ten characters."""
    return f"{value:.4g}"
