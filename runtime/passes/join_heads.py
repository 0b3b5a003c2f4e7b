"""Let Attention take its heads as linear layers give them: side by side, a row a position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..ir.graph import Graph, Node, Value
from ..ir.op import with_attributes
from ..ir.types import Dim
from ..ops.attention import Attention, RotaryEmbedding
from ..ops.gather import Gather
from ..ops.movement import Slice, Split, Transpose
from ..ops.shape import Reshape, Squeeze
from .driver import Context
from .editing import Builder, drop, shape_of

_HEADS_BEHIND = (0, 2, 1, 3)
#: [batch, length, parts, heads, size] in the order [parts, batch, heads, length, size].
_PARTS_IN_FRONT = (2, 0, 3, 1, 4)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where the heads [b, h, t, d] of an operand lie.

    Attributes:
        source: [b, t, parts * h * d].
        part: which of the parts they are.
        parts: how many there are; each is h * d wide.
        heads: h.
        turned: the RotaryEmbedding behind them, if there is one.
    """

    source: Value
    part: int
    parts: int
    heads: int
    turned: Node | None = None


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Drop Reshape and Transpose in front of the operands of an Attention, and behind it.

    Heads that are cut out of one product with a Split or a Gather over their number become parts of
    its last axis. Nothing happens where only some of the operands lie so, or the result does not go
    back to rows.
    """
    for node in list(graph.nodes):
        if node not in graph or not _is_plain(graph, node):
            continue
        found = [_rows_of(value) for value in node.inputs[:3]]
        behind = _behind(graph, node)
        rows = [one for one in found if one is not None]
        if len(rows) < 3 or behind is None or rows[1].heads != rows[2].heads:
            continue
        new = _rewrite(graph, node, rows, behind)
        yield f"{new.kind} '{new.name}' reads its heads from rows and writes them to rows"


def _is_plain(graph: Graph, node: Node) -> bool:
    """Whether an Attention of four axes has no cache and no result besides the first."""
    if not isinstance(node.op, Attention) or any(node.inputs[4:]):
        return False
    if any(value.consumers or graph.is_output(value) for value in node.outputs[1:]):
        return False
    return len(shape_of(node.inputs[0]) or ()) == 4


def _rows_of(value: Value | None) -> _Rows | None:
    node = None if value is None else value.producer
    if node is not None and isinstance(node.op, RotaryEmbedding):
        rows = None if node.op.num_heads else _rows_of(node.inputs[0])
        return None if rows is None or rows.turned else replace(rows, turned=node)
    turn, part, parts = (None if value is None else value.producer), 0, 1
    order = _HEADS_BEHIND
    if turn is not None and not isinstance(turn.op, Transpose):
        cut = _cut(turn)
        if cut is None:
            return None
        (turn, part, parts), order = cut, _PARTS_IN_FRONT
    split = turn.inputs[0].producer if turn is not None and turn.inputs[0] is not None else None
    if turn is None or split is None or not isinstance(turn.op, Transpose):
        return None
    by_head, source = shape_of(split.output), split.inputs[0]
    rows = shape_of(source)
    if not isinstance(split.op, Reshape) or by_head is None or rows is None or source is None:
        return None
    if len(by_head) != len(order) or turn.op.order(len(order)) != order or len(rows) != 3:
        return None
    *outer, heads, size = by_head
    width = _whole(*by_head[2:])
    if width is None or not isinstance(heads, int) or (len(order) == 5 and outer[2] != parts):
        return None
    if None in rows or rows != (*outer[:2], width) or size == 0:
        return None
    return _Rows(source, part, parts, heads)


def _whole(*dims: Dim) -> int | None:
    """Return the product of dimensions if all of them are known."""
    total = 1
    for dim in dims:
        if not isinstance(dim, int):
            return None
        total *= dim
    return total


def _cut(node: Node) -> tuple[Node | None, int, int] | None:
    """Return what comes before one of several parts along the first axis, its number, how many."""
    if isinstance(node.op, Gather):
        source, index = node.inputs
        shape = shape_of(source)
        if source is None or index is None or index.data is None or index.data.ndim:
            return None
        if not shape or len(shape) != 5 or node.op.axis not in (0, -5):
            return None
        count = shape[0]
        at = int(index.data)
        return None if not isinstance(count, int) else (source.producer, at % count, count)
    if not isinstance(node.op, Squeeze) or node.inputs[0] is None:
        return None
    split = node.inputs[0].producer
    whole, squeezed = shape_of(node.inputs[0]), shape_of(node.output)
    if split is None or split.inputs[0] is None:
        return None
    if not whole or len(whole) != 5 or whole[0] != 1 or squeezed != whole[1:]:
        return None
    if isinstance(split.op, Slice):
        return _sliced(split)
    if not isinstance(split.op, Split) or split.op.axis not in (0, -5):
        return None
    if any(shape_of(value) != whole for value in split.outputs):
        return None
    number = split.outputs.index(node.inputs[0])
    return split.inputs[0].producer, number, len(split.outputs)


def _sliced(node: Node) -> tuple[Node | None, int, int] | None:
    """Return the same for a Slice of one part."""
    source, starts, _, axes = node.inputs[:4] if len(node.inputs) > 3 else (None,) * 4
    shape = shape_of(source)
    if source is None or starts is None or axes is None or not shape:
        return None
    if starts.data is None or axes.data is None or starts.data.size != 1 or axes.data.size != 1:
        return None
    count, start = shape[0], int(starts.data.reshape(-1)[0])
    if not isinstance(count, int) or int(axes.data.reshape(-1)[0]) not in (0, -len(shape)):
        return None
    first = min(max(start + count if start < 0 else start, 0), count - 1)
    return source.producer, first, count


def _behind(graph: Graph, node: Node) -> tuple[Node, Node] | None:
    """Return the Transpose and the Reshape that bring the result to rows."""
    turn = graph.sole_consumer(node.output)
    if turn is None or not isinstance(turn.op, Transpose) or turn.op.order(4) != _HEADS_BEHIND:
        return None
    join = graph.sole_consumer(turn.output)
    by_head, rows = shape_of(turn.output), None if join is None else shape_of(join.output)
    if join is None or not isinstance(join.op, Reshape) or by_head is None or rows is None:
        return None
    if None in rows or rows != (*by_head[:2], _whole(*by_head[2:])):
        return None
    return turn, join


def _rewrite(graph: Graph, node: Node, rows: list[_Rows], behind: tuple[Node, Node]) -> Node:
    turn, join = behind
    op = with_attributes(node.op, q_num_heads=rows[0].heads, kv_num_heads=rows[1].heads)
    inputs = [_part(graph, one, node) for one in rows]
    old = [value for value in node.inputs[:3] if value is not None]
    origin = (node, turn, join)
    new = Builder(graph, node, node.name, origin).node(op, *inputs, *node.inputs[3:])
    graph.replace(join, new.outputs)
    graph.remove(turn)
    graph.remove(node)
    graph.rename(new, node.name)
    for value in old:
        drop(graph, value.producer)
    return new


def _part(graph: Graph, rows: _Rows, before: Node) -> Value:
    """Return the part as a value, rotated if it was."""
    value = _cut_out(graph, rows, before)
    if rows.turned is None:
        return value
    old = rows.turned
    op = with_attributes(old.op, num_heads=rows.heads)
    return Builder(graph, before, old.name, (old,))(op, value, *old.inputs[1:])


def _cut_out(graph: Graph, rows: _Rows, before: Node) -> Value:
    """Return the part; one Split gives all parts of a source."""
    if rows.parts == 1:
        return rows.source
    op = Split(axis=-1, num_outputs=rows.parts)
    for reader in rows.source.consumers:
        if reader.op == op and len(reader.inputs) == 1:
            return reader.outputs[rows.part]
    producer = rows.source.producer
    name = f"{producer.name if producer else rows.source.name}.parts"
    split = Builder(graph, before, name).node(op, rows.source, outputs=rows.parts)
    return split.outputs[rows.part]
