"""Fast conversion between float16 and float32, for which numpy has no vector instructions.

Numpy takes ten times as long where float16 is subnormal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ....runtime.ir.dtypes import FEW_BITS, INTEGERS, DType, bfloat16, float16, float32
from ....runtime.ir.types import Array
from . import calls

#: Elements per block, so that intermediate results stay in the cache; and fewest for which several
#: calls are faster than one of numpy.
BLOCK, FEWEST = 1 << 15, 512
#: Bits of a float32: its magnitude, its exponent, and its sign. Numbers are arrays, which numpy
#: otherwise makes of them in every call.
_MAGNITUDE, _EXPONENT = np.array(0x7FFFFFFF, np.int32), np.array(0x7F800000, np.int32)
_SIGN = np.array(-(1 << 31), np.int32)
#: What makes 13 a difference of exponents, with last places that make up for the bias of 1/2 in
#: float16's place: -126 << 10 modulo 2¹⁶.
_LAST = 2 << 10
_THIRTEEN = np.array((13 << 23) + _LAST, np.int32)
#: The last place of 1/2 is the smallest float16; and infinity.
_HALF = np.array((126 << 23) + _LAST, np.int32).view(float32)
_TOP = np.array(np.inf, float32)
#: Adds the low 16 bits, and all bits less 13 places, in the upper half of an int32.
_JOIN = np.array((1 << 16) + (1 << 3), np.int32)
#: Numbers of places.
_PLACES_13, _PLACES_16 = np.array(13, np.int32), np.array(16, np.int32)
#: Bits of the first float32 that is not a finite float16, and of infinity.
_OVER, _INFINITE = 0x47800000, 0x7F800000
#: Sign, exponent and fraction of a float16 in float32's places, and what the exponent lacks.
_PLACES, _SCALE = np.array(-0x70002000, np.int32), np.array(2.0**112, float32)
#: The first float16 that is not finite, by its bits, and the first negative one.
_SPECIAL, _NEGATIVE_SPECIAL = 0x7C00, 0xFC00


def store(out: Array, source: Array) -> None:
    """Copy into `out` of another dtype; float32 is rounded to float16 as numpy does.

    Integers of a few bits are the last ones of the others, for which ml_dtypes 0.7 stores zeros.
    """
    if out.dtype in FEW_BITS and source.dtype not in INTEGERS:
        source = source.astype(np.int32)
    pair = source.dtype, out.dtype
    is_known = pair in ((float32, float16), (float16, float32)) and out.shape == source.shape
    if not is_known or out.size < FEWEST:
        np.copyto(out, source, casting="unsafe")
        return
    if out.flags.c_contiguous and source.flags.c_contiguous:
        out, source = out.reshape(-1), source.reshape(-1)
    if out.dtype == float32:
        spare = None if out.flags.c_contiguous else np.empty(min(out.size, BLOCK), np.int32)
        for part in _parts(out.shape):
            _widen(out[part], source[part], spare)
        return
    spare = np.empty((2, min(out.size, BLOCK)), np.int32)
    for part in _parts(out.shape):
        _narrow(out[part], source[part], spare)


def in_dtype(x: Array, dtype: DType) -> Array:
    """Return floats in a floating-point dtype; `x` itself if it has that."""
    if x.dtype == dtype:
        return x
    found = np.empty(x.shape, dtype)
    store(found, x)
    return found


def widened(x: Array) -> Array:
    """Return half floats as float32, others unchanged."""
    return in_dtype(x, float32) if x.dtype in (float16, bfloat16) else x


def copying(out: Array, source: Array) -> Callable[[], object]:
    """Return the call that copies into `out`, converting if necessary."""
    return partial(np.copyto if out.dtype == source.dtype else store, out, source)


def _parts(shape: tuple[int, ...]) -> Iterator[tuple[int | slice, ...]]:
    """Yield the places of blocks of at most `BLOCK` elements that cover `shape`."""
    if prod(shape) <= BLOCK:
        yield ()
        return
    inner = prod(shape[1:])
    if inner > BLOCK:
        for i in range(shape[0]):
            for part in _parts(shape[1:]):
                yield (i, *part)
        return
    count = BLOCK // inner
    for start in range(0, shape[0], count):
        yield (slice(start, start + count),)


def _widen(out: Array, source: Array, spare: Array | None) -> None:
    """Move the bits, and multiply by what the exponent lacks, which is right for subnormals.

    Calls on rows of larger arrays take several times as long: they work on contiguous copies.
    """
    halves = (source if source.flags.c_contiguous else source.copy()).view(np.int16)
    if _max(halves) >= _SPECIAL or _max(halves.view(np.uint16)) >= _NEGATIVE_SPECIAL:
        np.copyto(out, source)
        return
    bits = out.view(np.int32) if spare is None else spare[: out.size].reshape(out.shape)
    np.copyto(bits, halves)  # with its sign extended
    np.left_shift(bits, _PLACES_13, bits)
    np.bitwise_and(bits, _PLACES, bits)
    found = bits.view(float32)
    np.multiply(found, _SCALE, found)
    if spare is not None:
        np.copyto(out, found)


def _narrow(out: Array, source: Array, spare: Array) -> None:
    """Round by adding a number whose last place is that of the result.

    That is 2¹³ times the power of two below the magnitude, or 1/2 for subnormal results. The last
    places of the sum are the fraction, whose leading one is carried into the exponent.
    """
    total, found = (part[: source.size].reshape(source.shape) for part in spare)
    sums, last = total.view(float32), found.view(float32)
    bits = (source if source.flags.c_contiguous else source.copy()).view(np.int32)
    np.bitwise_and(bits, _EXPONENT, found)
    np.add(found, _THIRTEEN, found)
    calls.clip(last, _HALF, _TOP, last)  # a maximum takes 3 times
    np.bitwise_and(bits, _MAGNITUDE, total)
    is_over = _max(total) >= _OVER
    np.add(sums, last, sums)
    np.multiply(total, _JOIN, total)
    if is_over:
        magnitude = np.bitwise_and(bits, _MAGNITUDE)
        np.copyto(total, 0x7C00 << 16, where=magnitude >= _OVER)
        payload = ((magnitude >> 13) & 0x3FF) << 16
        np.copyto(total, 0x7E00 << 16 | payload, where=magnitude > _INFINITE)
    np.bitwise_and(bits, _SIGN, found)
    np.bitwise_or(total, found, total)
    np.right_shift(total, _PLACES_16, total)
    np.copyto(out.view(np.int16), total, casting="unsafe")


def _max(x: Array) -> Any:
    """Return the greatest element; `ndarray.max` is a function in Python."""
    return np.maximum.reduce(x, None)
