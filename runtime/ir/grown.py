"""Sizes that grow from run to run, as exact linear functions of one count."""

from __future__ import annotations

from math import inf
from typing import Any


class Grown(str):
    """The size `step` * k + `first` for any k >= 0, where k is one count per graph.

    It is a symbol, equal to those with the same text; sums, differences, multiples and the order of
    such sizes are known.

    Attributes:
        first: the size at k = 0, at least 0.
        step: growth per step, not 0; negative for what remains of a fixed size.
        bound: exclusive upper bound of k; None if unbounded, which shrinking sizes never are.
    """

    first: int
    step: int
    bound: int | None

    def __new__(cls, first: int, step: int, bound: int | None = None) -> Grown:
        sign, times = "-" if step < 0 else "+", abs(step) if abs(step) > 1 else ""
        made = super().__new__(cls, f"{first}{sign}{times}k")
        made.first, made.step, made.bound = first, step, bound
        return made

    def __reduce__(self) -> tuple[type[Grown], tuple[int, int, int | None]]:
        return Grown, (self.first, self.step, self.bound)


def combined(a: Any, b: Any, sign: int) -> Any:
    """Return a + sign * b where one of them grows; None if that is not a size."""
    if not isinstance(a, Grown) and not isinstance(b, Grown):
        return None
    left, right = _parts(a), _parts(b)
    if left is None or right is None:
        return None
    first, step = left[0] + sign * right[0], left[1] + sign * right[1]
    if step == 0:
        return first
    bound = _bound(a, b)
    last = first if step > 0 else -1 if bound is None else first + step * (bound - 1)
    return Grown(first, step, bound) if min(first, last) >= 0 else None


def multiplied(a: Any, b: Any) -> Any:
    """Return a * b where one of them grows; None if unknown."""
    size, by = (a, b) if isinstance(a, Grown) else (b, a)
    if not isinstance(size, Grown) or isinstance(by, Grown) or not _is_number(by) or by < 0:
        return None
    return Grown(size.first * by, size.step * by, size.bound) if by else 0


def divided(a: Any, b: Any) -> Any:
    """Return a / b where a grows and b always divides it; else None."""
    if not isinstance(a, Grown) or not _is_number(b) or b < 1 or a.first % b or a.step % b:
        return None
    return Grown(a.first // b, a.step // b, a.bound)


def span(a: Any, b: Any) -> tuple[float, float] | None:
    """Return the minimum and maximum of a - b; None if unknown.

    Args:
        a: a size, which may grow.
        b: another one.
    """
    left, right = _parts(a), _parts(b)
    if left is None or right is None:
        return None
    first, step = left[0] - right[0], left[1] - right[1]
    bound = _bound(a, b)
    last = first + step * (bound - 1) if bound is not None else inf * step if step else first
    return min(first, last), max(first, last)


def order(a: Any, b: Any) -> int | None:
    """Return the sign of a - b for sizes that may grow; None if it changes."""
    found = span(a, b)
    if found is None:
        return None
    least, greatest = found
    if least == greatest == 0:
        return 0
    return 1 if least > 0 else -1 if greatest < 0 else None


def _bound(a: Any, b: Any) -> int | None:
    bounds = [x.bound for x in (a, b) if isinstance(x, Grown) and x.bound is not None]
    return min(bounds, default=None)


def _parts(size: Any) -> tuple[int, int] | None:
    if isinstance(size, Grown):
        return size.first, size.step
    return (size, 0) if _is_number(size) else None


def _is_number(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, bool)
