"""Python's collection of garbage, put off."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Generator[None]:
    """Collect no garbage within the block.

    What modules define is not garbage, nor is a graph that is being made, and looking for it takes
    up to a tenth of the time of importing tercet and of planning.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
