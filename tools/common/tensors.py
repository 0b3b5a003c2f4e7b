"""Tensors of a graph by the names that users give."""

from __future__ import annotations

from ...runtime.ir.graph import Graph, Value
from ...runtime.ir.named import no_tensor


def tensor(graph: Graph, name: str) -> Value:
    """Return a value by its external name or its name in the file."""
    found = graph.outputs.get(name) or graph.values.get(name)
    if found is None:
        raise no_tensor(graph, name)
    return found
