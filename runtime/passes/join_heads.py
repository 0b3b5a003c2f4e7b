"""Let Attention take its heads as linear layers give them: side by side, a row a position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ..ir.graph import Graph, Node, Value
from ..ir.op import with_attributes
from ..ir.types import Array, Dim
from ..ops.attention import Attention, RotaryEmbedding
from ..ops.elementwise import Add
from ..ops.matmul import MatMul
from ..ops.movement import Split, Transpose
from ..ops.shape import Reshape
from .columns import Heads, heads_of
from .driver import Context
from .editing import Builder, drop, shape_of
from .pattern import pairs

_HEADS_BEHIND = (0, 2, 1, 3)


@dataclass(frozen=True, slots=True)
class _Rows:
    """What the heads [b, h, t, d] of an operand are.

    Attributes:
        heads: where they come from.
        turned: the RotaryEmbedding behind them, if there is one.
    """

    heads: Heads
    turned: Node | None = None

    @property
    def source(self) -> Value:
        """[b, t, w]."""
        return self.heads.source

    @property
    def number(self) -> int:
        """How many heads there are."""
        return self.heads.columns.shape[0]

    @property
    def is_part(self) -> bool:
        """Whether they are one of several equal parts of the rows, or all of them."""
        size = self.heads.columns.size
        first = self.heads.first
        return first is not None and first % size == 0 and self.heads.width % size == 0


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Drop Reshape and Transpose in front of the operands of an Attention, and behind it.

    Heads that are cut out of one product become parts of its last axis, in whatever order its
    columns stand for them: where they do not lie side by side, and nothing else reads it, each
    operand gets a product of its own columns. Nothing happens where only some of the operands lie
    so, or the result does not go back to rows.
    """
    return _join(graph, _is_movable)


def run_bound(graph: Graph, context: Context) -> Iterator[str]:
    """Do the same once sizes are known, without making weights."""
    return _join(graph, None)


def _join(
    graph: Graph, may_move: Callable[[Graph, _Rows, list[_Rows], Node], bool] | None
) -> Iterator[str]:
    for node in list(graph.nodes):
        if node not in graph or not _is_plain(graph, node):
            continue
        found = [_rows_of(value) for value in node.inputs[:3]]
        behind = _behind(graph, node)
        rows = [one for one in found if one is not None]
        if len(rows) < 3 or behind is None or rows[1].number != rows[2].number:
            continue
        others = [one for one in rows if not one.is_part]
        if others and (not may_move or not all(may_move(graph, o, rows, node) for o in others)):
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
    heads = None if value is None else heads_of(value)
    return None if heads is None else _Rows(heads)


def _is_movable(graph: Graph, one: _Rows, all_: list[_Rows], attention: Node) -> bool:
    """Whether the rows are those of a layer whose columns nothing else reads in their order."""
    inside = {attention, *(each.turned for each in all_)}
    inside |= {node for each in all_ for node in each.heads.nodes}
    between = [one.source, *(value for node in one.heads.nodes for value in node.outputs)]
    if any(graph.is_output(value) or not inside.issuperset(value.consumers) for value in between):
        return False
    return _layer_of(graph, one.source) is not None


def _layer_of(graph: Graph, value: Value) -> tuple[Value, Array, Array | None] | None:
    """Return x, weight [k, w] and bias [w] of the layer that gives some rows."""
    node, bias = value.producer, None
    if node is not None and isinstance(node.op, Add):
        for addend, product in pairs(node):
            if addend.data is not None and graph.sole_consumer(product) is node:
                node, bias = product.producer, addend.data
                break
    if node is None or not isinstance(node.op, MatMul) or node.inputs[0] is None:
        return None
    weight = None if node.inputs[1] is None else node.inputs[1].data
    if weight is None or weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[1:]):
        return None
    return node.inputs[0], weight, bias


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
    op = with_attributes(node.op, q_num_heads=rows[0].number, kv_num_heads=rows[1].number)
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
    op = with_attributes(old.op, num_heads=rows.number)
    return Builder(graph, before, old.name, (old,))(op, value, *old.inputs[1:])


def _whole(*dims: Dim) -> int | None:
    """Return the product of dimensions if all of them are known."""
    total = 1
    for dim in dims:
        if not isinstance(dim, int):
            return None
        total *= dim
    return total


def _cut_out(graph: Graph, rows: _Rows, before: Node) -> Value:
    """Return the part; one Split gives all parts of a source."""
    size, width, first = rows.heads.columns.size, rows.heads.width, rows.heads.first
    if not rows.is_part or first is None:
        return _own_product(graph, rows, before)
    if size == width:
        return rows.source
    op = Split(axis=-1, num_outputs=width // size)
    for reader in rows.source.consumers:
        if reader.op == op and len(reader.inputs) == 1:
            return reader.outputs[first // size]
    producer = rows.source.producer
    name = f"{producer.name if producer else rows.source.name}.parts"
    split = Builder(graph, before, name).node(op, rows.source, outputs=width // size)
    return split.outputs[first // size]


def _own_product(graph: Graph, rows: _Rows, before: Node) -> Value:
    """Return the part as a product of its columns of the weight alone."""
    layer, made = _layer_of(graph, rows.source), rows.source.producer
    assert layer is not None
    assert made is not None
    x, weight, bias = layer
    columns = rows.heads.columns.reshape(-1)
    add = Builder(graph, before, made.name, (made,))
    value = add(MatMul(), x, add.constant(weight[:, columns], f"{made.name}.columns"))
    if bias is None:
        return value
    return add(Add(), value, add.constant(bias[columns], f"{made.name}.bias"))
