"""Backends that run some nodes each."""

from __future__ import annotations

from collections.abc import Iterable, Set

from ...runtime.ir.graph import Graph, Node
from ...runtime.options import Options
from ...runtime.plan.backend import Backend, Claim, Decline, Device, measured
from ..runners.replay import BackendPlayer


def mixed(reference: BackendPlayer, runner: BackendPlayer, names: Set[str]) -> BackendPlayer:
    """Return backends that run the named nodes on the runner's, all others on the reference's."""
    own = tuple(_Limited(each, frozenset(names), runner.options) for each in runner.backends)
    return BackendPlayer(runner.name, (*own, *reference.backends), reference.options)


class _Limited:
    """A backend restricted to some nodes."""

    def __init__(self, backend: Backend, names: frozenset[str], options: Options) -> None:
        self._backend, self._names, self._options = backend, names, options

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
        return _Limited(found, self._names, self._options)

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterable[Claim | Decline]:
        """Yield the backend's claims and declines for these nodes."""
        return self._backend.claim(graph, self._own(free), self._options)

    def _own(self, free: Set[Node]) -> frozenset[Node]:
        return frozenset(node for node in free if node.name in self._names)
