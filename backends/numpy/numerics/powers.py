"""Powers, of floats and modulo those of integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....runtime.ir.dtypes import float64, int64, uint64
from ....runtime.ir.types import Array
from .halves import store, widened


def power(x: Array, y: Array, *, out: Array) -> None:
    """Return x to the power of y in the dtype of x, computed in float32 or wider.

    Exponents that float32 does not have make the computation one of float64.
    """
    if x.dtype.kind in "iu":
        _power_of_integers(x, y, out=out)
        return
    base = widened(x)
    exponents = y.astype(base.dtype)
    if not np.can_cast(y.dtype, base.dtype) and not np.array_equal(exponents, y):
        store(out, np.power(base.astype(float64), y.astype(float64)))
        return
    if y.size == 1:
        exponent = float(y.reshape(-1)[0])
        if exponent in _POWERS:
            _POWERS[exponent](base, out=out)
            return
        if exponent.is_integer():  # a negative base takes a hundred times as long
            size = np.abs(base)
            np.power(size, exponent, out=size)
            store(out, np.copysign(size, base) if exponent % 2 else size)
            return
    store(out, np.power(base, exponents))


def _power_of_integers(x: Array, y: Array, *, out: Array) -> None:
    """Compute a power modulo that of two of the dtype of x, or cut off that of a float."""
    if y.dtype.kind not in "iu":
        store(out, np.trunc(np.power(x.astype(float64), y.astype(float64))))
        return
    below = y < 0
    whole = np.where(below, 0, y)
    if np.can_cast(y.dtype, x.dtype):
        found = np.power(x, whole.astype(x.dtype))
    else:  # two's complement: products of negative numbers are those of their bits
        bits = x.astype(int64).astype(uint64)
        found = np.power(bits, whole.astype(uint64)).astype(x.dtype)
    if below.any():
        fractions = np.trunc(np.power(x.astype(float64), y.astype(float64)))
        np.copyto(found, fractions, "unsafe", where=np.broadcast_to(below, found.shape))
    store(out, found)


def _cube(x: Array, *, out: Array) -> None:
    np.multiply(np.square(x), x, out=out)


_POWERS: dict[float, Callable[..., object]] = {
    -1.0: np.reciprocal,
    0.5: np.sqrt,
    1.0: np.positive,
    2.0: np.square,
    3.0: _cube,
}
