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


class Formed:
    """Groups of nodes that run together, as far as they are known.

    Args:
        graph: the graph.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._places = {node: place for place, node in enumerate(graph.nodes)}
        self._mates = dict[Node, tuple[Node, ...]]()
        self._spans = list[tuple[int, int]]()

    def add(self, nodes: tuple[Node, ...]) -> None:
        """Note that nodes, in topological order, run together."""
        if _are_awaited(nodes):
            self._mates.update(dict.fromkeys(nodes, nodes))
            places = [self._places[node] for node in nodes]
            self._spans.append((min(places), max(places)))

    def may_join(self, nodes: Collection[Node]) -> bool:
        """Whether nodes may run together: nothing that they wait for waits for one of them.

        Nodes in groups with one result lead to that, whatever runs together with them.
        """
        if not _are_awaited(self._graph.in_order(nodes)):
            return True
        last = self._last(max(self._places[node] for node in nodes))
        waiting = [r for node in nodes for value in node.outputs for r in value.consumers]
        inside = frozenset(nodes)
        seen = set(inside)
        while waiting:
            node = waiting.pop()
            if node in inside:
                continue
            for mate in self._mates.get(node, (node,)):
                if mate not in seen and self._places[mate] <= last:
                    seen.add(mate)
                    readers = [r for value in mate.outputs for r in value.consumers]
                    if not inside.isdisjoint(readers):
                        return False
                    waiting += readers
        return True

    def _last(self, place: int) -> int:
        """Return the last place of nodes that may lead to one at a place, through groups."""
        grown = True
        while grown:
            ends = (end for begin, end in self._spans if begin < place < end)
            wider = max(ends, default=place)
            grown, place = wider > place, wider
        return place


def _are_awaited(nodes: tuple[Node, ...]) -> bool:
    """Whether something else reads what nodes before the last one compute."""
    inside = set(nodes)
    read = (v for node in nodes[:-1] for v in node.outputs)
    return any(value.consumers.keys() - inside for value in read)
