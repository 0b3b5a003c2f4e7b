"""Topological order of a graph's nodes, and the outer names that it reads."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NoReturn

from ..source.raw import RawGraph, RawNode, items
from ..source.source import FileSource


def distinct(names: Sequence[str]) -> list[str]:
    """Return names of outputs, with a number behind those that recur, which makes them unique."""
    found: dict[str, None] = {}
    for name in names:
        label, number = name, 0
        while label in found or (number and label in names):
            number += 1
            label = f"{name}.{number}"
        found[label] = None
    return list(found)


class Names:
    """Producers and readers of names in the graphs of one model.

    Args:
        source: the model, for messages.
    """

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self._free: dict[RawGraph, frozenset[str]] = {}

    def reads(self, node: RawNode) -> set[str]:
        """Return the names that a node reads, outer names read by its bodies included.

        A Gradient also depends on the names in its attributes.
        """
        names = {name for name in node.inputs if name}
        if (node.domain, node.op) == ("ai.onnx.preview.training", "Gradient"):
            named = (node.attributes.get(key, ()) for key in ("xs", "zs", "y"))
            names.update(name for value in named for name in items(value) if isinstance(name, str))
        return names.union(*map(self.free, node.bodies))

    def free(self, graph: RawGraph) -> frozenset[str]:
        """Return the names that a body reads but does not define."""
        if graph not in self._free:
            read = set(graph.outputs).union(*(self.reads(node) for node in graph.nodes))
            defined = {name for node in graph.nodes for name in node.outputs}
            self._free[graph] = frozenset(read - defined - set(graph.inputs) - set(graph.constants))
        return self._free[graph]

    def sorted(
        self, nodes: tuple[RawNode, ...], defined: Iterable[str]
    ) -> tuple[tuple[RawNode, ...], frozenset[str]]:
        """Return the nodes in topological order, and all names they read.

        Args:
            nodes: the nodes of one graph or function; already sorted ones keep their order.
            defined: its inputs and initializers.

        Raises:
            ModelError: a name is computed twice, or there is a cycle.
        """
        producer = self._producers(nodes, defined)
        reads = [self.reads(node) for node in nodes]
        waits = [{producer[name] for name in names if name in producer} for names in reads]
        every = frozenset[str]().union(*reads)
        if all(max(w, default=-1) < i for i, w in enumerate(waits)):
            return nodes, every
        return tuple(nodes[i] for i in self._schedule(nodes, waits)), every

    def _producers(self, nodes: tuple[RawNode, ...], defined: Iterable[str]) -> dict[str, int]:
        taken = set(defined)
        producer: dict[str, int] = {}
        for i, node in enumerate(nodes):
            for name in filter(None, node.outputs):
                if name in taken:
                    other = "is an input or an initializer"
                    if name in producer:
                        other = f"{nodes[producer[name]].where} computes, too"
                    raise self._source.error(f"computes '{name}', which {other}", node.where)
                taken.add(name)
                producer[name] = i
        return producer

    def _schedule(self, nodes: tuple[RawNode, ...], waits: list[set[int]]) -> list[int]:
        """Return the first topological order by position in the file."""
        missing = [len(w) for w in waits]
        readers: list[list[int]] = [[] for _ in nodes]
        for i, before in enumerate(waits):
            for j in before:
                readers[j].append(i)
        ready = [i for i, count in enumerate(missing) if not count]
        order: list[int] = []
        while ready:
            order.append(i := heapq.heappop(ready))
            for reader in readers[i]:
                missing[reader] -= 1
                if not missing[reader]:
                    heapq.heappush(ready, reader)
        if len(order) < len(nodes):
            self._refuse(nodes, waits, missing)
        return order

    def _refuse(
        self, nodes: tuple[RawNode, ...], waits: list[set[int]], missing: list[int]
    ) -> NoReturn:
        """Raise the error that names a node of a cycle, and the tensor by which it waits."""
        writer = reader = next(i for i, count in enumerate(missing) if count)
        seen = set[int]()
        while writer not in seen:
            seen.add(writer)
            writer, reader = min(i for i in waits[writer] if missing[i]), writer
        name = next(name for name in nodes[writer].outputs if name in self.reads(nodes[reader]))
        reason = f"{nodes[reader].where} reads '{name}', and this node waits for that one"
        if reader == writer:
            own = name not in nodes[writer].inputs
            what = "its body reads" if own else "it reads"
            reason = f"{what} '{name}', which the node itself computes"
        raise self._source.error(f"is part of a cycle: {reason}", nodes[writer].where)
