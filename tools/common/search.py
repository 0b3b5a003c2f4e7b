"""Bisection of a number."""

from __future__ import annotations

from collections.abc import Callable


def smallest(maximum: int, holds: Callable[[int], bool]) -> int:
    """Return a small count with a property that `maximum` has, by bisection."""
    low, high = 0, maximum
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
