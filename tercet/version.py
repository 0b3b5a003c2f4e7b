"""The version, and where the package is installed; imports nothing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Follows semantic versioning.
__version__ = "0.1.0"


def package() -> Path:
    """Return the folder of the package `tercet`."""
    from pathlib import Path  # not before a GPU starts: it imports how to parse URLs

    return Path(__file__).resolve().parent
