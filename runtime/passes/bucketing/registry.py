"""The rules that keep padding out of results, by operator."""

from __future__ import annotations

from collections.abc import Callable

from ...ir.graph import Node
from ...ir.op import Op
from .writer import GraphWriter

#: Rewrites the current node, which has growing inputs or outputs.
Rule = Callable[[GraphWriter, Node], None]

_RULES: dict[type[Op], Rule] = {}


def rule_of(op: Op) -> Rule | None:
    """Return the rule of an operator; None if it has none."""
    for kind in type(op).__mro__:
        if kind in _RULES:
            return _RULES[kind]
    return None


def rule(*kinds: type[Op]) -> Callable[[Rule], Rule]:
    """Register the rule of some operators."""

    def declared(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(kinds, function))
        return function

    return declared
