"""Whether models are loaded for a caller that owns their caches, whatever their length."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

#: Whether caches of sliding windows of models that are loaded now become caches of all positions.
WHOLE_CACHES = ContextVar("whole caches", default=False)


@contextmanager
def whole_caches() -> Generator[None]:
    """Let models that are loaded within the block drop no positions from their caches."""
    token = WHOLE_CACHES.set(True)
    try:
        yield
    finally:
        WHOLE_CACHES.reset(token)
