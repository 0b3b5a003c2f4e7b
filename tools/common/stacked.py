"""Tables that are too wide for a terminal: the longest cell of each row gets separate lines."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

_GAP, _INDENT = 3, 2
#: Cells are not folded to less: their words would be cut.
_NARROW = 10


def stacked(console: Console, table: Table, options: ConsoleOptions) -> RenderableType | None:
    """Return the rows of a table with the cells of its longest column above the others.

    Args:
        console: where it is to be printed.
        table: of texts; columns that are not wrapped keep their width.
        options: the width that there is.

    Returns:
        None if the table fits, or takes no more lines with folded cells that are not narrow, or if
        the other columns do not fit either.
    """
    wide = options.update(max_width=sum(map(_width, table.columns)) + _GAP * len(table.columns))
    excess = Measurement.get(console, wide, table).maximum - options.max_width
    folded = [column for column in table.columns if not column.no_wrap]
    if excess <= 0 or not folded:
        return None
    longest = max(folded, key=_width)
    room = max(1, _width(longest) - excess)
    names = [_text(cell) for cell in longest.cells]
    takes_more = _lines(names, room) > _lines(names, options.max_width) + len(names)
    if not takes_more and room >= min(_NARROW, _width(longest)):
        return None
    others = [column for column in table.columns if column is not longest]
    widths = _fitting(others, options.max_width - _INDENT)
    if widths is None:
        return None
    shown: list[RenderableType] = [
        _bold(longest.header),
        _line(others, widths, [_bold(column.header) for column in others]),
        Text("─" * (_INDENT + sum(widths) + _GAP * (len(widths) - 1))),
    ]
    columns = [column.cells for column in others]
    for name, row, *cells in zip(names, table.rows, *columns, strict=True):
        if name.plain:
            shown.append(name)
        shown.append(_line(others, widths, [_text(cell) for cell in cells]))
        if row.end_section:
            shown.append(Text())
    return Group(*shown)


def _fitting(columns: Sequence[Column], room: int) -> list[int] | None:
    """Return widths of columns that fit into `room`; None if no column is wrapped that could."""
    widths = [_width(column) for column in columns]
    excess = sum(widths) + _GAP * (len(columns) - 1) - room
    for _ in range(excess):
        folded = (i for i, column in enumerate(columns) if not column.no_wrap)
        most = max(folded, key=widths.__getitem__, default=None)
        if most is None:
            return None
        widths[most] = max(1, widths[most] - 1)
    return widths


def _line(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[Text]) -> Padding:
    line = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
    for column, width in zip(columns, widths, strict=True):
        line.add_column(justify=column.justify, width=width, overflow="fold")
    line.add_row(*cells)
    return Padding(line, (0, 0, 0, _INDENT))


def _lines(texts: Sequence[Text], width: int) -> int:
    """Return the number of lines that texts take in a column."""
    return sum(max(1, ceil(cell_len(text.plain) / width)) for text in texts)


def _width(column: Column) -> int:
    return max(cell_len(_text(cell).plain) for cell in (column.header, *column.cells))


def _text(cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))


def _bold(cell: RenderableType) -> Text:
    return Text(_text(cell).plain, "bold")
