"""Merges the batch axes of decomposed attention with more than four axes."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ...ir.graph import Graph, Node, Value
from ...ir.types import Dim
from ...ops.cuts import is_along_last
from ...ops.matmul import MatMul
from ...ops.movement import Transpose
from ...ops.norm import Softmax
from ...ops.shape import Reshape
from ..driver import Context
from ..editing import Builder, drop, shape_of, unviewed
from ..pattern import scaling

#: Axes of heads: head, position, element.
_HEADS = 3
#: Maximum number of nodes from a product of queries and keys to what reads the result.
_MAX_STEPS = 12


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Reshape the operands of a Softmax and the products around it to four axes, and back.

    Windows of images often have a separate axis: [sample, window, head, position, element].
    Views move through scales and transposes of heads until they merge with other views. Where
    windows follow heads (Hiera), of which there is only one, that axis is none of heads.
    """
    for node in list(graph.nodes):
        shape = shape_of(node.output) if node in graph and node.outputs else None
        if shape is None or len(shape) <= _HEADS + 1:
            continue
        if _weighs(graph, node) or _is_weighted(node) or _gives_scores(node):
            yield _flatten(graph, node)


def _weighs(graph: Graph, softmax: Node) -> bool:
    """Whether a node is a Softmax of rows that a product uses as weights."""
    if not isinstance(softmax.op, Softmax) or not is_along_last(softmax):
        return False
    reader = graph.sole_consumer(softmax.output)
    return reader is not None and isinstance(reader.op, MatMul) and _is_batch(reader)


def _is_batch(product: Node) -> bool:
    """Whether both operands have the same known numbers of samples and heads."""
    a, b = (shape_of(value) or () for value in product.inputs)
    known = all(isinstance(size, int) and size for size in (*a, *b))
    return known and len(a) == len(b) > _HEADS + 1 and a[:-2] == b[:-2]


def _gives_scores(product: Node) -> bool:
    """Whether a node is a product, and all nodes from it to a Softmax keep its shape."""
    if not isinstance(product.op, MatMul) or not _is_batch(product):
        return False
    value, shape = product.output, shape_of(product.output)
    for _ in range(_HEADS + 3):
        if len(value.consumers) != 1:
            return False
        (reader,) = value.consumers
        if isinstance(reader.op, (Softmax, Reshape)):
            return True
        if len(reader.outputs) != 1 or shape_of(reader.output) != shape:
            return False
        value = reader.output
    return False


def _is_weighted(product: Node) -> bool:
    """Whether a node is a product with a Softmax, which may be flattened already."""
    if not isinstance(product.op, MatMul) or not _is_batch(product):
        return False
    node = unviewed(product.operands[0], (Reshape,)).producer
    return node is not None and isinstance(node.op, Softmax)


def _flatten(graph: Graph, node: Node) -> str:
    add, name = Builder(graph, node, f"{node.name}.flat"), node.name
    shape = shape_of(node.output) or ()
    kept = _HEADS + _follows_heads(graph, node)
    inputs = [None if value is None else _flat(graph, value, add, kept) for value in node.inputs]
    op = Softmax(axis=-1) if isinstance(node.op, Softmax) else node.op
    value = Builder(graph, node, name, (node,))(op, *inputs)
    graph.redirect(node.output, add.view(value, shape))
    kind = node.kind
    drop(graph, node)
    return f"{kind} '{name}' has one batch axis"


def _follows_heads(graph: Graph, node: Node) -> bool:
    """Whether the axis in front of positions has size 1, and that of heads is in front of it.

    Heads are what a Transpose of the result brings behind positions.
    """
    shape = shape_of(node.output)
    if shape is None or shape[-_HEADS] != 1 or shape[-_HEADS - 1] == 1:
        return False
    rank = len(shape)
    reader = graph.sole_consumer(node.output)
    for _ in range(_MAX_STEPS):
        if reader is None or len(shape_of(reader.output) or ()) != rank:
            return False
        if isinstance(reader.op, Transpose):
            order = reader.op.order(rank)
            return order.index(rank - _HEADS - 1) > order.index(rank - 2)
        reader = graph.sole_consumer(reader.output)
    return False


def _flat(graph: Graph, value: Value, add: Builder, kept: int) -> Value:
    """Return a value with the axes in front of the last ones merged, to four axes."""
    node, shape = graph.made_for_one(value), shape_of(value) or ()
    lead = len(shape) - kept
    if node is not None:
        step = scaling(value)
        if step is not None and step[2] is node and shape_of(step[0]) == shape:
            inner = _flat(graph, step[0], add, kept)
            return add(node.op, *(inner if v is step[0] else _scalar(v, add) for v in node.inputs))
        if isinstance(node.op, Transpose) and node.inputs[0] is not None:
            order = node.op.order(len(shape))
            first = len(shape) - 2 if kept > _HEADS else lead
            if order[:first] == tuple(range(first)):
                moved = len(shape) - _HEADS
                perm = (0, *(axis - moved + 1 for axis in order[moved:]))
                return add(Transpose(perm=perm), _flat(graph, node.inputs[0], add, kept))
    return add.shaped(value, _sizes(shape, lead), "rows")


def _scalar(value: Value | None, add: Builder) -> Value | None:
    """Return a number without the axes of size 1 that it is written with."""
    data = None if value is None else value.data
    return value if data is None or not data.ndim else add.constant(data.reshape(()), "factor")


def _sizes(shape: tuple[Dim, ...], lead: int) -> tuple[int, ...]:
    sizes = [size for size in shape if isinstance(size, int)]
    return prod(sizes[:lead]), prod(sizes[lead:-2]), *sizes[-2:]
