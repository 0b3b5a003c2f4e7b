"""Classes of data that cost little to declare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from operator import attrgetter
from types import CodeType, FunctionType
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make a class a dataclass with slots whose instances are equal and hashed by their fields.

    Type checkers report assignments to fields as with ``frozen=True``; at run time nothing does.
    Methods that refuse them would have to be compiled for each class, an eighth of the time in
    which a backend is imported, and instances would take twice as long to make. Another quarter
    are methods that are not compiled here, either, but made of what all records share.
    """
    compiled = any(map(_is_computed, _fields_of(cls)))
    made: Any = dataclass(slots=True, init=compiled, eq=False, repr=False)(cls)
    own, found = vars(cls), fields(made)
    if not compiled and "__init__" not in own:
        made.__init__ = _init(found, ends=hasattr(made, "__post_init__"))
    if "__repr__" not in own:
        made.__repr__ = _repr
    if "__eq__" not in own:
        made.__eq__ = _eq(_key([each for each in found if each.compare]))
    if own.get("__hash__") is None:
        hashed = [each for each in found if (each.compare if each.hash is None else each.hash)]
        made.__hash__ = _hash(_key(hashed))
    return made


def _fields_of(cls: type) -> Iterator[Field[Any]]:
    """Yield the fields that a class inherits, and those of its own that are more than a default."""
    for each in cls.__mro__:
        found = (*vars(each).values(), *vars(each).get("__dataclass_fields__", {}).values())
        yield from (one for one in found if isinstance(one, Field))


def _is_computed(field: Field[Any]) -> bool:
    return field.default_factory is not MISSING or not field.init


def _init(found: Sequence[Field[Any]], *, ends: bool) -> FunctionType:
    """Return a method that sets the fields to its arguments.

    Args:
        found: the fields.
        ends: whether it calls ``__post_init__``.
    """
    names = tuple(each.name for each in found)
    used = (*names, "__post_init__") if ends else names
    code = _setting(len(names), ends).replace(co_varnames=("self", *names), co_names=used)
    defaults = tuple(each.default for each in found if each.default is not MISSING)
    return FunctionType(code, globals(), "__init__", defaults)


@cache
def _setting(count: int, ends: bool) -> CodeType:
    """Return the code of a method that sets so many fields, whatever their names are."""
    names = [f"_{number}" for number in range(count)]
    lines = [*(f"self.{name} = {name}" for name in names), *["self.__post_init__()"] * ends]
    made: dict[str, Any] = {}
    exec(f"def __init__(self, {', '.join(names)}): {'; '.join(lines) or 'pass'}", made)
    return made["__init__"].__code__


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
