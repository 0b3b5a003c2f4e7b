"""Moves a Transpose of rows to the other side of a layer, where it merges with other views."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.graph import Graph, Node
from ...ops.elementwise import Add
from ...ops.gather import Gather
from ...ops.matmul import MatMul
from ...ops.movement import Slice, Split, Transpose
from ...ops.shape import RESHAPES
from ..driver import Context
from ..editing import Builder, drop, first_input, rank_of, shape_of
from ..pattern import pairs

_MOVES = (*RESHAPES, Transpose, Gather, Slice, Split)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Make layers read and write rows in the order of the attention around them.

    ``transpose(x) @ w + b`` is ``transpose(x @ w + b)`` if the last axis stays in place. PyTorch's
    nn.MultiheadAttention works on [position, sample, channel]: after the first layer, its Transpose
    merges with that of the heads, and before the last layer likewise. Queries, keys and values may
    be separate layers that read one Transpose.
    """
    for node in list(graph.nodes):
        if node not in graph or not _is_product(node):
            continue
        last = _bias_of(graph, node) or node
        before, transpose = _transpose(_source(node)), _transpose(graph.sole_consumer(last.output))
        if before is not None and not _merges(before):
            if all(_is_moved_behind(graph, reader) for reader in before.output.consumers):
                _put_behind(graph, before, node, last)
                yield f"Transpose '{before.name}' moved after '{node.name}'"
        elif transpose is not None and _moves(_source(node)):
            _put_in_front(graph, node, transpose)
            yield f"Transpose '{transpose.name}' moved before '{node.name}'"


def _is_product(node: Node) -> bool:
    """Whether a node multiplies rows with a constant matrix."""
    weight = node.inputs[1] if isinstance(node.op, MatMul) else None
    return weight is not None and weight.data is not None and weight.data.ndim == 2


def _bias_of(graph: Graph, product: Node) -> Node | None:
    """Return the node that adds a constant to every row of a product."""
    node = graph.sole_consumer(product.output)
    if node is None or not isinstance(node.op, Add):
        return None
    rows = (v for x, v in pairs(node) if x is product.output and v.data is not None)
    return node if any(v.data is not None and v.data.ndim <= 1 for v in rows) else None


def _source(node: Node) -> Node | None:
    return None if node.inputs[0] is None else node.inputs[0].producer


def _merges(transpose: Node) -> bool:
    """Whether a Transpose may merge with moves in front of it, through views and cuts of rows.

    Not with those whose result something else than a move reads, so that it is stored.
    """
    value = first_input(transpose)
    while value is not None and all(map(_moves, value.consumers)):
        node = value.producer
        if node is None or not isinstance(node.op, (*RESHAPES, Slice, Split)):
            return _moves(node)
        if not _keeps_rows(node):
            return True
        value = first_input(node)
    return False


def _keeps_rows(node: Node) -> bool:
    before, after = shape_of(first_input(node)), shape_of(node.outputs[0])
    return bool(before) and bool(after) and before[-1] == after[-1] is not None


def _moves(node: Node | None) -> bool:
    return node is not None and isinstance(node.op, _MOVES)


def _is_moved_behind(graph: Graph, product: Node) -> bool:
    """Whether a node is a layer whose readers all move or slice its result."""
    if not _is_product(product):
        return False
    node = _bias_of(graph, product) or product
    readers = node.output.consumers
    return bool(readers) and not graph.is_output(node.output) and all(map(_moves, readers))


def _transpose(node: Node | None) -> Node | None:
    """Return a Transpose that leaves the last axis in place."""
    rank = None if node is None else rank_of(node.output)
    if node is None or rank is None or not isinstance(node.op, Transpose):
        return None
    return node if rank > 2 and node.op.order(rank)[-1] == rank - 1 else None


def _put_behind(graph: Graph, transpose: Node, product: Node, last: Node) -> None:
    """Make a product read the input of a Transpose, and the Transpose the product's result."""
    follower = graph.in_order(set(last.output.consumers))[0]
    value = transpose.inputs[0]
    for node in dict.fromkeys((product, last)):
        old = transpose.output if node is product else product.output
        add = Builder(graph, last, node.name, (node,))
        value = add(node.op, *(value if v is old else v for v in node.inputs))
    transposed = Builder(graph, follower, transpose.name, (transpose,))(transpose.op, value)
    graph.redirect(last.output, transposed)
    drop(graph, last)


def _put_in_front(graph: Graph, product: Node, transpose: Node) -> None:
    """Make a product read a transposed value, and replace the Transpose of its result."""
    last = transpose.inputs[0].producer if transpose.inputs[0] is not None else None
    assert last is not None
    value = Builder(graph, product, transpose.name, (transpose,))(transpose.op, product.inputs[0])
    for node in dict.fromkeys((product, last)):
        old = product.inputs[0] if node is product else product.output
        add = Builder(graph, transpose, node.name, (node,))
        value = add(node.op, *(value if v is old else v for v in node.inputs))
    graph.redirect(transpose.output, value)
    drop(graph, transpose)
