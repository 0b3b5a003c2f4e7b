"""Insertion of nodes that a session adds to a graph, such as the choice of the next token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ir.dtypes import DType, int64
from ..ir.graph import Graph, Node, Value
from ..ir.infer import infer_node
from ..ir.op import Op
from ..ops.movement import Expand
from ..ops.shape import Reshape


class NodeWriter:
    """Inserts nodes into a graph, in one place, and infers their types.

    Args:
        graph: the graph to change.
        before: the node to insert before; None to append.
    """

    def __init__(self, graph: Graph, before: Node | None = None) -> None:
        self._graph, self._before = graph, before

    def __call__(self, op: Op, *inputs: Value | None, outputs: int = 1) -> Value:
        """Insert a node, and return its first output."""
        node = self._graph.insert(op, inputs, outputs, name="state", before=self._before)
        infer_node(node)
        return node.outputs[0]

    def redirect(self, old: Value, new: Value) -> None:
        """Make all readers of a value read another one; its node stays until the graph is swept."""
        self._graph.redirect(old, new)

    def constant(self, data: object, dtype: DType = int64) -> Value:
        """Return a constant."""
        return self._graph.constant(np.array(data, dtype), "state")

    def shaped(self, value: Value, dims: Sequence[int]) -> Value:
        """Return a value reshaped to as many elements, or expanded along further axes."""
        sizes = value.tensor.dims
        if tuple(dims) == sizes:
            return value
        if np.prod(dims) == np.prod(sizes):
            return self(Reshape(), value, self.constant(dims))
        return self(Expand(), value, self.constant(dims))
