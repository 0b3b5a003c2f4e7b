"""The rules of operators, which say how padding is kept out of results."""

from __future__ import annotations

from collections.abc import Callable

from ...ir.graph import Node
from ...ir.op import Op
from .writer import Writer

#: Rewrites the node at hand, which reads or gives sizes that grow.
Rule = Callable[[Writer, Node], None]

_RULES: dict[type[Op], Rule] = {}


def rule_of(op: Op) -> Rule | None:
    """Return how an operator is rewritten; None if unknown."""
    for kind in type(op).__mro__:
        if kind in _RULES:
            return _RULES[kind]
    return None


def rule(*kinds: type[Op]) -> Callable[[Rule], Rule]:
    """Declare the rule of some operators."""

    def declared(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(kinds, function))
        return function

    return declared
