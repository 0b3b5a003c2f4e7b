"""Sizes that grow from run to run, as multiples of one count: what is known of them exactly."""

from __future__ import annotations

from typing import Any


class Grown(str):
    """The size `step` * k + `first` for every k >= 0, where k is one count for a whole graph.

    It is a symbol, equal to those with the same text; sums and differences of such sizes are known.

    Attributes:
        first: the least size that it stands for, at least 0.
        step: by how much it grows, at least 1.
    """

    first: int
    step: int

    def __new__(cls, first: int, step: int) -> Grown:
        made = super().__new__(cls, f"{first}+{step if step > 1 else ''}k")
        made.first, made.step = first, step
        return made

    def __reduce__(self) -> tuple[type[Grown], tuple[int, int]]:
        return Grown, (self.first, self.step)


def combined(a: Any, b: Any, sign: int) -> Any:
    """Return a + sign * b where one of them has grown; None where that is no size, or unknown."""
    if not isinstance(a, Grown) and not isinstance(b, Grown):
        return None
    left, right = _parts(a), _parts(b)
    if left is None or right is None:
        return None
    first, step = left[0] + sign * right[0], left[1] + sign * right[1]
    if step == 0:
        return first
    return Grown(first, step) if step > 0 and first >= 0 else None


def _parts(size: Any) -> tuple[int, int] | None:
    if isinstance(size, Grown):
        return size.first, size.step
    is_number = isinstance(size, int) and not isinstance(size, bool)
    return (size, 0) if is_number else None
