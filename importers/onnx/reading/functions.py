"""Model-local functions: what calls what, and how large a model is once all are inlined."""

from __future__ import annotations

from collections.abc import Iterable

from ..source.raw import FunctionKey, RawFunction, RawModel, RawNode
from ..source.source import FileSource


def key_of(node: RawNode) -> FunctionKey:
    """Return the key of the function that a node would call."""
    return node.domain, node.op, node.overload


def check_functions(model: RawModel, source: FileSource) -> None:
    """Refuse functions that call themselves, and calls that would grow beyond the limits.

    Raises:
        ModelError: a function calls itself, possibly through others.
        LimitError: inlining would exceed the limits for nodes or depth.
    """
    sizes = _Sizes(model, source)
    nodes, _ = sizes.of(model.graph.nodes, (), 0)
    if nodes > source.limits.nodes:
        limit = source.limits.nodes
        raise source.limit(f"has {nodes} nodes once its functions are inlined; {limit} allowed")


class _Sizes:
    """Nodes and depth of bodies with everything inlined, each function measured once."""

    def __init__(self, model: RawModel, source: FileSource) -> None:
        self._functions = model.functions
        self._source = source
        self._known: dict[FunctionKey, tuple[int, int]] = {}

    def of(
        self, nodes: Iterable[RawNode], callers: tuple[FunctionKey, ...], depth: int
    ) -> tuple[int, int]:
        """Return how many nodes these become, and how deep calls and bodies lie below them.

        Args:
            nodes: the nodes of a graph, body or function.
            callers: the functions that they are part of.
            depth: how many calls and bodies they are inside of.
        """
        total, deepest = 0, 0
        for node in nodes:
            parts = [self.of(body.nodes, callers, depth + 1) for body in node.bodies]
            function = self._functions.get(key_of(node))
            if function is not None:
                parts.append(self._called(function, callers, depth + 1, node))
            total += 1 + sum(count for count, _ in parts)
            deepest = max([deepest, *(1 + below for _, below in parts)])
        if depth + deepest > self._source.limits.depth:
            raise self._source.limit(f"has calls and bodies {depth + deepest} deep")
        return total, deepest

    def _called(
        self, function: RawFunction, callers: tuple[FunctionKey, ...], depth: int, node: RawNode
    ) -> tuple[int, int]:
        if function.key in callers:
            raise self._source.error(f"{function.where} calls itself", node.where)
        if depth > self._source.limits.depth:
            raise self._source.limit(f"has calls and bodies more than {depth - 1} deep")
        if function.key not in self._known:
            inner = self.of(function.nodes, (*callers, function.key), depth)
            self._known[function.key] = inner
        return self._known[function.key]
