"""Steps begin with what is still in the cache of their device."""

from __future__ import annotations

from typing import cast

from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Value
from tercet.runtime.ir.types import TensorType
from tercet.runtime.plan.backend import Step
from tercet.runtime.plan.format import Format
from tercet.runtime.plan.host import HOST
from tercet.runtime.plan.rows import Row, Slot
from tercet.runtime.plan.turns import CACHE, Turns

MB = 1 << 20


class Fake:
    """A step that goes one way, or stores the end of its results first."""

    def __init__(self, *, at_end: bool) -> None:
        self.ends_at_end = not at_end


def slot(nbytes: int) -> Slot:
    type_ = TensorType(float32, (nbytes // 4,))
    return Slot(Value("x"), HOST, Format.CONTIGUOUS, type_, 0, 0)


class Chain:
    """Rows, each built as it is added."""

    def __init__(self) -> None:
        self.turns = Turns()

    def add(self, nbytes: int, *inputs: Slot, turns: bool = True) -> tuple[Slot, bool]:
        """Add a row; return what it stores, and whether it begins at the end."""
        row = Row("step", (), HOST, "", "", inputs, (slot(nbytes),))
        at_end = self.turns.begins_at_end(row)
        step = Fake(at_end=at_end) if turns else object()
        row.step = cast("Step", step)
        self.turns.note(row)
        return row.outputs[0], at_end


def test_large_tensors_are_read_back_and_forth() -> None:
    chain, ways = Chain(), list[bool]()
    x = slot(100 * MB)
    for _ in range(4):
        x, at_end = chain.add(100 * MB, x)
        ways.append(at_end)
    assert ways == [False, True, False, True]


def test_small_ones_are_in_the_cache() -> None:
    chain = Chain()
    x, _ = chain.add(MB, slot(MB))
    assert not chain.add(MB, x)[1]


def test_steps_that_only_go_forward_end_at_the_end() -> None:
    chain = Chain()
    x, _ = chain.add(100 * MB, slot(100 * MB), turns=False)
    x, at_end = chain.add(100 * MB, x, turns=False)
    assert at_end
    assert chain.add(100 * MB, x)[1]


def test_what_others_have_displaced_does_not_count() -> None:
    """Nor does a small part that is left."""
    chain = Chain()
    x, _ = chain.add(100 * MB, slot(100 * MB))
    chain.add(MB, slot(CACHE))
    assert not chain.add(MB, x)[1]
    chain = Chain()
    x, _ = chain.add(100 * MB, slot(100 * MB))
    chain.add(MB, slot(CACHE - 3 * MB))
    assert not chain.add(MB, x)[1]


def test_the_input_with_most_bytes_in_the_cache_counts() -> None:
    """A residual that is read backwards, and then a small tensor that was read forwards."""
    chain = Chain()
    large, _ = chain.add(60 * MB, slot(MB))
    small, at_end = chain.add(10 * MB, large)
    assert at_end
    assert not chain.add(60 * MB, small, large)[1]
    assert chain.add(60 * MB, slot(MB), slot(MB))[1] is False


def test_views_are_the_tensor_itself() -> None:
    chain = Chain()
    x, _ = chain.add(100 * MB, slot(MB))
    view = slot(100 * MB)
    view.alias = x
    assert chain.add(MB, view)[1]
