"""Who else reads what nodes compute that one kernel may have."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ....runtime.ir.graph import Graph, Node, Value


def readers_outside(
    graph: Graph, values: Iterable[Value], nodes: Collection[Node]
) -> tuple[Node, ...]:
    """Return the readers of values that are none of these nodes, in order.

    The first of them depends on none of the others.
    """
    return graph.in_order({node for value in values for node in value.consumers}.difference(nodes))


def are_together(graph: Graph, nodes: Collection[Node]) -> bool:
    """Whether no other reader of their results precedes the last of the nodes."""
    made = (value for node in nodes for value in node.outputs)
    first = readers_outside(graph, made, nodes)[:1]
    return not first or graph.in_order((*nodes, *first))[-1:] == first
