"""What works on each row of an Attention's heads before they are joined."""

from __future__ import annotations

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.types import Dim, Shape
from ...ops.cuts import is_along_last, reduced_axes
from ...ops.elementwise import Clip, Max, Mul
from ...ops.movement import Transpose
from ...ops.norm import LayerNormalization, RMSNormalization
from ...ops.reduce import ReduceL2
from ..editing import Builder, shape_of

#: Exchanges the axes of heads and rows.
_HEADS = (0, 2, 1, 3)


@record
class HeadStep:
    """A node that reads heads [batch, heads, rows, size] alone, and gives as many.

    Attributes:
        node: a normalization of each row of a head; or a Mul.
        by: what it multiplies: a number for each row, [batch, heads, rows, 1], or a constant that
            rows share.
    """

    node: Node
    by: Value | None = None

    def of_rows(self, add: Builder, rows: Value) -> Value:
        """Return the same of rows [batch, rows, heads * size]; with an axis for heads or not."""
        batch, heads, length, size = shape_of(self.node.output) or (None,) * 4
        if self.by is not None and self.by.data is not None:
            return add(Mul(), rows, of_columns(add, self.by, (heads, size)))
        by_head = add.view(rows, (batch, length, heads, size))
        if self.by is None:
            return add(self.node.op, by_head, *self.node.inputs[1:])
        return add(Mul(), by_head, add(Transpose(perm=_HEADS), self.by))


def length_of(graph: Graph, quotient: Node) -> tuple[Node, ...]:
    """Return the nodes that compute the length by which a quotient divides each head, or none.

    The last one may limit it.
    """
    x, divisor = quotient.operands
    node, limits = divisor.producer, list[Node]()
    if node is not None and isinstance(node.op, Clip | Max):
        limits.append(node)
        node = node.operands[0].producer
    if node is None or not isinstance(node.op, ReduceL2) or not node.op.keepdims:
        return ()
    measured = node.operands[0]
    bounds = [v for limit in limits for v in limit.inputs[1:] if v is not None]
    inner = all(graph.sole_consumer(each.output) for each in (node, *limits, quotient))
    is_last = reduced_axes(node) == (3,)
    known = all(v.data is not None and v.data.size == 1 for v in bounds)
    fits = measured is x and is_last and known and inner
    return (node, *limits) if fits else ()


def step_behind(graph: Graph, y: Value) -> HeadStep | None:
    """Return what works on heads [batch, heads, rows, size], if that alone reads them."""
    node, shape = graph.sole_consumer(y), shape_of(y)
    if node is None or shape is None or len(shape) != 4 or shape_of(node.outputs[0]) != shape:
        return None
    if isinstance(node.op, RMSNormalization | LayerNormalization):
        others = all(value is None or value.data is not None for value in node.inputs[1:])
        fits = others and is_along_last(node) and len(node.outputs) == 1
        return HeadStep(node) if fits else None
    if not isinstance(node.op, Mul):
        return None
    by = next((value for value in node.operands if value is not y), y)
    fits = shape_of(by) == (*shape[:3], 1) if by.data is None else is_of_columns(by, shape)
    return HeadStep(node, by) if fits else None


def is_of_columns(by: Value, heads: Shape) -> bool:
    """Whether a value is a constant that rows and samples of heads share."""
    known = by.data is not None and by.data.ndim <= 4
    return known and _full(by).shape[::2] == (1, 1) and all(isinstance(n, int) for n in heads[1::2])


def of_columns(add: Builder, by: Value, sizes: tuple[Dim, Dim]) -> Value:
    """Return such a constant by column, of heads of this number and size."""
    full = tuple(n for n in sizes if isinstance(n, int))
    data = np.broadcast_to(_full(by)[0, :, 0], full).reshape(-1)
    return add.constant(data.copy(), by.name)


def _full(by: Value) -> np.ndarray:
    """Return a constant with four axes."""
    assert by.data is not None
    return by.data.reshape((1,) * (4 - by.data.ndim) + by.data.shape)
