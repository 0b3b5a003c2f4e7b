"""What is made of an operator's attributes once, and freed with the operator."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import ref

from .op import Op

P = ParamSpec("P")
T = TypeVar("T", bound=Op)
R = TypeVar("R")


def prepared(function: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Remember what a function returns for an operator, by identity, and other arguments.

    The operator's attributes may have millions of elements: they are neither hashed nor compared.
    """
    memory: dict[tuple[Any, ...], tuple[Any, R]] = {}

    @wraps(function)
    def call(op: T, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (id(op), *args, *kwargs.items())
        entry = memory.get(key)
        if entry is not None and entry[0]() is op:
            return entry[1]
        found = function(op, *args, **kwargs)
        memory[key] = ref(op, lambda _: memory.pop(key, None)), found
        return found

    return call
