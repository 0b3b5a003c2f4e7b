"""Weights that a pass has computed in float64, rounded to the type that they are kept in.

All passes that multiply constants of a model come here. Numbers that are finite stay so, and what
a channel loses is no more than the rounding of ordinary numbers: where the exponents of the type do
not reach, the pass leaves its nodes alone, and they compute step by step what the product of their
constants would have lost.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, cast

import ml_dtypes
import numpy as np

from ..ir.dtypes import DType, name_of
from ..ir.types import Array

#: Relative error of a channel, in units in the last place.
_UNITS = 1.5
#: How much coarser than what was there a channel may become that had lost digits before.
_COARSER = 4.0


class Unfit(Exception):
    """Constants that their type cannot hold; the text says why."""


def check(exact: Array, dtype: DType, old: Array | None = None, what: str = "weights") -> None:
    """Raise Unfit for constants that a narrower type cannot hold.

    Args:
        exact: float64, the first axis counting channels.
        dtype: of the result.
        old: the constants, in the same order, that these are made of by scaling; a channel of them
            may have been coarse already.
        what: they are, for messages.

    Raises:
        Unfit: a number would become infinite, or a channel would lose digits or vanish.
    """
    limits = cast("Any", ml_dtypes.finfo)(dtype)
    eps, tiny = float(limits.eps), float(limits.smallest_normal)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        made = exact.astype(dtype)
        maximum = float(np.abs(exact).max(initial=0))
        if not np.isfinite(maximum) or not np.isfinite(made).all():
            raise Unfit(f"{what} of up to {maximum:.3g} are beyond {name_of(dtype)}")
        if maximum > _sum_limit(dtype) and (
            old is None or maximum > float(np.abs(old).max(initial=0))
        ):
            raise Unfit(f"sums with {what} of up to {maximum:.3g} may be beyond {name_of(dtype)}")
        rows = exact.reshape(len(exact), -1) if exact.ndim else exact.reshape(1, 1)
        tops = np.abs(rows).max(1, initial=0)
        if not exact.size or float(tops.min()) >= tiny * sqrt(rows.shape[1]):
            return  # what is below the normal numbers is nothing beside the rest
        scale = np.where(tops > 0, tops, 1)[:, None]
        apart = (made.astype(np.float64).reshape(rows.shape) - rows) / scale
        lost = np.linalg.norm(apart, axis=1) / np.linalg.norm(rows / scale, axis=1).clip(1)
        allowed = np.full(len(rows), _UNITS * eps)
        if old is not None:
            before = np.abs(old.reshape(rows.shape).astype(np.float64)).max(1, initial=0)
            allowed = np.maximum(allowed, _COARSER * eps * tiny / np.where(before > 0, before, 1))
        bad = lost > allowed
    if bad.any():
        minimum = float(tops[bad].min())
        raise Unfit(f"{what} of {minimum:.3g} lose digits in {name_of(dtype)}")


def holds(factor: float, dtype: DType) -> bool:
    """Whether a number that is no 0 is an ordinary one in this type."""
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


def _sum_limit(dtype: DType) -> float:
    """Return what weights should not exceed, for their products are summed in the same range.

    float16 is summed in float32, and the result is what it is without folding.
    """
    limits = cast("Any", ml_dtypes.finfo)(dtype)
    return float(limits.max) if float(limits.max) < 1e30 else float(limits.max) ** 0.5
