"""Tables that are too wide for a terminal: narrower gaps, or several lines for each row."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
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
#: Columns of names up to this width share a line with others.
_SHORT = 24


def stacked(console: Console, table: Table, options: ConsoleOptions) -> RenderableType | None:
    """Return the rows of a table on several lines each, if they are too wide for one.

    The columns keep their order: the first line of a row begins with its first column, and the
    lines behind it are indented. The longest column has a line of its own. Columns that are not
    wrapped, such as numbers, keep their width.

    Args:
        console: where it is to be printed.
        table: of texts.
        options: the width that there is.

    Returns:
        None if the table fits, or takes no more lines with folded cells that are not narrow; the
        table with narrower gaps if it fits so.
    """
    wide = options.update(max_width=sum(map(_width, table.columns)) + _GAP * len(table.columns))
    excess = Measurement.get(console, wide, table).maximum - options.max_width
    if excess <= 0:
        return None
    if excess < len(table.columns):
        return _closer(table)
    longest = max(_folded(table.columns), key=_width, default=None)
    if longest is not None and _folds(longest, excess, options.max_width):
        return None
    if longest is not None and _width(longest) <= _SHORT:
        longest = None
    groups = _groups(_ordered(table.columns, longest), longest, options.max_width - _INDENT)
    rooms = [options.max_width - (_INDENT if i else 0) for i in range(len(groups))]
    widths = [_fitting(group, room) for group, room in zip(groups, rooms, strict=True)]
    ends = [
        (_INDENT if i else 0) + sum(line) + _GAP * (len(line) - 1) for i, line in enumerate(widths)
    ]
    shown: list[RenderableType] = [
        *_lines(groups, widths, [[_bold(column.header) for column in group] for group in groups]),
        Text("─" * min(max(ends), options.max_width)),
    ]
    texts = [[list(map(_text, column.cells)) for column in group] for group in groups]
    for i, row in enumerate(table.rows):
        cells = [[column[i] for column in group] for group in texts]
        shown.extend(_lines(groups, widths, cells))
        if row.end_section:
            shown.append(Text())
    return Group(*shown)


def _closer(table: Table) -> Table:
    """Return a table with gaps of two columns instead of three."""
    closer = copy(table)
    closer.padding = (0, 1, 0, 0)
    return closer


def _folds(longest: Column, excess: int, room: int) -> bool:
    """Whether a table fits well if only its longest column is folded."""
    width = max(1, _width(longest) - excess)
    names = [_text(cell) for cell in longest.cells]
    takes_more = _count_lines(names, width) > _count_lines(names, room) + len(names)
    return not takes_more and width >= min(_NARROW, _width(longest))


def _ordered(columns: Sequence[Column], longest: Column | None) -> list[Column]:
    """Return the columns, the longest one first if only numbers precede it."""
    first = [] if longest is None else [longest]
    before = columns[: columns.index(longest)] if longest is not None else []
    if all(_text(cell).plain.isdigit() for column in before for cell in column.cells):
        return [*first, *(column for column in columns if column is not longest)]
    return list(columns)


def _groups(columns: Sequence[Column], longest: Column | None, room: int) -> list[list[Column]]:
    """Return the columns of each line of a row: few lines, and as few folded names."""
    return min((_flow(columns, longest, room, width) for width in (_SHORT, _NARROW)), key=len)


def _flow(
    columns: Sequence[Column], longest: Column | None, room: int, narrow: int
) -> list[list[Column]]:
    """Fill lines with columns, of which those that are wrapped take `narrow` or less."""
    groups: list[list[Column]] = []
    left = 0
    for column in columns:
        width = _width(column) if column.no_wrap else min(_width(column), narrow)
        alone = column is longest or (groups and groups[-1][0] is longest)
        if alone or not groups or width + _GAP > left:
            groups.append([])
            left = room + _GAP
        groups[-1].append(column)
        left -= width + _GAP
    return groups


def _fitting(columns: Sequence[Column], room: int) -> list[int]:
    """Return widths of the columns of a line; the widest of those that are wrapped give way."""
    widths = [_width(column) for column in columns]
    excess = sum(widths) + _GAP * (len(columns) - 1) - room
    folded = [i for i, column in enumerate(columns) if not column.no_wrap]
    for _ in range(excess if folded else 0):
        most = max(folded, key=widths.__getitem__)
        widths[most] = max(1, widths[most] - 1)
    return widths


def _lines(
    groups: Sequence[Sequence[Column]],
    widths: Sequence[Sequence[int]],
    cells: Sequence[Sequence[Text]],
) -> list[RenderableType]:
    """Return the lines of a row that have something to show, the first one in any case."""
    shown: list[RenderableType] = []
    for i, (columns, sizes, texts) in enumerate(zip(groups, widths, cells, strict=True)):
        if i and not any(text.plain for text in texts):
            continue
        if len(texts) == 1 and not i:
            shown.append(texts[0])
            continue
        line = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
        for column, width in zip(columns, sizes, strict=True):
            line.add_column(justify=column.justify, width=width, overflow="fold")
        line.add_row(*texts)
        shown.append(Padding(line, (0, 0, 0, _INDENT if i else 0)))
    return shown


def _count_lines(texts: Sequence[Text], width: int) -> int:
    """Return the number of lines that texts take in a column."""
    return sum(max(1, ceil(cell_len(text.plain) / width)) for text in texts)


def _folded(columns: Sequence[Column]) -> list[Column]:
    return [column for column in columns if not column.no_wrap]


def _width(column: Column) -> int:
    return max(cell_len(_text(cell).plain) for cell in (column.header, *column.cells))


def _text(cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))


def _bold(cell: RenderableType) -> Text:
    return Text(_text(cell).plain, "bold")
