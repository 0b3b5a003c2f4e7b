"""Consistency check of a graph, for authors of passes and importers."""

from __future__ import annotations

from .graph import Graph, Node, Value


def verify(graph: Graph) -> None:
    """Raise ValueError unless order, producers, consumers and names are consistent."""
    seen: set[Value] = {*graph.inputs, *graph.captures}
    reads: dict[Value, dict[Node, int]] = {}
    for node in graph.nodes:
        for value in (*node.inputs, *node.captures):
            if value is None:
                continue
            if value not in seen and not value.is_constant:
                raise ValueError(f"'{node.name}' reads '{value.name}' before it is computed")
            counts = reads.setdefault(value, {})
            counts[node] = counts.get(node, 0) + 1
        if any(value.producer is not node for value in node.outputs):
            raise ValueError(f"an output of '{node.name}' has another producer")
        seen.update(node.outputs)
    for name, value in graph.values.items():
        if value.name != name or value.consumers != reads.get(value, {}):
            raise ValueError(f"'{name}' has wrong consumers or a wrong name")
    for name, value in graph.outputs.items():
        if value not in seen and not value.is_constant:
            raise ValueError(f"output '{name}' is never computed")
