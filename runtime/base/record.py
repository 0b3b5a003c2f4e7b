"""Classes of data that cost little to declare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make a class a dataclass with slots whose instances are equal and hashed by their fields.

    Type checkers report assignments to fields as with ``frozen=True``; at run time nothing does.
    Methods that refuse them would have to be compiled for each class, an eighth of the time in
    which a backend is imported, and instances would take twice as long to make. Another eighth are
    methods that are not compiled here, either, but made of functions that all records share.
    """
    made: Any = dataclass(slots=True, eq=False, repr=False)(cls)
    own, found = vars(cls), fields(made)
    if "__repr__" not in own:
        made.__repr__ = _repr
    if "__eq__" not in own:
        made.__eq__ = _eq(_key([each for each in found if each.compare]))
    if own.get("__hash__") is None:
        hashed = [each for each in found if (each.compare if each.hash is None else each.hash)]
        made.__hash__ = _hash(_key(hashed))
    return made


def _key(found: Sequence[Field[Any]]) -> Callable[[Any], object]:
    """Return a function of an instance to some of its fields."""
    names = [each.name for each in found]
    return attrgetter(*names) if names else lambda instance: ()


def _eq(key: Callable[[Any], object]) -> Callable[[Any, Any], bool]:
    def __eq__(self: Any, other: Any) -> bool:
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(key: Callable[[Any], object]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(key(self))

    return __hash__


def _repr(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"
