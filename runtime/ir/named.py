"""Tensors by the names that users give."""

from __future__ import annotations

from ..errors import InputError, did_you_mean
from .graph import Graph


def no_tensor(graph: Graph, name: str) -> InputError:
    """Return the error for a name that no tensor of a graph has.

    A node's name is taken for that of its output by many, so the error says which ones these are.
    """
    node = next((each for each in graph.nodes if each.name == name or name in each.origin), None)
    if node is None:
        hint = did_you_mean(name, [*graph.outputs, *graph.values])
        hint = hint or f" (its outputs: {', '.join(graph.outputs)})" * (len(graph.outputs) <= 8)
    else:
        names = " and ".join(f"'{value.name}'" for value in node.outputs)
        hint = f"; it is a node, which computes {names}"
    return InputError(f"the model has no tensor '{name}'{hint}")
