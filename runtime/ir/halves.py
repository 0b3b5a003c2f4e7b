"""Rounding to 16-bit floats, as numpy does it, in a fraction of its time.

numpy raises a floating-point flag for every number that becomes a subnormal float16, which takes
fifty times as long as the rounding. Weights that were scaled by small factors are full of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from ..base.parallel import begin
from .dtypes import DType, float16
from .types import Array

#: The smallest normal float16, and the smallest positive one.
_NORMAL, _UNIT = 2.0**-14, 2.0**-24
#: Numbers by which an array is judged, and the share of subnormal ones below which numpy is faster.
_SAMPLE, _FEW = 4096, 0.03
#: Elements that a thread rounds at a time, and those of them that have to stay in its cache.
_PART, _BLOCK = 1 << 20, 1 << 15

#: What rounds, the numbers, and where to.
_Part = tuple[Callable[[Array, Array], None], Array, Array]


def rounded(data: Array, dtype: DType) -> Array:
    """Return ``data.astype(dtype)``.

    Args:
        data: of any dtype; large arrays of float32 and float64 are rounded on several threads.
        dtype: of the result.
    """
    (found,), end = begin_rounding([data], dtype)
    end()
    return found


def begin_rounding(arrays: Iterable[Array], dtype: DType) -> tuple[list[Array], Callable[[], None]]:
    """Round arrays as `rounded` does; threads share the parts of all of them.

    Returns:
        The results, and a function that waits until they have their elements; see `begin`.
    """
    found, parts = list[Array](), list[_Part]()
    for data in arrays:
        if data.dtype not in (np.float32, np.float64) or not data.size:
            found.append(data.astype(dtype))
            continue
        if not (data.flags.c_contiguous or data.flags.f_contiguous):
            data = data.copy(order="K")
        found.append(np.empty_like(data, dtype))
        parts += _parts(data.ravel(order="K"), found[-1].ravel(order="K"))
    return found, begin(_fill, parts, sum(target.size for _, _, target in parts))


def _parts(source: Array, target: Array) -> Iterator[_Part]:
    """Yield the parts of an array that threads round."""
    sample = np.abs(source[:: max(source.size // _SAMPLE, 1)])
    subnormal = target.dtype == float16 and (sample < _NORMAL).mean() > _FEW
    for first in range(0, source.size, _PART):
        part = slice(first, first + _PART)
        yield _by_units if subnormal else _cast, source[part], target[part]


def _fill(part: _Part) -> None:
    fill, source, target = part
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        fill(source, target)


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
