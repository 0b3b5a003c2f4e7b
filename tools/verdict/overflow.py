"""Numbers beyond the range of their format: whether these overflow hinges on how they are computed.

float64 holds them. A runtime that stores the results of every step gets infinities; one that fuses
steps, or computes them in a wider format, gets what float64 gets.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...runtime.ir.types import Array
from .rounding import Ruling

#: Why what an overflow changes proves nothing.
OVERFLOWS = (
    "in float64, numbers on the way there exceed their dtype: they overflow if they are stored"
)


def rule_overflow(
    a: Array,
    b: Array,
    ruling: Ruling,
    exact: Array,
    overflown: Array,
    rule: Callable[[Array, Array], Ruling],
) -> Ruling:
    """Judge a mismatch again, without the elements that an overflow changes.

    Args:
        a: the reference's.
        b: the runner's.
        ruling: the mismatch.
        exact: in float64.
        overflown: in float64, where steps that exceed the range of their format are infinite.
        rule: judges the other elements.
    """
    if not a.shape == b.shape == exact.shape == overflown.shape:
        return ruling
    same = (exact == overflown) | ((exact != exact) & (overflown != overflown))
    if same.all() or rule(_kept(a, same), _kept(b, same)).word == "MISMATCH":
        return ruling
    return Ruling("inconclusive", f"{ruling.reason}; {OVERFLOWS}", excess=float("inf"))


def _kept(x: Array, same: Array) -> Array:
    """Return an array that is zero elsewhere."""
    return np.where(same, x, np.zeros_like(x))
