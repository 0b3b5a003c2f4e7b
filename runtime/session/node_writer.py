"""Insertion of nodes that a session adds to a graph, such as the choice of the next token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..ir.dtypes import DType, int64
from ..ir.graph import Graph, Node, Value
from ..ir.infer import infer_node
from ..ir.op import Op
from ..ops.control import If
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

    def choose(
        self, condition: Value, then: Branch, other: Branch, outer: Mapping[str, Value]
    ) -> Value:
        """Insert an If, and return its result.

        Args:
            condition: a scalar bool.
            then: writes the nodes of the branch, and returns its result.
            other: the same of the other branch.
            outer: the values that the branches read, by the names that these know them by.
        """
        bodies: dict[str, Graph] = {}
        for name, write in (("else_branch", other), ("then_branch", then)):
            body = bodies[name] = Graph(name)
            known = {own: body.add_capture(own, value.type) for own, value in outer.items()}
            body.set_outputs({"chosen": write(NodeWriter(body), known)})
        op = If(**bodies)
        captures = [value for _ in op.graphs() for value in outer.values()]
        node = self._graph.insert(
            op, [condition], name="state", captures=captures, before=self._before
        )
        infer_node(node)
        return node.output

    def shaped(self, value: Value, dims: Sequence[int]) -> Value:
        """Return a value reshaped to as many elements, or expanded along further axes."""
        sizes = value.tensor.dims
        if tuple(dims) == sizes:
            return value
        if np.prod(dims) == np.prod(sizes):
            return self(Reshape(), value, self.constant(dims))
        return self(Expand(), value, self.constant(dims))


#: Writes the nodes of a branch, given what stands for outer values in it; returns its result.
Branch = Callable[[NodeWriter, Mapping[str, Value]], Value]
