"""Classes of data that cost little to declare."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make a class a dataclass with slots whose instances are equal and hashed by their fields.

    Type checkers report assignments to fields as with ``frozen=True``; at run time nothing does.
    Methods that refuse them would have to be compiled for each class, an eighth of the time in
    which a backend is imported, and instances would take twice as long to make. All records share
    their `__repr__`, too.
    """
    made = dataclass(slots=True, unsafe_hash=True, repr=False)(cls)
    if "__repr__" not in vars(cls):
        setattr(made, "__repr__", _repr)  # noqa: B010 - of a class, which has no attribute to assign
    return made


def _repr(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"
