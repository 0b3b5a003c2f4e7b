"""Convolutions that run beside others, in branches of a network."""

from __future__ import annotations

from collections import Counter

from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.conv import Conv


def beside_others(graph: Graph) -> dict[Node, int]:
    """Return the convolutions that have as many others before them as another one has.

    Neither of two such depends on the other, so they run at the same time, on two streams. Each
    comes with the number of all convolutions that do not depend on it, nor it on them.
    """
    depths: dict[Value, int] = {}
    before: dict[Value, int] = {}  # a bit for each convolution
    found: dict[Node, tuple[int, int]] = {}
    for node in graph.nodes:
        depth = max((depths.get(value, 0) for value in node.distinct_reads), default=0)
        needed = 0
        for value in node.distinct_reads:
            needed |= before.get(value, 0)
        if isinstance(node.op, Conv):
            found[node] = depth, needed
            depth, needed = depth + 1, needed | 1 << (len(found) - 1)
        depths.update(dict.fromkeys(node.outputs, depth))
        before.update(dict.fromkeys(node.outputs, needed))
    shared = Counter(depth for depth, _ in found.values())
    others: dict[Node, int] = {}
    for number, (node, (depth, needed)) in enumerate(found.items()):
        if shared[depth] > 1:
            behind = sum(each >> number & 1 for _, each in found.values())
            others[node] = len(found) - 1 - needed.bit_count() - behind
    return others
