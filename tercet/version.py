"""The version, where the package is installed, and when it was imported; imports nothing of it."""

from pathlib import Path
from time import time_ns

#: Follows semantic versioning.
__version__ = "0.1.0"

#: The folder of the package `tercet`.
PACKAGE = Path(__file__).resolve().parent

#: When this process imported the package, in nanoseconds as the times of files are.
IMPORTED = time_ns()
