"""Numbers beyond the range of their format: whether these overflow hinges on how they are computed.

float64 holds them. A runtime that stores the results of every step gets infinities; one that fuses
steps, or computes them in a wider format, gets what float64 gets.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...backends.numpy import evaluate
from ...runtime.ir.op import Op
from ...runtime.ir.types import Array
from .operators import GREATEST
from .rounding import Ruling

#: Why what an overflow changes proves nothing.
OVERFLOWS = (
    "in float64, numbers on the way there exceed their dtype: they overflow if they are stored"
)
#: What is added where a runner decides as float64 does with these overflows: it stores them.
AS_STORED = ", which leads to these very decisions"


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
    rest = rule_common(a, b, exact, overflown, rule)
    if rest is None or rest.word == "MISMATCH":
        return ruling
    return Ruling("inconclusive", f"{ruling.reason}; {OVERFLOWS}", excess=float("inf"))


def rule_common(
    a: Array, b: Array, exact: Array, other: Array, rule: Callable[[Array, Array], Ruling]
) -> Ruling | None:
    """Judge the elements that are the same in two runs in float64; None if these are all.

    Args:
        a: the reference's.
        b: the runner's.
        exact: in float64.
        other: in float64, too.
        rule: judges two arrays whose other elements are as in float64.
    """
    if not a.shape == b.shape == exact.shape == other.shape:
        return None
    same = (exact == other) | ((exact != exact) & (other != other))
    return None if same.all() else rule(_kept(a, same, exact), _kept(b, same, exact))


def with_partial_sums(x: Array, inputs: tuple[Array | None, ...], op: Op, times: int) -> Array:
    """Return a sum of finite terms, infinite where some add up to more than float32 holds.

    Args:
        x: the result of the operator, which may be this many times less than the sum.
        inputs: what it is computed from.
        op: an operator that adds up its terms, see `operators.sums_by_result`.
        times: by how many times the sum is greater.
    """
    positive = [data if data is None or data.dtype.kind != "f" else np.abs(data) for data in inputs]
    found = evaluate(op, positive, 1)
    if found is None:
        return x
    total = found[0] * times
    exceeds = np.isfinite(total) & (total > GREATEST["float32"])
    return np.where(exceeds, np.copysign(np.inf, x), x)


def _kept(x: Array, same: Array, exact: Array) -> Array:
    """Return an array that is as in float64 elsewhere."""
    return np.where(same, x, exact)
