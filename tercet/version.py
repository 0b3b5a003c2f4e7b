"""The version, and where the package is installed; imports nothing of it."""

from pathlib import Path

#: Follows semantic versioning.
__version__ = "0.1.0"

#: The folder of the package `tercet`.
PACKAGE = Path(__file__).resolve().parent
