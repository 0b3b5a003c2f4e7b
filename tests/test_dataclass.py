"""tercet's `dataclass` does what the standard library's does."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from typing import Any, ClassVar

import pytest

from tercet.runtime.base.dataclass import dataclass as own

Decorator = Callable[..., Callable[[type[Any]], type[Any]]]
both = pytest.mark.parametrize(
    "dataclass", [dataclasses.dataclass, own], ids=["dataclasses", "tercet"]
)


def record(dataclass: Decorator, **options: Any) -> type[Any]:
    """Return a class with fields of every kind."""

    class Record:
        """A record."""

        kind: ClassVar[str] = "record"
        first: int
        second: list[int] = field(default_factory=list[int])
        third: str = "c"
        named: float = field(default=0.5, kw_only=True)
        hidden: int = field(default=1, repr=False, compare=False)
        sum: int = field(init=False, default=-1, compare=False)
        made: list[int] = field(init=False, default_factory=list[int])

        def __post_init__(self) -> None:
            object.__setattr__(self, "sum", self.first + self.hidden)

    return dataclass(**options)(Record)


@both
@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_fields(dataclass: Decorator, *, frozen: bool, slots: bool) -> None:
    kind = record(dataclass, frozen=frozen, slots=slots)
    one = kind(1, hidden=3)
    assert (one.first, one.second, one.third, one.named, one.sum) == (1, [], "c", 0.5, 4)
    assert kind(1).second is not kind(1).second
    assert kind(1).made is not kind(1).made
    assert kind(2, [3], "d", named=1.5) == kind(first=2, second=[3], third="d", named=1.5, hidden=9)
    assert kind(1) != kind(1, third="d")
    assert kind(1).__eq__(1) is NotImplemented
    shown = "Record(first=1, second=[], third='c', named=0.5, sum=4, made=[])"
    assert repr(one).endswith(shown)
    assert [each.name for each in fields(kind)][:4] == ["first", "second", "third", "named"]
    assert kind.__match_args__ == ("first", "second", "third", "hidden")
    assert replace(one, first=5).sum == 8
    assert asdict(one)["second"] == []
    assert hasattr(one, "__dict__") is not slots
    assert kind.kind == "record"
    assert kind.__doc__ == "A record."
    for wrong in ((), (1, [], "c", 1, 2)):
        with pytest.raises(TypeError, match="__init__"):
            kind(*wrong)
    with pytest.raises(TypeError, match="other"):
        kind(1, other=2)


@both
@pytest.mark.parametrize("slots", [False, True])
def test_frozen_instances(dataclass: Decorator, *, slots: bool) -> None:
    @dataclass(frozen=True, slots=slots)
    class Pair:
        left: tuple[int, ...]
        right: float = float("nan")
        notes: list[int] = field(default_factory=list[int], hash=False)

    one, other = Pair((1, 2)), Pair((1, 2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != Pair((1, 2), 2.0)
    assert one != Pair((1, 2), notes=[1])
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'left'"):
        one.left = ()
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'left'"):
        del one.left
    assert copy.copy(one) == copy.deepcopy(one) == one


@both
def test_what_can_change_has_no_hash(dataclass: Decorator) -> None:
    one = record(dataclass)(1)
    one.first = 2
    assert one.first == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


@both
def test_methods_that_are_not_wanted(dataclass: Decorator) -> None:
    @dataclass(frozen=True, slots=True, eq=False, repr=False, init=False)
    class Named:
        name: str

        def __init__(self) -> None:
            object.__setattr__(self, "name", "it")

    assert Named().name == "it"
    assert Named() != Named()
    assert hash(Named())
    assert "Named object at" in repr(Named())


@both
def test_methods_of_a_class_stay(dataclass: Decorator) -> None:
    @dataclass(frozen=True)
    class Modulo:
        number: int

        def __repr__(self) -> str:
            return f"{self.number} mod 5"

        def __eq__(self, other: Any) -> bool:
            return isinstance(other, Modulo) and (self.number - other.number) % 5 == 0

        def __hash__(self) -> int:
            return self.number % 5

    assert Modulo(7) == Modulo(2)
    assert hash(Modulo(7)) == 2
    assert repr(Modulo(7)) == "7 mod 5"


@both
@pytest.mark.parametrize("slots", [False, True])
def test_a_base_class(dataclass: Decorator, *, slots: bool) -> None:
    base = record(dataclass, frozen=True, slots=slots, eq=False)

    @dataclass(frozen=True, slots=slots)
    class Derived(base):
        last: int = 7

    assert Derived(1, [2], "c", 3, 8).last == 8
    assert Derived(1) == Derived(1)
    assert Derived(1, last=2) != Derived(1)


@both
def test_one_field_is_compared_as_several_are(dataclass: Decorator) -> None:
    @dataclass(frozen=True)
    class One:
        number: float

    @dataclass(frozen=True)
    class Empty:
        pass

    nan = float("nan")
    assert One(nan) == One(nan)  # as in a tuple, where the object itself is enough
    assert hash(One(1.0)) == hash((1.0,))
    assert Empty() == Empty()
    assert hash(Empty()) == hash(())


@own(frozen=True, slots=True)
class Picklable:
    left: int
    right: list[int] = field(default_factory=list[int])


def test_frozen_instances_with_slots_can_be_pickled() -> None:
    one = Picklable(1, [2])
    assert pickle.loads(pickle.dumps(one)) == one
