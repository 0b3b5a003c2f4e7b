"""Options added to all commands that read a model, effective while the command runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

Command = Callable[..., None]


def added_option(
    name: str,
    annotation: object,
    around: Callable[[Any], AbstractContextManager[Any]],
    readers: frozenset[str],
) -> Callable[[Command], Command]:
    """Return a decorator that adds an option to a command.

    Args:
        name: name of the parameter; None if the option is not given.
        annotation: its type with the `typer.Option`.
        around: returns the context manager for a value, in which the command runs.
        readers: parameters that identify a command reading a model; other commands, and those that
            have the parameter already, are unchanged.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        if readers.isdisjoint(signature.parameters) or name in signature.parameters:
            return command

        @wraps(command)
        def wrapped(**given: Any) -> None:
            value = given.pop(name, None)
            if not value:
                return command(**given)
            with around(value):
                return command(**given)

        option = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
        options = [*signature.parameters.values(), option.replace(annotation=annotation)]
        vars(wrapped)["__signature__"] = signature.replace(parameters=options)
        wrapped.__annotations__ = {
            **inspect.get_annotations(command, eval_str=True),
            name: annotation,
        }
        return wrapped

    return decorate
