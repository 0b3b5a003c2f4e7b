"""What works on each row of an Attention's heads before they are joined."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ops.elementwise import Mul
from ..ops.movement import Transpose
from ..ops.norm import LayerNormalization, RMSNormalization
from .editing import Builder, shape_of

#: Exchanges the axes of heads and rows.
_TURN = (0, 2, 1, 3)


@dataclass(frozen=True, slots=True)
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
            assert isinstance(heads, int)
            assert isinstance(size, int)
            data = np.broadcast_to(_full(self.by)[0, :, 0], (heads, size)).reshape(-1)
            return add(Mul(), rows, add.constant(data.copy(), self.by.name))
        by_head = add.view(rows, (batch, length, heads, size))
        if self.by is None:
            return add(self.node.op, by_head, *self.node.inputs[1:])
        return add(Mul(), by_head, add(Transpose(perm=_TURN), self.by))


def step_behind(graph: Graph, y: Value) -> HeadStep | None:
    """Return what works on heads [batch, heads, rows, size], if that alone reads them."""
    node, shape = graph.sole_consumer(y), shape_of(y)
    if node is None or shape is None or len(shape) != 4 or shape_of(node.outputs[0]) != shape:
        return None
    if isinstance(node.op, RMSNormalization | LayerNormalization):
        others = all(value is None or value.data is not None for value in node.inputs[1:])
        fits = others and node.op.axis in (-1, 3) and len(node.outputs) == 1
        return HeadStep(node) if fits else None
    if not isinstance(node.op, Mul):
        return None
    by = next((value for value in node.operands if value is not y), y)
    if by.data is None:
        return HeadStep(node, by) if shape_of(by) == (*shape[:3], 1) else None
    known = by.data.ndim <= 4 and isinstance(shape[1], int) and isinstance(shape[3], int)
    return HeadStep(node, by) if known and _full(by).shape[::2] == (1, 1) else None


def _full(by: Value) -> np.ndarray:
    """Return a constant with four axes."""
    assert by.data is not None
    return by.data.reshape((1,) * (4 - by.data.ndim) + by.data.shape)
