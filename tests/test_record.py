"""Records behave as the standard library's frozen dataclasses with slots, but refuse nothing."""

import copy
import pickle
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest

from tercet.runtime.base.record import record


@record
class Mine:
    a: int
    b: list[int] = field(default_factory=list[int], compare=False)
    c: str = field(default="c", repr=False)


@dataclass(frozen=True, slots=True)
class Theirs:
    a: int
    b: list[int] = field(default_factory=list[int], compare=False)
    c: str = field(default="c", repr=False)


@record
class Told:
    a: int

    def __repr__(self) -> str:
        return f"told {self.a}"


@record
class Longer(Mine):
    d: int = 0


@record
class Point:
    x: int
    y: int = 2

    def __post_init__(self) -> None:
        if self.x > self.y:
            raise ValueError("descends")


@record
class Named(Point):
    name: str = "n"
    seen: bool = field(default=False, init=False)


WAYS = {
    "representation": lambda kind: repr(kind(1, [2], "x")).partition("(")[2],
    "hash": lambda kind: hash(kind(1, [2], "x")),
    "equal": lambda kind: kind(1, [2]) == kind(1, [3]),
    "unequal": lambda kind: kind(1, c="x") == kind(1, c="y"),
    "another": lambda kind: kind(1) == (1, [], "c"),
    "fields": lambda kind: [each.name for each in fields(kind)],
    "slots": lambda kind: kind.__slots__,
    "arguments": lambda kind: kind.__match_args__,
    "dictionary": lambda kind: hasattr(kind(1), "__dict__"),
    "own default": lambda kind: kind(1).b is kind(1).b,
    "replaced": lambda kind: replace(kind(1), a=2) == kind(2),
    "copied": lambda kind: copy.deepcopy(kind(1, [2])).b,
    "pickled": lambda kind: pickle.loads(pickle.dumps(kind(1, [2], "x"))) == kind(1, [2], "x"),
}


@pytest.mark.parametrize("way", WAYS)
def test_as_a_frozen_dataclass(way: str) -> None:
    look: Any = WAYS[way]
    assert look(Mine) == look(Theirs)


@record
class Alone:
    a: list[int]


@record
class Empty:
    pass


@record
class Judged:
    a: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Judged) and self.a % 2 == other.a % 2

    def __hash__(self) -> int:
        return self.a % 2


def test_of_few_fields() -> None:
    assert Alone([1]) == Alone([1]) != Alone([2])
    assert len({Empty(), Empty()}) == 1
    assert Empty() != Alone([])
    with pytest.raises(TypeError, match="unhashable"):
        hash(Alone([1]))


def test_what_a_class_defines_stays() -> None:
    assert len({Judged(1), Judged(3), Judged(2)}) == 2


def test_representations() -> None:
    assert repr(Told(3)) == "told 3"
    assert repr(Longer(1, d=2)) == "Longer(a=1, b=[], d=2)"


def test_arguments() -> None:
    assert (Point(1).x, Point(1).y) == (1, 2)
    assert Point(y=4, x=3) == Point(3, 4)
    assert replace(Point(1, 5), x=2) == Point(2, 5)
    assert repr(Named(1, name="m")) == "Named(x=1, y=2, name='m', seen=False)"
    for kind in (Point, Named):
        with pytest.raises(ValueError, match="descends"):
            kind(3)
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
            kind()  # pyright: ignore[reportCallIssue]
        with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
            kind(1, z=2)  # pyright: ignore[reportCallIssue]
