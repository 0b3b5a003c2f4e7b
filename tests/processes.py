"""Processes that tests wait for."""

from __future__ import annotations

import os


def is_gone(process: int) -> bool:
    """Whether a process, given by its number, has ended and was waited for."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False
