"""Backends that run some nodes each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from ...runtime.base.record import record
from ...runtime.ir.graph import Graph, Node
from ...runtime.options import Options
from ...runtime.plan.backend import Backend, Claim, Decline, Device, measured
from ..runners.replay import BackendPlayer


@record
class Chosen:
    """Nodes of a graph, and what passes make of those in their bodies.

    Attributes:
        names: of the nodes, and of those in their bodies.
        origins: the file's names of those in their bodies.
        others: names of all other nodes.
    """

    names: Set[str]
    origins: Set[str]
    others: Set[str]

    @classmethod
    def of(cls, graph: Graph, nodes: Iterable[Node]) -> Chosen:
        """Take nodes of a graph."""
        own = list(nodes)
        inside = [each for node in own for each in _inside(node)]
        names = frozenset(each.name for each in (*own, *inside))
        origins = frozenset(name for each in inside for name in each.origin)
        return cls(names, origins, frozenset(each.name for each in graph.walk()) - names)

    def __contains__(self, node: Node) -> bool:
        """Whether a node is one of them, or is made of one."""
        if node.name in self.names:
            return True
        return node.name not in self.others and not self.origins.isdisjoint(node.origin)


def _inside(node: Node) -> Iterator[Node]:
    for body in node.op.graphs():
        yield from body.walk()


def mixed(reference: BackendPlayer, runner: BackendPlayer, chosen: Chosen) -> BackendPlayer:
    """Return backends that run some nodes on the runner's, all others on the reference's."""
    own = tuple(_Limited(each, chosen, runner.options) for each in runner.backends)
    return BackendPlayer(runner.name, (*own, *reference.backends), reference.options)


class _Limited:
    """A backend restricted to some nodes."""

    def __init__(self, backend: Backend, chosen: Chosen, options: Options) -> None:
        self._backend, self._chosen, self._options = backend, chosen, options

    @property
    def name(self) -> str:
        """The backend's name."""
        return self._backend.name

    @property
    def device(self) -> Device:
        """The backend's device."""
        return self._backend.device

    def prepare(self, graph: Graph, free: Set[Node], options: Options) -> _Limited:
        """Let the backend measure for its claims of these nodes."""
        found = measured(self._backend, graph, self._own(free), self._options)
        return _Limited(found, self._chosen, self._options)

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterable[Claim | Decline]:
        """Yield the backend's claims and declines for these nodes."""
        return self._backend.claim(graph, self._own(free), self._options)

    def _own(self, free: Set[Node]) -> frozenset[Node]:
        return frozenset(node for node in free if node in self._chosen)
