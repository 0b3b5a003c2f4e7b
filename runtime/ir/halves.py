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
#: Numbers by which an array is judged, and the share of subnormal ones below which numpy is faster.
_SAMPLE, _FEW = 4096, 0.03
#: Elements that a thread rounds at a time, and those of them that have to stay in its cache.
_PART, _BLOCK = 1 << 20, 1 << 15


def rounded(data: Array, dtype: DType) -> Array:
    """Return ``data.astype(dtype)``.

    Args:
        data: of any dtype; large arrays of float32 and float64 are rounded on several threads.
        dtype: of the result.
    """
    if data.dtype not in (np.float32, np.float64) or not data.size:
        return data.astype(dtype)
    if not (data.flags.c_contiguous or data.flags.f_contiguous):
        data = data.copy(order="K")
    found = np.empty_like(data, dtype)
    source, target = data.ravel(order="K"), found.ravel(order="K")
    sample = np.abs(source[:: max(source.size // _SAMPLE, 1)])
    fill = _by_units if dtype == float16 and (sample < _NORMAL).mean() > _FEW else _cast

    def work(first: int) -> None:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            fill(source[first : first + _PART], target[first : first + _PART])

    share(work, range(0, data.size, _PART), data.size)
    return found


def _cast(source: Array, target: Array) -> None:
    target[...] = source


def _by_units(source: Array, target: Array) -> None:
    """Round to float16; a subnormal number, or the smallest normal one, is its number of units."""
    for first in range(0, source.size, _BLOCK):
        part = source[first : first + _BLOCK]
        magnitudes = np.abs(part)
        small = magnitudes < _NORMAL
        units = np.rint(np.where(small, magnitudes, 0) * (1 / _UNIT)).astype(np.uint16)
        bits = np.where(small, 0, part).astype(np.float16).view(np.uint16)
        signs = np.signbit(part).astype(np.uint16) << 15
        target[first : first + _BLOCK] = (bits | units | signs).view(np.float16)
