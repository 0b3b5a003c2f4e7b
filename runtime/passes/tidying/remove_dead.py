"""Dead code elimination."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.graph import Graph
from ..driver import Context


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Remove the nodes and constants that no output needs, in one rewrite."""
    before = len(graph.values)
    dead = graph.sweep()
    lost = before - len(graph.values) - sum(len(node.outputs) for node in dead)
    if dead or lost:
        names = ", ".join(f"'{node.name}'" for node in dead[:8]) + (", …" if dead[8:] else "")
        yield f"removed {len(dead)} nodes ({names or 'none'}) and {lost} constants"
