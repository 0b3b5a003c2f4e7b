"""Adds to the rows that an Attention writes what is added to its heads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ops.attention import Attention
from ...ops.elementwise import Add, Where
from ...ops.movement import Transpose
from ...ops.shape import Reshape
from ..editing import Builder, drop, shape_of

#: The order of axes that exchanges those of heads and positions.
_EXCHANGED = (0, 2, 1, 3)


def add_to_rows(graph: Graph) -> Iterator[str]:
    """Replace ``(attention + heads).transpose`` by ``attention.transpose + heads.transpose``.

    A residual of queries, or of those that a Where chooses (MViT, all but a class token), then is
    in rows, as queries are; nothing is left between the Attention and the views behind it.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Add):
            continue
        turn, dims = graph.sole_consumer(node.output), shape_of(node.output)
        if turn is None or turn.op != Transpose(perm=_EXCHANGED) or not dims:
            continue
        made = [v for v in node.operands if _is_attention(v) and graph.sole_consumer(v) is node]
        others = [v for v in node.operands if v not in made]
        if len(made) != 1 or len(others) != 1 or shape_of(made[0]) != dims:
            continue
        if not _comes_from_rows(graph, others[0]):
            continue
        add = Builder(graph, turn, node.name, (node, turn))
        operands = [add(Transpose(perm=_EXCHANGED), made[0]), _turned(graph, add, others[0])]
        name = node.name
        graph.redirect(turn.output, add(Add(), *operands))
        drop(graph, turn)
        yield f"Add '{name}' adds to rows what was added to heads"


def _is_attention(value: Value) -> bool:
    node = value.producer
    return node is not None and isinstance(node.op, Attention) and value is node.outputs[0]


def _chosen(graph: Graph, value: Value) -> Node | None:
    """Return the Where by constants that alone makes a value, which one node reads."""
    node = value.producer
    if node is None or not isinstance(node.op, Where) or graph.sole_consumer(value) is None:
        return None
    variable = [v for v in node.operands if v.data is None]
    return node if len(variable) == 1 and shape_of(variable[0]) == shape_of(value) else None


def _comes_from_rows(graph: Graph, value: Value) -> bool:
    """Whether heads are rows whose axes a Transpose, or a view of a single head, exchanges."""
    chosen = _chosen(graph, value)
    if chosen is not None:
        value = next(v for v in chosen.operands if v.data is None)
    node = value.producer
    if node is None:
        return False
    is_single = isinstance(node.op, Reshape) and (shape_of(value) or ())[1:2] == (1,)
    return node.op == Transpose(perm=_EXCHANGED) or is_single


def _turned(graph: Graph, add: Builder, value: Value) -> Value:
    """Return a value with the axes of heads and positions exchanged."""
    if value.data is not None:
        data = value.data
        full = data.reshape((1,) * (4 - data.ndim) + data.shape)
        turned = np.ascontiguousarray(full.transpose(_EXCHANGED))
        return value if data.size == 1 else add.constant(turned, f"{value.name}.rows")
    chosen = _chosen(graph, value)
    if chosen is None:
        return add(Transpose(perm=_EXCHANGED), value)
    inner = Builder(graph, add.before, chosen.name, (chosen,))
    return inner(chosen.op, *(_turned(graph, inner, v) for v in chosen.operands))
