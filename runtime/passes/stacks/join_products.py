"""Joins products of one matrix with several others, whose results a Concat joins as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...ir.graph import Graph, Node, Value
from ...ops.cuts import is_along_last
from ...ops.matmul import MatMul
from ...ops.movement import Concat, Expand, Tile, Transpose
from ...ops.shape import Reshape, Unsqueeze
from ..driver import Context
from ..editing import Builder, drop, shape_of, size_of

#: Operators that may move rows, and leave each as it is.
_MOVES = (Reshape, Unsqueeze, Expand, Tile, Transpose)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``[p @ a, p @ b]`` by ``p @ [a, b]``, where that joins no more elements than before.

    The weights of a differential attention (DiffLlama) are multiplied by two parts of the values;
    read once, they are those of an attention. What moves rows of all parts alike, in front of the
    products or behind them, moves those that are joined.
    """
    for node in list(graph.nodes):
        shape = shape_of(node.output)
        if not isinstance(node.op, Concat) or len(node.inputs) < 2 or not shape:
            continue
        parts = node.operands
        if not is_along_last(node):
            continue
        while (moved := _moved_alike(graph, parts)) is not None:
            parts = moved
        if not _are_products(graph, parts):
            continue
        first, makers = parts[0].producer, [part.producer for part in node.operands]
        assert first is not None
        add = Builder(graph, node, first.name, (node,))
        graph.replace(node, [_joined(graph, add, node.operands)])
        for maker in makers:
            drop(graph, maker)
        yield f"{len(parts)} products with '{first.operands[0].name}' became one"


def _joined(graph: Graph, add: Builder, parts: Sequence[Value]) -> Value:
    """Return parts joined along the last axis: what makes all of them alike does so later."""
    first, shape = parts[0].producer, shape_of(parts[0]) or ()
    if first is not None and _are_products(graph, parts):
        others = [part.producer.operands[1] for part in parts if part.producer is not None]
        return add(first.op, first.operands[0], _joined(graph, add, others))
    moved = _moved_alike(graph, parts)
    if first is None or moved is None:
        return add(Concat(axis=len(shape) - 1), *parts)
    inner = _joined(graph, add, moved)
    if not isinstance(first.op, (Reshape, Expand)):
        return add(first.op, inner, *first.inputs[1:])
    known = first.operands[1].data
    sizes = [] if known is None else [int(size) for size in known]
    widths = [size_of(part, -1) for part in parts]
    total = sum(width for width in widths if isinstance(width, int))
    return add(first.op, inner, add.integers((*sizes[:-1], total), "shape"))


def _are_products(graph: Graph, parts: Sequence[Value]) -> bool:
    """Whether tensors are products of one stack with others of as many rows, read only here.

    There are no more of these rows than of those of the results.
    """
    nodes = [part.producer for part in parts]
    first, *others = nodes
    if first is None or any(graph.sole_consumer(part) is None for part in parts):
        return False
    if any(node is None or not isinstance(node.op, MatMul) for node in nodes):
        return False
    left, right = (shape_of(factor) for factor in first.operands)
    if left is None or right is None or not len(left) == len(right) > 2:
        return False
    rows, terms = left[-2:]
    few = isinstance(rows, int) and isinstance(terms, int) and terms <= rows
    if rows is None or not (few or rows == terms) or first in others:
        return False
    return all(
        node is not None
        and node.operands[0] is first.operands[0]
        and not node.operands[1].is_constant
        and (shape_of(node.operands[1]) or ())[:-1] == right[:-1]
        for node in nodes
    )


def _moved_alike(graph: Graph, parts: Sequence[Value]) -> Sequence[Value] | None:
    """Return the tensors of which nodes that move whole rows alike make the parts."""
    nodes = [part.producer for part in parts]
    first, *others = nodes
    if first is None or not all(_keeps_rows(graph, part) for part in parts):
        return None
    if any(not _moves_alike(first, other) for other in others):
        return None
    return [node.operands[0] for node in nodes if node is not None]


def _keeps_rows(graph: Graph, part: Value) -> bool:
    """Whether a tensor with one reader is made by moving rows of more than one element."""
    move, after = part.producer, shape_of(part)
    if move is None or not isinstance(move.op, _MOVES) or graph.sole_consumer(part) is None:
        return False
    before = shape_of(move.operands[0])
    if not before or not after or before[-1] != after[-1] or before[-1] in (None, 1):
        return False
    if not isinstance(before[-1], int) or any(v and v.data is None for v in move.inputs[1:]):
        return False
    is_transposed = (
        isinstance(move.op, Transpose) and move.op.order(len(before))[-1] < len(before) - 1
    )
    return not is_transposed


def _moves_alike(one: Node, other: Node | None) -> bool:
    """Whether two nodes move rows of equally many elements alike."""
    if other is None or one.op != other.op or one is other:
        return False
    settings = [[v and v.data for v in node.inputs[1:]] for node in (one, other)]
    equal = [
        a is b or (a is not None and b is not None and a.tolist() == b.tolist())
        for a, b in zip(*settings, strict=False)
    ]
    same = shape_of(one.operands[0]) == shape_of(other.operands[0])
    return same and len(settings[0]) == len(settings[1]) and all(equal)
