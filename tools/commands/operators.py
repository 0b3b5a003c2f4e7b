"""Custom operators from a Python file."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...runtime.errors import FileError, UsageError

_EXPECTED = (
    "it must set OPERATORS to functions by (domain, name), as in "
    "OPERATORS = {('my.domain', 'Swish'): swish}"
)


def read_operators(file: Path) -> Mapping[tuple[str, str], Any]:
    """Execute a Python file and return its OPERATORS.

    Raises:
        FileError: the file cannot be read.
        UsageError: it raises an error, or does not set OPERATORS.
    """
    try:
        names = runpy.run_path(str(file), run_name="tercet_operators")
    except OSError as error:
        if error.filename == str(file.absolute()):
            raise FileError(error.errno, error.strerror, str(file)) from error
        raise UsageError(f"--operators {file}: {type(error).__name__}: {error}") from error
    except Exception as error:
        raise UsageError(f"--operators {file}: {type(error).__name__}: {error}") from error
    found = names.get("OPERATORS")
    if not isinstance(found, Mapping):
        raise UsageError(f"--operators {file}: {_EXPECTED}")
    return found
