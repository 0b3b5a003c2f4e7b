"""Rounds weights that passes compute in float64 to their storage type.

All passes that multiply constants use this. Finite numbers stay finite, and a channel loses no more
than ordinary rounding: if the exponent range of the type does not suffice, the pass leaves its
nodes unchanged, and these compute step by step without the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import ceil, prod
from typing import Any, cast

import ml_dtypes
import numpy as np

from ..base.parallel import share
from ..base.record import record
from ..ir.dtypes import FLOATS, DType, float16, name_of
from ..ir.halves import rounded
from ..ir.types import Array

#: Relative error of a channel, in units in the last place.
_UNITS = 1.5
#: Factor by which the error of an already coarse channel may grow.
_COARSER = 4.0
#: Numbers that no sum reaches: only float16, and what is smaller, ends before.
_ENDLESS = 1e30
#: Elements that are computed or checked at a time, so that they stay in the cache of a core.
_BLOCK = 1 << 16
#: Maximum parts of weights that threads round side by side.
_CHUNKS = 32


class Unfit(Exception):
    """Constants that a type cannot represent; the text gives the reason."""


@record
class Exact:
    """Weights in float64 that are computed when they are rounded, a few rows at a time.

    Attributes:
        shape: theirs.
        rows: returns those of some indices along the first axis, on any thread.
    """

    shape: tuple[int, ...]
    rows: Callable[[slice], Array]

    @classmethod
    def of(cls, weight: Array) -> Exact:
        """Return weights that have been computed."""
        return cls(weight.shape, weight.__getitem__)

    @property
    def all(self) -> Array:
        """All weights."""
        return self.rows(slice(None))


def product(weight: Array, scale: Array) -> Exact:
    """Return weights times factors, which are broadcast to them."""
    factors = np.broadcast_to(scale, weight.shape)

    def rows(part: slice) -> Array:
        return np.multiply(weight[part], factors[part], dtype=np.float64, casting="unsafe")

    return Exact(weight.shape, rows)


def narrowed(
    exact: Exact,
    dtype: DType,
    old: Array | None = None,
    *,
    axis: int = 0,
    also: tuple[DType, ...] = (),
) -> Array:
    """Return weights in a narrower type.

    Args:
        exact: the weights.
        dtype: of the result.
        old: see `check`; in the order of the weights.
        axis: that of channels: 0, or 1 of a matrix.
        also: types that have to be able to represent them, too.

    Raises:
        Unfit: see `check`.
    """
    _need_floats(dtype)
    count, width = exact.shape[0], prod(exact.shape[1:])
    made, step = np.empty(exact.shape, dtype), max(_BLOCK // max(width, 1), 1)
    chunks = ceil(count / _CHUNKS / step) * step
    starts = range(0, count, max(chunks, 1))
    channels, terms = (count, width) if axis == 0 else (width, count)
    tops = np.zeros((1 if axis == 0 else len(starts), channels))
    squares = np.zeros_like(tops)

    def round_some(number: int) -> None:
        end = min(starts[number] + chunks, count)
        for first in range(starts[number], end, step):
            part = slice(first, min(first + step, end))
            found = exact.rows(part)
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                made[part] = found
                top, square = _measured(found.reshape(len(found), width), 1 - axis)
                if axis == 0:
                    tops[0, part], squares[0, part] = top, square
                else:
                    np.maximum(tops[number], top, out=tops[number])
                    squares[number] += square

    share(round_some, range(len(starts)), made.size)

    @cache
    def columns() -> Array:
        return exact.all.T

    def chosen(places: Array) -> tuple[Array, Array | None]:
        if axis == 0:
            found = np.concatenate([exact.rows(slice(i, i + 1)) for i in places.tolist()])
            return _rows(found), None if old is None else _rows(old[places])
        return columns()[places], None if old is None else old.T[places]

    top, square = tops.max(0, initial=0), squares.sum(0)
    for one in (*also, dtype):
        _judge(top, square, terms, one, chosen, old)
    return made


def half_types(precision: str, dtype: DType) -> tuple[DType, ...]:
    """Return what has to represent weights as well, or their layer would not run in float16."""
    return (float16,) if precision == "float16" and dtype.itemsize > 2 else ()


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
    _need_floats(dtype, what)
    rows, before = _rows(exact), None if old is None else _rows(old)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        tops, squares = _measured(rows, 1)

    def chosen(places: Array) -> tuple[Array, Array | None]:
        return rows[places], None if before is None else before[places]

    _judge(tops, squares, rows.shape[1], dtype, chosen, old, what)


def _need_floats(dtype: DType, what: str = "weights") -> None:
    if dtype not in FLOATS:
        raise Unfit(f"{what} of {name_of(dtype)} are multiplied step by step")


def _rows(weight: Array) -> Array:
    """Return weights with channels along the first axis as a matrix."""
    shape = (len(weight), prod(weight.shape[1:])) if weight.ndim else (1, 1)
    return weight.reshape(shape)


def _measured(rows: Array, along: int) -> tuple[Array, Array]:
    """Return the greatest magnitude along an axis of a matrix, and the sum of squares."""
    tops = np.maximum(rows.max(along, initial=0), -rows.min(along, initial=0))
    return tops, np.einsum("ij,ij->i" if along else "ij,ij->j", rows, rows)


def _judge(
    tops: Array,
    squares: Array,
    terms: int,
    dtype: DType,
    chosen: Callable[[Array], tuple[Array, Array | None]],
    old: Array | None,
    what: str = "weights",
) -> None:
    """Raise Unfit as `check` does.

    Args:
        tops: the greatest magnitude in each channel.
        squares: the sum of squares of each.
        terms: the number of these.
        dtype: the narrower type.
        chosen: returns the exact and the old numbers of some channels.
        old: all of these, in any order; None if there are none.
        what: a description for messages.
    """
    limits = cast("Any", ml_dtypes.finfo)(dtype)
    eps, tiny = float(limits.eps), float(limits.smallest_normal)
    maximum = float(tops.max(initial=0))
    if not maximum < float(limits.max) * (1 + eps / 4):
        raise Unfit(f"{what} of up to {maximum:.3g} are beyond {name_of(dtype)}")
    if maximum > _sum_limit(dtype) and (old is None or maximum > float(np.abs(old).max(initial=0))):
        raise Unfit(f"sums with {what} of up to {maximum:.3g} may be beyond {name_of(dtype)}")
    # In other channels, what is lost in subnormal numbers is negligible next to the rest.
    sizes = np.sqrt(squares / max(terms, 1))
    small = np.flatnonzero(~(sizes >= tiny / 2 / (_UNITS - 0.5)))
    small = small[np.argsort(tops[small], kind="stable")]
    step = max(_BLOCK // max(terms, 1), 1)
    for first in range(0, len(small), step):
        places = small[first : first + step]
        rows, before = chosen(places)
        lost, allowed = _lost(rows, tops[places], dtype), _UNITS * eps
        if before is not None:
            given = _measured(before.astype(np.float64), 1)[0]
            allowed = np.maximum(allowed, _COARSER * eps * tiny / np.where(given > 0, given, 1))
        bad = np.flatnonzero(lost > allowed)
        if bad.size:
            raise Unfit(f"{what} of {tops[places[bad[0]]]:.3g} lose digits in {name_of(dtype)}")


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
