"""Fast conversion between float16 and float32, for which numpy has no vector instructions.

Numpy takes ten times as long where float16 is subnormal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod

import numpy as np

from ....runtime.ir.dtypes import float16, float32
from ....runtime.ir.types import Array

#: Elements per block, so that intermediate results stay in the cache; and fewest for which several
#: calls are faster than one of numpy.
BLOCK, FEWEST = 1 << 15, 512
#: Bits of a float32: its magnitude, its exponent, and 13 as a difference of exponents.
_MAGNITUDE, _EXPONENT, _THIRTEEN = np.int32(0x7FFFFFFF), np.int32(0x7F800000), np.int32(13 << 23)
#: The last place of 1/2 is the smallest float16.
_HALF = np.array(0.5, float32)
#: Exponent of 1/2 in float16's place, and the sign of a float16.
_OFFSET, _SIGN = np.int32(126 << 10), np.int32(0x8000)
#: Bits of the first float32 that is not a finite float16, and of infinity.
_OVER, _INFINITE = 0x47800000, 0x7F800000
#: Sign, exponent and fraction of a float16 in float32's places, and what the exponent lacks.
_PLACES, _SCALE = np.int32(-0x70002000), np.array(2.0**112, float32)
#: The first float16 that is not finite, by its bits, and the first negative one.
_SPECIAL, _NEGATIVE_SPECIAL = 0x7C00, 0xFC00


def store(out: Array, source: Array) -> None:
    """Copy into `out` of another dtype; float32 is rounded to float16 as numpy does."""
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
    halves = np.ascontiguousarray(source).view(np.int16)
    if halves.max() >= _SPECIAL or halves.view(np.uint16).max() >= _NEGATIVE_SPECIAL:
        np.copyto(out, source)
        return
    bits = out.view(np.int32) if spare is None else spare[: out.size].reshape(out.shape)
    np.copyto(bits, halves)  # with its sign extended
    np.left_shift(bits, np.int32(13), out=bits)
    np.bitwise_and(bits, _PLACES, out=bits)
    found = bits.view(float32)
    np.multiply(found, _SCALE, out=found)
    if spare is not None:
        np.copyto(out, found)


def _narrow(out: Array, source: Array, spare: Array) -> None:
    """Round by adding a number whose last place is that of the result.

    That is 2¹³ times the power of two below the magnitude, or 1/2 for subnormal results. The last
    places of the sum are the fraction, whose leading one is carried into the exponent.
    """
    total, found = (part[: source.size].reshape(source.shape) for part in spare)
    bits = np.ascontiguousarray(source).view(np.int32)
    np.bitwise_and(bits, _EXPONENT, out=found)
    np.add(found, _THIRTEEN, out=found)
    np.maximum(found.view(float32), _HALF, out=found.view(float32))
    np.bitwise_and(bits, _MAGNITUDE, out=total)
    is_over = total.max() >= _OVER
    np.add(total.view(float32), found.view(float32), out=total.view(float32))
    np.right_shift(total, np.int32(13), out=found)
    np.add(found, total, out=found)  # of which the last 16 bits count
    np.subtract(found, _OFFSET, out=found)
    if is_over:
        magnitude = np.bitwise_and(bits, _MAGNITUDE)
        np.copyto(found, 0x7C00, where=magnitude >= _OVER)
        payload = (magnitude >> 13) & 0x3FF
        np.copyto(found, 0x7E00 | payload, where=magnitude > _INFINITE)
    np.right_shift(bits, np.int32(16), out=total)
    np.bitwise_and(total, _SIGN, out=total)
    np.bitwise_or(found, total, out=found)
    np.copyto(out.view(np.int16), found, casting="unsafe")
