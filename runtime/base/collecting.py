"""Python's collection of garbage, put off."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def no_collection(*, lasting: bool = False) -> Generator[None]:
    """Collect no garbage within the block.

    What modules define is not garbage, nor is a graph that is being made, and looking for it takes
    up to a tenth of the time of importing tercet and of planning.

    Args:
        lasting: whether what the block makes is not looked at soon after it, either: all young
            objects become old ones.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if lasting and not gc.get_freeze_count():  # what users have frozen stays so
            gc.freeze()
            gc.unfreeze()  # to the oldest generation
        gc.enable()
