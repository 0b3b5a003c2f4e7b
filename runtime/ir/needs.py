"""Sizes that nodes need: the one size of a symbolic dimension with which a model runs.

Some exporters name dimensions that their graphs fix. Types keep such a name, since one name may
stand for several sizes; to make up inputs, one has to know the size.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from .types import Dim

#: The sizes that nodes need of each symbol, while `recorded` is open.
Needs = dict[str, set[int]]
_OPEN: ContextVar[Needs | None] = ContextVar("needs", default=None)


@contextmanager
def recorded() -> Generator[Needs]:
    """Collect what `equate` is told, by symbol."""
    found: Needs = {}
    token = _OPEN.set(found)
    try:
        yield found
    finally:
        _OPEN.reset(token)


def equate(a: Dim, b: Dim) -> None:
    """Record that two sizes must be equal, if one is a symbol and the other a number."""
    symbol, size = (b, a) if isinstance(b, str) else (a, b)
    if isinstance(symbol, str) and isinstance(size, int) and (found := _OPEN.get()) is not None:
        found.setdefault(symbol, set()).add(size)


def unanimous(needs: Needs) -> dict[str, int]:
    """Return the symbols of which all nodes need the same size, with that size."""
    return {symbol: next(iter(sizes)) for symbol, sizes in needs.items() if len(sizes) == 1}
