"""The option of every command that reads a model: where its external data are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

_NAME = "external_data_dir"
_DataDir = Annotated[
    Path | None,
    typer.Option(
        "--external-data-dir",
        metavar="FOLDER",
        help="The folder of the weights that the model keeps in other files; else its own.",
    ),
]


def with_data_dir(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the option, if it reads a model."""
    signature = inspect.signature(command, eval_str=True)
    if "model" not in signature.parameters:
        return command

    @wraps(command)
    def wrapped(**given: Any) -> None:
        folder = given.pop(_NAME, None)
        if folder is None:
            return command(**given)
        from ...importers.onnx.external import external_data_in

        with external_data_in(folder):
            return command(**given)

    option = inspect.Parameter(_NAME, inspect.Parameter.KEYWORD_ONLY, default=None)
    options = [*signature.parameters.values(), option.replace(annotation=_DataDir)]
    setattr(wrapped, "__signature__", signature.replace(parameters=options))  # noqa: B010
    wrapped.__annotations__ = {**inspect.get_annotations(command, eval_str=True), _NAME: _DataDir}
    return wrapped
