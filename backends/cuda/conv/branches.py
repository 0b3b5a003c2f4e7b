"""Convolutions that run beside others, in branches of a network."""

from __future__ import annotations

from collections import defaultdict

from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.conv import Conv


def beside_others(graph: Graph) -> frozenset[Node]:
    """Return the convolutions that have as many others before them as another one has.

    Neither of two such depends on the other, so they run at the same time, on two streams.
    """
    depths: dict[Value, int] = {}
    levels: defaultdict[int, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        depth = max((depths.get(value, 0) for value in node.distinct_reads), default=0)
        if isinstance(node.op, Conv):
            depth += 1
            levels[depth].append(node)
        depths.update(dict.fromkeys(node.outputs, depth))
    return frozenset(node for level in levels.values() if len(level) > 1 for node in level)
