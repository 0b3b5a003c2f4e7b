"""Rounds weights that passes compute in float64 to their storage type.

All passes that multiply constants use this. Finite numbers stay finite, and a channel loses no more
than ordinary rounding: if the exponent range of the type does not suffice, the pass leaves its
nodes unchanged, and these compute step by step without the loss.
"""

from __future__ import annotations

from math import prod
from typing import Any, cast

import ml_dtypes
import numpy as np

from ..ir.dtypes import FLOATS, DType, name_of
from ..ir.halves import rounded
from ..ir.types import Array

#: Relative error of a channel, in units in the last place.
_UNITS = 1.5
#: Factor by which the error of an already coarse channel may grow.
_COARSER = 4.0
#: Numbers that no sum reaches: only float16, and what is smaller, ends before.
_ENDLESS = 1e30
#: Elements that are checked at a time, so that they stay in the cache of a core.
_BLOCK = 1 << 16


class Unfit(Exception):
    """Constants that a type cannot represent; the text gives the reason."""


def check(exact: Array, dtype: DType, old: Array | None = None, what: str = "weights") -> None:
    """Raise Unfit for constants that a narrower type cannot represent.

    Args:
        exact: float64, with channels along the first axis.
        dtype: of the result.
        old: the constants, in the same order, from which these were scaled; their channels may have
            been coarse already.
        what: a description for messages.

    Raises:
        Unfit: a number would become infinite, or a channel would lose digits or vanish; or the type
            has only integers, which wrap around and whose quotients drop a rest.
    """
    if dtype not in FLOATS:
        raise Unfit(f"{what} of {name_of(dtype)} are multiplied step by step")
    limits = cast("Any", ml_dtypes.finfo)(dtype)
    eps, tiny = float(limits.eps), float(limits.smallest_normal)
    rows = exact.reshape(len(exact), prod(exact.shape[1:])) if exact.ndim else exact.reshape(1, 1)
    tops = _tops(rows)
    maximum = float(tops.max(initial=0))
    if not maximum < float(limits.max) * (1 + eps / 4):
        raise Unfit(f"{what} of up to {maximum:.3g} are beyond {name_of(dtype)}")
    if maximum > _sum_limit(dtype) and (old is None or maximum > float(np.abs(old).max(initial=0))):
        raise Unfit(f"sums with {what} of up to {maximum:.3g} may be beyond {name_of(dtype)}")
    # In other channels, what is lost in subnormal numbers is negligible next to the rest.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        sizes = np.sqrt(np.einsum("ij,ij->i", rows, rows) / max(rows.shape[1], 1))
    small = np.flatnonzero(~(sizes >= tiny / 2 / (_UNITS - 0.5)))
    small = small[np.argsort(tops[small], kind="stable")]
    before = old.reshape(rows.shape) if old is not None else None
    step = max(_BLOCK // max(rows.shape[1], 1), 1)
    for first in range(0, len(small), step):
        chosen = small[first : first + step]
        lost, allowed = _lost(rows[chosen], tops[chosen], dtype), _UNITS * eps
        if before is not None:
            given = _tops(before[chosen].astype(np.float64))
            allowed = np.maximum(allowed, _COARSER * eps * tiny / np.where(given > 0, given, 1))
        bad = np.flatnonzero(lost > allowed)
        if bad.size:
            raise Unfit(f"{what} of {tops[chosen[bad[0]]]:.3g} lose digits in {name_of(dtype)}")


def _tops(rows: Array) -> Array:
    """Return the greatest magnitude in each row."""
    return np.maximum(rows.max(1, initial=0), -rows.min(1, initial=0))


def _lost(rows: Array, tops: Array, dtype: DType) -> Array:
    """Return the relative error of each row of float64 numbers, of these greatest magnitudes."""
    scale = np.where(tops > 0, tops, 1)[:, None]
    with np.errstate(under="ignore"):
        apart = (rounded(rows, dtype).astype(np.float64) - rows) / scale
        return np.linalg.norm(apart, axis=1) / np.linalg.norm(rows / scale, axis=1).clip(1)


def holds(factor: float, dtype: DType) -> bool:
    """Whether a non-zero number is a normal number of this type."""
    limits = cast("Any", ml_dtypes.finfo)(dtype)
    return float(limits.smallest_normal) <= abs(factor) <= float(limits.max)


def rounded_bias(exact: Array, dtype: DType) -> Array:
    """Return addends in a narrower type: what they lose, sums with them lose anyway.

    Raises:
        Unfit: a number would become infinite.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        made = exact.astype(dtype)
    if not np.isfinite(made).all():
        maximum = float(np.abs(exact).max(initial=0))
        raise Unfit(f"a bias of up to {maximum:.3g} is beyond {name_of(dtype)}")
    return made


def scaled_row(exact: Array, scale: Array, dtype: DType) -> Array:
    """Return addends behind a product of rows that a scale was folded into; see `rounded_bias`.

    Raises:
        Unfit: a number, or the product where it is larger than before, may become infinite though
            the sum is finite.
    """
    row, factor = rounded_bias(exact, dtype), float(np.abs(scale).max(initial=0))
    if factor > 1 and not may_round_before(row, dtype):
        largest = float(np.abs(exact).max(initial=0))
        raise Unfit(
            f"a product times {factor:.3g} may be beyond {name_of(dtype)} before up to "
            f"{largest:.3g} is added"
        )
    return row


def may_round_before(addend: Array | None, dtype: DType) -> bool:
    """Whether a sum may be rounded to a type before constants are added, not after.

    A finite result must not overflow on the way: 72000 - 20000 fits into float16, 72000 does not.
    Constants of half a step between the greatest numbers or less make no difference there. What
    other types lack, no model computes; sums of integers are the same in any order.
    """
    if addend is None or dtype not in FLOATS:
        return True
    limits = cast("Any", ml_dtypes.finfo)(dtype)
    if float(limits.max) > _ENDLESS:
        return True
    half_a_step = float(limits.max) * float(limits.eps) / 4
    return bool((np.abs(addend.astype(np.float64)) <= half_a_step).all())


def _sum_limit(dtype: DType) -> float:
    """Return the limit for weights whose products are summed in the same range.

    float16 is summed in float32, so folding does not change its results.
    """
    limits = cast("Any", ml_dtypes.finfo)(dtype)
    return float(limits.max) if float(limits.max) < _ENDLESS else float(limits.max) ** 0.5
