"""Reads the rows of several tables that one Concat joins from one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from ...base.record import record
from ...ir.dtypes import int32, int64
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.cuts import place_of
from ...ops.elementwise import Add, And, GreaterOrEqual, Less, Where
from ...ops.gather import Gather
from ...ops.movement import Concat, Transpose
from ...ops.shape import RESHAPES, Squeeze, Unsqueeze
from ...ops.shapes import normalize_axis
from ..driver import Context
from ..editing import (
    Builder,
    dims_of,
    drop,
    dtype_of,
    shape_of,
    size_of,
    static_dims,
    unviewed,
    without_ones,
)

#: Minimum number of tables, and maximum bytes of all, which are copied.
_COUNT, _LARGE = 4, 2**28


@record
class _Rows:
    """Rows of a table, as a Concat reads them.

    Attributes:
        gather: the node that reads them.
        table: [rows, width].
        index: which of them.
        leads: whether the Concat joins them along an axis in front of those of the index.
    """

    gather: Node
    table: Value
    index: Value
    leads: bool


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace the Gathers of a Concat by one, of stacked tables.

    A recommender looks up each of its categories in a separate table (DLRM), and a document model
    the corners of boxes (LayoutLM). An index that is outside of its own table stays outside. What
    else reads rows of one table (DeepFM joins them twice) has them as a part of all.
    """
    for node in list(graph.nodes):
        if not isinstance(node.op, Concat) or len(node.inputs) < _COUNT:
            continue
        for begin, rows in _runs([_rows(graph, node, value) for value in node.operands]):
            if len(rows) >= _COUNT and _is_small(rows):
                yield _stack(graph, node, begin, rows)
                break


def _rows(graph: Graph, concat: Node, value: Value) -> _Rows | None:
    """Return the rows of a table that a Concat reads, each as one part of it.

    Nothing else reads them before.
    """
    shape, reader, made = shape_of(value), concat, value.producer
    while made is not None and isinstance(made.op, RESHAPES):
        if graph.sole_consumer(value) is not reader:
            return None
        reader, value = made, made.operands[0]
        made = value.producer
    if made is None or not isinstance(made.op, Gather):
        return None
    table, index = made.operands
    places = shape_of(index)
    if table.data is None or table.data.ndim != 2 or made.op.axis % 2 or index.data is not None:
        return None
    if not shape or places is None or None in (*shape, *places):
        return None
    if not _is_read_by(graph, value, reader, concat, places):
        return None
    axis = normalize_axis(getattr(concat.op, "axis", 0), len(shape))
    before, width = without_ones(shape[:axis]), table.data.shape[1]
    is_row = shape[-1] == width and not without_ones(shape[axis:-1])
    is_known = before == shape[:axis] or static_dims(shape) is not None
    if is_row and is_known and before == without_ones(places):
        return _Rows(made, table, index, leads=False)
    leads = axis == 0 and shape == (1, *places, width) and without_ones(places) == places
    return _Rows(made, table, index, leads=True) if leads else None


def _is_read_by(
    graph: Graph, rows: Value, reader: Node, concat: Node, places: tuple[object, ...]
) -> bool:
    """Whether nothing but a Concat reads rows, or all else comes behind it."""
    if graph.sole_consumer(rows) is reader:
        return True
    others = [node for node in rows.consumers if node is not reader]
    is_first = graph.in_order((concat, *others))[0] is concat
    once = rows.consumers.get(reader) == 1 and not graph.is_output(rows)
    return is_first and once and (1 not in places or dims_of(rows) is not None)


def _runs(found: Sequence[_Rows | None]) -> Iterator[tuple[int, list[_Rows]]]:
    """Yield adjacent parts of a Concat with rows of equal width, and where they begin."""
    begin, some = 0, list[_Rows]()
    for place, rows in enumerate((*found, None)):
        if rows is not None and (not some or _key(rows) == _key(some[0])):
            begin = begin if some else place
            some.append(rows)
            continue
        if some:
            yield begin, some
        begin, some = place, [] if rows is None else [rows]


def _key(rows: _Rows) -> tuple[object, ...]:
    table = rows.table.tensor
    return (table.dtype, table.dims[1], dtype_of(rows.index), rows.leads)


def _is_small(rows: Sequence[_Rows]) -> bool:
    tables = {each.table: each.table.data for each in rows}
    return sum(data.nbytes for data in tables.values() if data is not None) <= _LARGE


def _stack(graph: Graph, node: Node, begin: int, rows: Sequence[_Rows]) -> str:
    """Replace parts of a Concat."""
    add, name, count = Builder(graph, node, node.name, (node,)), node.name, len(rows)
    inputs, output = list(node.operands), node.output
    tables = list(dict.fromkeys(each.table for each in rows))
    lengths = [table.tensor.dims[0] for table in tables]
    starts = dict(zip(tables, accumulate(lengths, initial=0), strict=False))
    dtype = int32 if dtype_of(rows[0].index) == int32 else int64
    size, start = (
        np.array([of[each.table] for each in rows], dtype)
        for of in (dict(zip(tables, lengths, strict=True)), starts)
    )
    leads, index = rows[0].leads, _stacked(add, [each.index for each in rows])
    rank = len(shape_of(index) or ())
    if leads:
        index = add(Transpose(perm=(rank - 1, *range(rank - 1))), index)
        size, start = (each.reshape(count, *(1,) * (rank - 1)) for each in (size, start))
    whole = [table.data for table in tables if table.data is not None]
    stack = add.constant(np.concatenate(whole), f"{name}.tables")
    whole_rows = add(Gather(), stack, _moved(add, index, size, start))
    part = shape_of(inputs[begin]) or ()
    axis = normalize_axis(getattr(node.op, "axis", 0), len(part))
    along_parts = part[axis]
    assert isinstance(along_parts, int)
    wanted = (*part[:axis], count * along_parts, *part[axis + 1 :])
    joined = whole_rows if shape_of(whole_rows) == wanted else add.view(whole_rows, wanted)
    parts = [
        (each.gather, _part(add, whole_rows, place, 0 if leads else rank - 1, each.gather.output))
        for place, each in enumerate(rows)
        if len(each.gather.output.consumers) > 1
    ]
    others = [*inputs[:begin], joined, *inputs[begin + count :]]
    graph.redirect(output, add(node.op, *others) if len(others) > 1 else joined)
    drop(graph, node)
    for gather, own in parts:
        graph.redirect(gather.output, own)
        drop(graph, gather)
    return f"the rows of {count} tables that Concat '{name}' joins are those of one"


def _moved(add: Builder, index: Value, size: Array, start: Array) -> Value:
    """Return indices of tables as those of their stack; what is outside of one is outside of all.

    Args:
        add: inserts nodes.
        index: the indices.
        size: of their tables.
        start: the first rows of these in the stack.
    """
    inside = add(
        And(),
        add(GreaterOrEqual(), index, add.constant(-size, "least")),
        add(Less(), index, add.constant(size, "sizes")),
    )
    is_wrapped = add(Less(), index, add.constant(np.zeros((), size.dtype), "zero"))
    ends, firsts = add.constant(start + size, "ends"), add.constant(start, "starts")
    moved = add(Add(), index, add(Where(), is_wrapped, ends, firsts))
    outside = add.constant(np.array((start + size).max()), "outside")
    return add(Where(), inside, moved, outside)


def _part(add: Builder, rows: Value, place: int, axis: int, wanted: Value) -> Value:
    """Return one place of an axis of all rows, with the shape of the wanted ones."""
    found = add(Squeeze(), add.slice(rows, axis, place, place + 1), add.integers([axis]))
    shape = shape_of(wanted) or ()
    return found if shape_of(found) == shape else add.view(found, shape)


def _stacked(add: Builder, indices: Sequence[Value]) -> Value:
    """Return indices of equal shapes, apart from axes of 1, along one more axis, the last one."""
    columns = _columns(indices)
    if columns is None:
        rank = len(without_ones(shape_of(indices[0]) or ()))
        last = add.integers([rank])
        parts = (add(Unsqueeze(), _squeezed(add, index, 0), last) for index in indices)
        return add(Concat(axis=rank), *parts)
    source, places = columns
    size = size_of(source, -1)
    if size != len(places) or places != list(range(len(places))):
        source = add(Gather(axis=-1), source, add.integers(places, "places"))
    return _squeezed(add, source, 1)


def _squeezed(add: Builder, value: Value, kept: int) -> Value:
    """Return a value without axes of size 1, except the last `kept` axes."""
    shape = shape_of(value) or ()
    ones = [axis for axis, size in enumerate(shape[: len(shape) - kept]) if size == 1]
    return add(Squeeze(), value, add.integers(ones)) if ones else value


def _columns(indices: Sequence[Value]) -> tuple[Value, list[int]] | None:
    """Return a tensor and the places along its last axis that indices are, if they are of one."""
    wanted = without_ones(shape_of(indices[0]) or ())
    source: Value | None = None
    places: list[int] = []
    for value in indices:
        made = unviewed(value).producer
        found = None if made is None else place_of(made)
        if made is None or found is None:
            return None
        source = source or made.operands[0]
        shape = shape_of(source) or ()
        is_last = found[0] == len(shape) - 1 and without_ones(shape[:-1]) == wanted
        if made.operands[0] is not source or not is_last:
            return None
        places.append(found[1])
    return None if source is None else (source, places)
