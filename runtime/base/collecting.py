"""Python's collection of garbage, put off."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Generator[None]:
    """Collect no garbage within the block.

    What modules define is no garbage, and looking for some takes a tenth of the time of importing
    tercet.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
