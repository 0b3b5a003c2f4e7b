"""`dataclass` as in the standard library, at a third of the time per class.

The standard library writes and compiles up to six methods for each class, which took more than half
of the time in which tercet's own modules are imported. Here only `__init__` is compiled; the other
methods are functions that all classes share, or that call `operator.attrgetter`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")
_set = object.__setattr__


@dataclass_transform(field_specifiers=(field,))
def dataclass(
    *,
    init: bool = True,
    repr: bool = True,
    eq: bool = True,
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,
) -> Callable[[type[T]], type[T]]:
    """Return a decorator that makes a class a dataclass.

    Instances and their fields behave as with `dataclasses.dataclass`, whose functions (`fields`,
    `replace`, `asdict`) take them, but for this: `InitVar` is not supported, a class that is
    frozen may have no base that is one of the standard library's, and its subclasses, too, can
    assign nothing.

    Args:
        init: whether it gets an `__init__`.
        repr: whether it gets a `__repr__`.
        eq: whether instances of one class are compared by their fields; they have a hash only if
            they are frozen, too.
        frozen: whether assignment raises FrozenInstanceError.
        slots: whether instances have slots instead of a `__dict__`.
        kw_only: whether `__init__` takes fields by keyword only.
    """

    def decorate(cls: type[T]) -> type[T]:
        own = vars(cls)
        make = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)
        made = make(cls)
        found = fields(made)  # pyright: ignore[reportArgumentType] - of the line before
        methods: dict[str, Any] = {}
        if init:
            methods["__init__"] = _init(made, found)
        if repr:
            methods["__repr__"] = _repr
        if eq:
            methods["__eq__"] = _eq(_key([each.name for each in found if each.compare]))
            hashed = [each for each in found if (each.compare if each.hash is None else each.hash)]
            methods["__hash__"] = _hash(_key([e.name for e in hashed])) if frozen else None
        if frozen:
            methods |= {"__setattr__": _refuse_assignment, "__delattr__": _refuse_deletion}
        if frozen and slots:  # pickle and copy would assign
            methods |= {"__getstate__": _getstate, "__setstate__": _setstate}
        for name, method in methods.items():
            # Python itself sets the hash of a class with an `__eq__` of its own to None.
            if own.get(name) is None:
                setattr(made, name, method)
        return made

    return decorate


def _init(cls: type, found: Sequence[Field[Any]]) -> Callable[..., None]:
    """Return the function that takes the fields and sets them, those with defaults included."""
    positional, by_keyword, body = list[str](), list[str](), list[str]()
    names: dict[str, Any] = {"_set": _set, "_missing": MISSING}
    for each in found:
        default, value = f"_{each.name}_default", each.name
        has_default = each.default is not MISSING
        is_made = each.default_factory is not MISSING
        if has_default or is_made:
            names[default] = each.default if has_default else each.default_factory
        if each.init:
            parameter = f"{value}={'_missing' if is_made else default}"
            parameters = by_keyword if each.kw_only else positional
            parameters.append(parameter if has_default or is_made else value)
            if is_made:
                value = f"{default}() if {value} is _missing else {value}"
        elif has_default or is_made:
            value = f"{default}()" if is_made else default
        else:
            continue
        body.append(f"_set(self, {each.name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    star = ["*"] if by_keyword else []
    parameters = ", ".join(["self", *positional, *star, *by_keyword])
    exec(f"def __init__({parameters}):\n " + "\n ".join(body or ["pass"]), names)
    made = names["__init__"]
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return made


def _key(names: Sequence[str]) -> Callable[[object], tuple[object, ...]]:
    """Return a function of an instance to the fields that are compared."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda instance: tuple(getattr(instance, name) for name in names)


def _eq(key: Callable[[object], tuple[object, ...]]) -> Callable[[object, object], bool]:
    def __eq__(self: object, other: object) -> bool:
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(key: Callable[[object], tuple[object, ...]]) -> Callable[[object], int]:
    def __hash__(self: object) -> int:
        return hash(key(self))

    return __hash__


def _repr(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse_assignment(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _setstate(self: Any, state: Sequence[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        _set(self, each.name, value)
