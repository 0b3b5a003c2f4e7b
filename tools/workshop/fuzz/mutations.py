"""Small changes of valid models, each of which rewrites must notice or must not mind."""

from __future__ import annotations

from .mutation import Change, Mutation
from .mutations_nodes import NODES
from .mutations_values import VALUES

#: How often each is drawn.
CHANGES: dict[Change, float] = {**VALUES, **NODES}


def mutate(mutation: Mutation, count: int) -> list[str]:
    """Make so many changes, as far as there are any to make; return their names."""
    made: list[str] = []
    for _ in range(10 * count):
        (change,) = mutation.dice.choices(list(CHANGES), list(CHANGES.values()))
        before = mutation.copy()
        try:
            change(mutation)
            mutation.settle()
        except (KeyError, IndexError, ValueError):
            mutation.restore(before)
            continue
        made.append(change.__name__)
        if len(made) == count:
            break
    return made
