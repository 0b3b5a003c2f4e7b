"""Model-local functions: recursion, and the size of a model after inlining."""

from __future__ import annotations

from collections.abc import Iterable

from ..source.raw import FunctionKey, RawFunction, RawModel, RawNode
from ..source.source import FileSource


def key_of(node: RawNode) -> FunctionKey:
    """Return the key of the function that a node calls."""
    return node.domain, node.op, node.overload


def check_functions(model: RawModel, source: FileSource) -> None:
    """Reject recursive functions, and calls that would exceed the limits when inlined.

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
    """Node counts and depths after inlining, computed once per function."""

    def __init__(self, model: RawModel, source: FileSource) -> None:
        self._functions = model.functions
        self._source = source
        self._known: dict[FunctionKey, tuple[int, int]] = {}

    def of(
        self, nodes: Iterable[RawNode], callers: tuple[FunctionKey, ...], depth: int
    ) -> tuple[int, int]:
        """Return the number of nodes after inlining, and the depth of calls and bodies below them.

        Args:
            nodes: the nodes of a graph, body or function.
            callers: the functions that contain them.
            depth: nesting depth of calls and bodies around them.
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
