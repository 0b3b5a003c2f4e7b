"""The option for custom operators, of every command that reads a model."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from ...runtime.errors import FileError, UsageError
from .added_option import added_option

_Operators = Annotated[
    Path | None,
    typer.Option(
        "--operators",
        metavar="FILE.py",
        help="Custom operators: a Python file that sets OPERATORS. It is executed, so trust it.",
    ),
]
_EXPECTED = (
    "it sets OPERATORS to functions by (domain, name), as in "
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
        if error.filename == str(file):
            raise FileError(error.errno, error.strerror, error.filename) from error
        raise UsageError(f"--operators {file}: {type(error).__name__}: {error}") from error
    except Exception as error:
        raise UsageError(f"--operators {file}: {type(error).__name__}: {error}") from error
    found = names.get("OPERATORS")
    if not isinstance(found, Mapping):
        raise UsageError(f"--operators {file}: {_EXPECTED}")
    return found


def _around(file: Path) -> AbstractContextManager[Any]:
    from ...runtime.ir.custom import operators_in

    return operators_in(read_operators(file))


#: Adds the option to a command that reads a model.
with_operators = added_option("operators", _Operators, _around, frozenset({"model", "models"}))
