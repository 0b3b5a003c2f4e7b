"""Rounds weights that passes compute in float64 to their storage type.

All passes that multiply constants use this. Finite numbers stay finite, and a channel loses no more
than ordinary rounding: if the exponent range of the type does not suffice, the pass leaves its
nodes unchanged, and these compute step by step without the loss.
"""

from __future__ import annotations

from functools import partial
from math import inf, sqrt
from typing import Any, NamedTuple, cast

import ml_dtypes
import numpy as np

from ..base.parallel import in_parallel
from ..ir.dtypes import DType, name_of
from ..ir.halves import rounded
from ..ir.types import Array

#: Relative error of a channel, in units in the last place.
_UNITS = 1.5
#: Factor by which the error of an already coarse channel may grow.
_COARSER = 4.0
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
        Unfit: a number would become infinite, or a channel would lose digits or vanish.
    """
    rows = exact.reshape(len(exact), -1) if exact.ndim else exact.reshape(1, 1)
    before = old.reshape(rows.shape) if old is not None else None
    step = max(_BLOCK // max(rows.shape[1], 1), 1)
    judge = partial(_judged, rows, before, step, dtype)
    found = (
        [judge(0)] if rows.size <= _BLOCK else list(in_parallel(judge, range(0, len(rows), step)))
    )
    maximum = max((each.maximum for each in found), default=0.0)
    if not all(each.is_finite for each in found):
        raise Unfit(f"{what} of up to {maximum:.3g} are beyond {name_of(dtype)}")
    if maximum > _sum_limit(dtype) and (old is None or maximum > float(np.abs(old).max(initial=0))):
        raise Unfit(f"sums with {what} of up to {maximum:.3g} may be beyond {name_of(dtype)}")
    minimum = min(each.lossy for each in found) if found else inf
    if minimum < inf:
        raise Unfit(f"{what} of {minimum:.3g} lose digits in {name_of(dtype)}")


class _Judged(NamedTuple):
    """What becomes of some channels.

    Attributes:
        maximum: the greatest magnitude.
        is_finite: whether all numbers are, and stay so.
        lossy: the greatest magnitude of the smallest channel that loses digits; infinity if none.
    """

    maximum: float
    is_finite: bool
    lossy: float


def _judged(exact: Array, old: Array | None, step: int, dtype: DType, first: int) -> _Judged:
    """Return what becomes of `step` channels of float64 [channel, element]; see `check`."""
    rows = exact[first : first + step]
    limits = cast("Any", ml_dtypes.finfo)(dtype)
    eps, tiny = float(limits.eps), float(limits.smallest_normal)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        made = rounded(rows, dtype)
        tops = np.abs(rows).max(1, initial=0)
        maximum = float(tops.max(initial=0))
        if not np.isfinite(maximum) or not np.isfinite(made).all():
            return _Judged(maximum, False, inf)
        # In other channels, subnormal numbers are negligible next to the rest.
        small = tops < tiny * sqrt(rows.shape[1])
        if not small.any():
            return _Judged(maximum, True, inf)
        if not small.all():
            rows, made, tops = rows[small], made[small], tops[small]
        scale = np.where(tops > 0, tops, 1)[:, None]
        apart = (made.astype(np.float64) - rows) / scale
        lost = np.linalg.norm(apart, axis=1) / np.linalg.norm(rows / scale, axis=1).clip(1)
        allowed = np.full(len(rows), _UNITS * eps)
        if old is not None:
            given = old[first : first + step][small].astype(np.float64)
            before = np.abs(given).max(1, initial=0)
            allowed = np.maximum(allowed, _COARSER * eps * tiny / np.where(before > 0, before, 1))
        return _Judged(maximum, True, float(tops[lost > allowed].min(initial=inf)))


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


def _sum_limit(dtype: DType) -> float:
    """Return the limit for weights whose products are summed in the same range.

    float16 is summed in float32, so folding does not change its results.
    """
    limits = cast("Any", ml_dtypes.finfo)(dtype)
    return float(limits.max) if float(limits.max) < 1e30 else float(limits.max) ** 0.5
