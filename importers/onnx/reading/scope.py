"""Scopes: the names visible at a point of a model, and their values."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from ....runtime.ir.graph import Graph, Value
from ....runtime.ir.types import ValueType


class NameSpace:
    """Names of values and nodes of one graph, including those still to come.

    Args:
        graph: the graph.
        reserved: names that its own part of the file defines, and that nothing else may use.
        is_body: whether it is the body of a control-flow operator.
    """

    def __init__(self, graph: Graph, reserved: Iterable[str], *, is_body: bool = False) -> None:
        self.graph = graph
        self.is_body = is_body
        self._reserved = set(reserved)
        self._labels: set[str] = set()
        self._numbers: dict[str, int] = {}

    def value(self, wanted: str) -> str:
        """Reserve and return `wanted` as the name of a value, with a number appended if taken."""
        name = self._free(wanted, self._reserved, self.graph.values)
        self._reserved.add(name)
        return name

    def node(self, wanted: str) -> str:
        """Reserve and return `wanted` as the name of a node, with a number appended if taken."""
        name = self._free(wanted, self._labels)
        self._labels.add(name)
        return name

    def _free(self, wanted: str, *taken: Container[str]) -> str:
        name = wanted
        while any(name in names for names in taken):
            self._numbers[wanted] = number = self._numbers.get(wanted, 0) + 1
            name = f"{wanted}.{number}"
        return name


class Scope:
    """A graph, control-flow body or function body while it is being bound.

    Args:
        space: the graph to which nodes are added; for a function its caller's.
        outer: the enclosing scope of a body; None for the main graph and functions.
        local: names that a function defines.
        prefix: prefix of a function's inner names.
        results: names of a function's results in the graph.
        declared: types that the file declares for values.
        attributes: actual attributes of the enclosing function; None outside functions.
    """

    def __init__(
        self,
        space: NameSpace,
        *,
        outer: Scope | None = None,
        local: Container[str] = (),
        prefix: str = "",
        results: Mapping[str, str] | None = None,
        declared: Mapping[str, ValueType] | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.space = space
        self.graph = space.graph
        self.captured: list[Value] = []
        self.reads: frozenset[str] = frozenset()
        self.declared = dict(declared or {})
        self.attributes = attributes
        self._local = local
        self._outer = outer
        self.prefix = prefix
        self._results = dict(results or {})
        self._values: dict[str, Value | None] = {}

    def define(self, name: str, value: Value | None) -> None:
        """Bind `name` to `value`, or to an omitted input."""
        self._values[name] = value

    def find(self, name: str) -> Value | None:
        """Return the value of a name; raises KeyError if it is not defined.

        Outer values read by a body become its constants or captures.
        """
        if name not in self._values:
            if self._outer is None:
                raise KeyError(name)
            self._values[name] = self._capture(name, self._outer.find(name))
        return self._values[name]

    def known(self, name: str) -> Value | None:
        """Return the value of a name, here or in a scope around it; None if there is none."""
        if name in self._values:
            return self._values[name]
        return None if self._outer is None else self._outer.known(name)

    def _capture(self, name: str, value: Value | None) -> Value | None:
        if value is None:
            return None
        name = self.space.value(name)
        if value.data is not None:
            return self.graph.constant(value.data, name)
        self.captured.append(value)
        return self.graph.add_capture(name, value.type)

    def visible(self) -> list[str]:
        """Return all names that can be read here."""
        return [*self._values, *(self._outer.visible() if self._outer else [])]

    def value_name(self, name: str) -> str:
        """Return the graph's name for the value that the file calls `name` here."""
        if name in self._results:
            return self._results[name]
        if self.prefix or not name:
            return self.space.value(self.prefix + (name or "unused"))
        return name

    def fresh(self, hint: str) -> str:
        """Return an unused name."""
        name = self.space.value(self.prefix + hint)
        while name in self._local or name in self._values:
            name = self.space.value(self.prefix + hint)
        self._results[name] = name
        return name
