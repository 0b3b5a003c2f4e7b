"""The option of every command that reads a model: custom operators, from a Python file."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from ...runtime.errors import FileError, UsageError

_NAME = "operators"
_Operators = Annotated[
    Path | None,
    typer.Option(
        "--operators",
        metavar="FILE.py",
        help="Custom operators: a Python file that sets OPERATORS. It is executed: trust it.",
    ),
]
_EXPECTED = (
    "it sets OPERATORS to functions by (domain, name), as in "
    "OPERATORS = {('my.domain', 'Swish'): swish}"
)


def with_operators(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the option, if it reads a model."""
    signature = inspect.signature(command, eval_str=True)
    if not {"model", "models"} & set(signature.parameters):
        return command

    @wraps(command)
    def wrapped(**given: Any) -> None:
        file = given.pop(_NAME, None)
        if file is None:
            return command(**given)
        from ...runtime.custom import operators_in

        with operators_in(read_operators(file)):
            return command(**given)

    option = inspect.Parameter(_NAME, inspect.Parameter.KEYWORD_ONLY, default=None)
    options = [*signature.parameters.values(), option.replace(annotation=_Operators)]
    setattr(wrapped, "__signature__", signature.replace(parameters=options))  # noqa: B010
    wrapped.__annotations__ = {**inspect.get_annotations(command, eval_str=True), _NAME: _Operators}
    return wrapped


def read_operators(file: Path) -> Mapping[tuple[str, str], Any]:
    """Execute a Python file and return what it calls OPERATORS.

    Raises:
        FileError: the file cannot be read.
        UsageError: it raises an error, or sets nothing of that name.
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
