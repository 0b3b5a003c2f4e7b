"""Reads the rows of the tables that an If chooses from one table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...base.record import record
from ...ir.dtypes import int32, int64
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.attention import RotaryEmbedding
from ...ops.control import If
from ...ops.elementwise import Add, And, GreaterOrEqual, Less, Where
from ...ops.gather import Gather
from ..driver import Context
from ..editing import Builder, dtype_of, shape_of

#: Maximum bytes of all tables, which are copied.
_LARGE = 2**28


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace an If between tables, of which only rows are read, by the place of a row in both.

    Angles of rotations differ from some length of a text on (Phi-3.5, Phi-4), so that shapes of
    tables would depend on a condition. An index that is outside of its own table stays outside.
    """
    for node in list(graph.nodes):
        if isinstance(node.op, If) and (tables := _tables(graph, node, node.op)) is not None:
            yield _joined(graph, node, tables)


@record
class _Tables:
    """The constants of both branches for a result, else before then."""

    otherwise: Array
    then: Array


def _tables(graph: Graph, node: Node, op: If) -> list[_Tables | None] | None:
    """Return the tables of each result, None for one without readers; None if rows are not all."""
    found = list[_Tables | None]()
    for result, then, otherwise in zip(
        node.outputs, op.then_branch.outputs.values(), op.else_branch.outputs.values(), strict=True
    ):
        if not graph.is_read(result):
            found.append(None)
            continue
        one, other = then.data, otherwise.data
        if one is None or other is None or not one.ndim or one.shape[1:] != other.shape[1:]:
            return None
        if graph.is_output(result) or one.dtype != other.dtype:
            return None
        if not all(_reads_rows(reader, result, node) for reader in result.consumers):
            return None
        found.append(_Tables(other, one))
    known = [each for each in found if each is not None]
    lengths = {(len(each.otherwise), len(each.then)) for each in known}
    size = sum(each.otherwise.nbytes + each.then.nbytes for each in known)
    return found if len(lengths) == 1 and size <= _LARGE else None


def _reads_rows(reader: Node, table: Value, choice: Node) -> bool:
    """Whether a node reads rows of a table at indices of known rank."""
    if isinstance(reader.op, Gather):
        data, index = reader.operands
        return data is table and index is not table and not reader.op.axis and _is_index(index)
    if isinstance(reader.op, RotaryEmbedding) and len(reader.inputs) > 3:
        x, cos, sin, index = reader.inputs
        are_tables = all(each is not None and each.producer is choice for each in (cos, sin))
        return are_tables and x is not table and index is not None and _is_index(index)
    return False


def _is_index(value: Value) -> bool:
    return dtype_of(value) in (int32, int64) and shape_of(value) is not None


def _joined(graph: Graph, node: Node, tables: list[_Tables | None]) -> str:
    """Replace the readers of an If's results."""
    cond = node.operands[0]
    joined = dict[Value, Value]()
    lengths = (0, 0)
    for result, each in zip(node.outputs, tables, strict=True):
        if each is not None:
            lengths = len(each.otherwise), len(each.then)
            both = np.concatenate([each.otherwise, each.then])
            joined[result] = graph.constant(both, f"{result.name}.tables")
    places = dict[Value, Value]()
    for reader in graph.in_order({r for result in joined for r in result.consumers}):
        index = reader.operands[1] if isinstance(reader.op, Gather) else reader.inputs[3]
        assert index is not None
        write = Builder(graph, reader, node.name, (node,))
        if index not in places:
            places[index] = _place(write, cond, index, lengths)
        inputs = [
            places[index] if value is index else joined.get(value, value) if value else None
            for value in reader.inputs
        ]
        graph.redirect(reader.output, write(reader.op, *inputs))
    graph.sweep()
    return f"the rows of tables that If '{node.name}' chooses are those of one"


def _place(write: Builder, cond: Value, index: Value, lengths: tuple[int, int]) -> Value:
    """Return the index of a row in the else branch's table followed by that of the other."""
    dtype = int32 if dtype_of(index) == int32 else int64

    def number(value: int) -> Value:
        return write.constant(np.array(value, dtype), "rows")

    otherwise, then = lengths
    scalar = write.shaped(cond, [])
    length = write(Where(), scalar, number(then), number(otherwise))
    first = write(Where(), scalar, number(otherwise), number(0))
    is_negative = write(Less(), index, number(0))
    row = write(Where(), is_negative, write(Add(), index, length), index)
    is_inside = write(And(), write(GreaterOrEqual(), row, number(0)), write(Less(), row, length))
    return write(Where(), is_inside, write(Add(), row, first), number(otherwise + then))
