"""Tensors of a graph by the names that users give."""

from __future__ import annotations

from ...runtime.errors import InputError, did_you_mean
from ...runtime.ir.graph import Graph, Value


def tensor(graph: Graph, name: str) -> Value:
    """Return a value by its external name or its name in the file."""
    found = graph.outputs.get(name) or graph.values.get(name)
    if found is None:
        hint = did_you_mean(name, [*graph.outputs, *graph.values])
        raise InputError(f"the model has no tensor '{name}'{hint}")
    return found
