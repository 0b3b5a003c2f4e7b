"""What applies to every model loaded within a block, by name."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Scoped(Generic[K, V]):
    """Values by name; an inner block adds to those of the blocks around it.

    Args:
        name: what they are, for debuggers.
    """

    def __init__(self, name: str) -> None:
        nothing: Mapping[K, V] = MappingProxyType({})
        self._now: ContextVar[Mapping[K, V]] = ContextVar(name, default=nothing)

    def get(self) -> Mapping[K, V]:
        """Return the values of the enclosing blocks."""
        return self._now.get()

    @contextmanager
    def within(self, given: Mapping[K, V]) -> Generator[None]:
        """Add these values within the block."""
        token = self._now.set({**self._now.get(), **given})
        try:
            yield
        finally:
            self._now.reset(token)
