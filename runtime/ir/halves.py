"""Rounding to 16-bit floats, as numpy does it, in a fraction of its time.

numpy raises a floating-point flag for every number that becomes a subnormal float16, which takes
fifty times as long as the rounding. Weights that were scaled by small factors are full of them.
"""

from __future__ import annotations

import numpy as np

from ..base.parallel import share
from .dtypes import DType, float16
from .types import Array

#: The smallest normal float16, and the smallest positive one.
_NORMAL, _UNIT = 2.0**-14, 2.0**-24
#: Share of subnormal numbers below which numpy is faster.
_FEW = 0.03
#: Elements that are rounded at a time, so that they stay in the cache of a core.
_BLOCK = 1 << 15


def rounded(data: Array, dtype: DType) -> Array:
    """Return ``data.astype(dtype)``.

    Args:
        data: of any dtype; large arrays of float32 and float64 are rounded on several threads.
        dtype: of the result.
    """
    if data.dtype not in (np.float32, np.float64):
        return data.astype(dtype)
    if not (data.flags.c_contiguous or data.flags.f_contiguous):
        data = data.copy(order="K")
    found = np.empty_like(data, dtype)
    source, target = data.ravel(order="K"), found.ravel(order="K")

    def work(first: int) -> None:
        part = source[first : first + _BLOCK]
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            target[first : first + _BLOCK] = (
                _to_float16(part) if dtype == float16 else part.astype(dtype)
            )

    share(work, range(0, data.size, _BLOCK), data.size)
    return found


def _to_float16(part: Array) -> Array:
    magnitudes = np.abs(part)
    small = magnitudes < _NORMAL
    if np.count_nonzero(small) < _FEW * part.size:
        return part.astype(np.float16)
    # A subnormal number, or the smallest normal one, is its number of units.
    units = np.rint(np.where(small, magnitudes, 0) * (1 / _UNIT)).astype(np.uint16)
    bits = np.where(small, 0, part).astype(np.float16).view(np.uint16)
    return (bits | units | np.signbit(part).astype(np.uint16) << 15).view(np.float16)
