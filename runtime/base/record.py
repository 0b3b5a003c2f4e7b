"""Classes of data that cost little to declare."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make a class a dataclass with slots whose instances are equal and hashed by their fields.

    Type checkers report assignments to fields as with ``frozen=True``; at run time nothing does.
    Methods that refuse them would have to be compiled for each class, an eighth of the time in
    which a backend is imported, and instances would take twice as long to make.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
