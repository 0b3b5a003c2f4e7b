"""Chains: nodes of which each alone reads what the one before it computes."""

from __future__ import annotations

from collections.abc import Iterator

from .graph import Graph
from .node import Node, Value


def chain_behind(graph: Graph, value: Value) -> Iterator[Node]:
    """Yield the only reader of a value, the only reader of its first result, and so on."""
    while (node := graph.sole_consumer(value)) is not None:
        yield node
        value = node.output


def chain_before(graph: Graph, value: Value) -> Iterator[Node]:
    """Yield what computes a value, what computes its first input, and so on, each read once."""
    while (node := value.producer) is not None and graph.sole_consumer(value) is not None:
        yield node
        if not node.inputs or node.inputs[0] is None:
            return
        value = node.inputs[0]
