"""Partition of the nodes that a compiler accepts into the largest convex regions."""

from __future__ import annotations

import os
from collections.abc import Set

from ...runtime.errors import UsageError
from ...runtime.ir.graph import Graph, Node

Region = tuple[Node, ...]
_Parts = dict[Node, list[Node]]

#: Minimum number of computing nodes of a region, unless one of them multiplies matrices: launching
#: an engine costs as much as several kernels.
MIN_NODES = 4


def regions(graph: Graph, taken: Set[Node]) -> list[Region]:
    """Return the regions, nodes in topological order.

    A node's *level* is the largest number of times that a path to it enters the taken nodes from
    the others. Along a path levels never decrease, so a path that leaves the taken nodes and comes
    back ends on a higher level: the connected parts of a level are convex, and no two of them
    depend on each other. Two parts joined by an edge, and by no other path, become one.

    Args:
        graph: the graph.
        taken: the nodes that may be in regions, views included.
    """
    levels = _levels(graph, taken)
    parts: _Parts = {}
    for node in graph.nodes:
        if node not in taken:
            continue
        parts[node] = [node]
        for source in _sources(node):
            if source in parts and levels[source] == levels[node]:
                _join(parts, source, node)
    _merge(graph, parts)
    order = {node: i for i, node in enumerate(graph.nodes)}
    distinct = {id(part): part for part in parts.values()}.values()
    found = [tuple(sorted(part, key=order.__getitem__)) for part in distinct]
    return sorted(found, key=lambda part: order[part[0]])


def is_worthwhile(region: Region, minimum: int = MIN_NODES) -> bool:
    """Whether a region is large enough for an engine."""
    computing = [node for node in region if not node.op.view]
    return len(computing) >= minimum or any(node.op.dense for node in computing)


def min_nodes(variable: str) -> int:
    """Return the minimum size of a region: the value of an environment variable, or `MIN_NODES`.

    Raises:
        UsageError: the value is not a number above 0.
    """
    setting = os.environ.get(variable, "")
    if setting and not (setting.isascii() and setting.isdigit() and int(setting)):
        raise UsageError(f"{variable}={setting}: it must be a number, 1 or greater")
    return int(setting) if setting else MIN_NODES


def _sources(node: Node) -> list[Node]:
    return [value.producer for value in node.distinct_reads if value.producer is not None]


def _levels(graph: Graph, taken: Set[Node]) -> dict[Node, int]:
    levels: dict[Node, int] = {}
    for node in graph.nodes:
        entered = node in taken
        found = (levels[s] + (entered and s not in taken) for s in _sources(node))
        levels[node] = max(found, default=0)
    return levels


def _merge(graph: Graph, parts: _Parts) -> None:
    """Merge parts joined by edges, until every further merge would create a cycle."""
    joined = True
    while joined:
        joined = False
        for node in graph.nodes:
            for source in _sources(node):
                if node not in parts or source not in parts or parts[node] is parts[source]:
                    continue
                if not _is_reached_around(parts, source, node):
                    _join(parts, source, node)
                    joined = True


def _is_reached_around(parts: _Parts, first: Node, last: Node) -> bool:
    """Whether a path leads from one part to another through nodes outside both."""
    start, goal = parts[first], parts[last]
    seen: set[Node] = set()
    frontier = [n for n in _consumers(start) if parts.get(n) is not start]
    frontier = [n for n in frontier if parts.get(n) is not goal]
    while frontier:
        node = frontier.pop()
        if parts.get(node) is goal:
            return True
        if node not in seen:
            whole = parts.get(node, [node])
            seen.update(whole)
            frontier.extend(_consumers(whole))
    return False


def _consumers(nodes: list[Node]) -> list[Node]:
    return [each for node in nodes for value in node.outputs for each in value.consumers]


def _join(parts: _Parts, first: Node, second: Node) -> None:
    """Merge the parts of two nodes."""
    large, small = parts[first], parts[second]
    if large is small:
        return
    if len(large) < len(small):
        large, small = small, large
    large.extend(small)
    for node in small:
        parts[node] = large
