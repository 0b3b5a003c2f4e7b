"""What every pass needs to change a graph: typed insertion, replacement with origins, clean-up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..ir.dtypes import DType
from ..ir.graph import Graph, Node, Value
from ..ir.infer import infer_node
from ..ir.op import Op
from ..ir.types import Array, Shape, TensorType


def shape_of(value: Value | None) -> Shape | None:
    """Return the sizes of a tensor's axes; None where their number is unknown."""
    return value.type.shape if value is not None and isinstance(value.type, TensorType) else None


def rank_of(value: Value | None) -> int | None:
    """Return the number of axes, None where it is unknown."""
    shape = shape_of(value)
    return None if shape is None else len(shape)


def dtype_of(value: Value | None) -> DType | None:
    """Return the type of a tensor's elements; None for what is not known to be a tensor."""
    return value.type.dtype if value is not None and isinstance(value.type, TensorType) else None


def number(value: Value | None, rank: int | None = None) -> float | None:
    """Return the real number in a constant of one element; None for anything else.

    Args:
        value: what may be such a constant.
        rank: of the tensor that it is combined with; a constant of more axes would add some.
    """
    if value is None or value.data is None or value.data.size != 1:
        return None
    if value.data.dtype.kind not in "fiuV" or value.data.ndim > (rank or 0):
        return None
    return float(value.data.reshape(-1)[0])


@dataclass(frozen=True, slots=True)
class Builder:
    """Inserts nodes before one, each with the types of its results.

    Attributes:
        graph: the graph.
        before: the node.
        name: of the new nodes; that of their operator if None.
        origin: the nodes that they stand for; each stands for itself where there are none.
    """

    graph: Graph
    before: Node
    name: str | None = None
    origin: tuple[Node, ...] = ()

    def node(
        self, op: Op, *inputs: Value | None, outputs: int = 1, name: str | None = None
    ) -> Node:
        """Insert a node."""
        made = self.graph.insert(
            op,
            inputs,
            outputs,
            name=name or self.name,
            before=self.before,
            origin=self.origin,
        )
        infer_node(made)
        return made

    def __call__(self, op: Op, *inputs: Value | None, name: str | None = None) -> Value:
        """Insert a node of one result, and return that."""
        return self.node(op, *inputs, name=name).output

    def constant(self, data: Array, name: str = "constant") -> Value:
        """Add a constant."""
        return self.graph.constant(data, name)

    def integers(self, numbers: Iterable[int], name: str = "constant") -> Value:
        """Add an int64 constant of one axis: a shape, axes, bounds."""
        return self.graph.constant(np.array(tuple(numbers), np.int64), name)


def stand_in(
    graph: Graph,
    nodes: Collection[Node],
    top: Node,
    op: Op,
    inputs: Sequence[Value | None],
    name: str | None = None,
) -> Node:
    """Put one node in place of `nodes`, whose result is that of `top`; return it.

    It has the name of `top`, or the one given, and all their origins.
    """
    origin = tuple(node for node in graph.nodes if node in nodes)
    new = graph.insert(op, inputs, name=name or top.name, before=top, origin=origin)
    new.output.type = top.output.type
    sources = [value.producer for value in top.reads]
    graph.replace(top, new.outputs)
    for node in (*reversed(origin), *sources):
        drop(graph, node)
    graph.rename(new, name or top.name)
    return new


def drop(graph: Graph, node: Node | None) -> None:
    """Remove a node, and what it alone had a use for, if nobody reads it."""
    if node is None or node not in graph:
        return
    if any(value.consumers or graph.is_output(value) for value in node.outputs):
        return
    sources = [value.producer for value in node.reads]
    graph.remove(node)
    for source in sources:
        drop(graph, source)
