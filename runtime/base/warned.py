"""Warnings, shown with the caller's line instead of one of the package."""

from __future__ import annotations

import inspect
import warnings

_PACKAGE = __name__.partition(".")[0]


def warn(text: str, category: type[Warning]) -> None:
    """Warn of what the line outside of the package that called it has asked for.

    Args:
        text: what is told.
        category: the kind of warning.
    """
    level = found = 1  # that of this function
    frame = inspect.currentframe()
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name.partition(".")[0] == _PACKAGE:
            found = level
        level, frame = level + 1, frame.f_back
    # Threads of the package have no such line: the outermost one is shown.
    warnings.warn(text, category, stacklevel=found + 1 if found + 1 < level else found)
