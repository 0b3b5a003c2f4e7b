"""Fast conversion of float32 to float16: numpy is 30 times slower for subnormal results."""

from __future__ import annotations

import numpy as np

from ....runtime.ir.dtypes import float16, float32
from ....runtime.ir.types import Array

#: Elements per block, so that intermediate results stay in the cache.
BLOCK = 1 << 15
#: Bits of the smallest float32 that is a normal float16, of the first beyond it, and of infinity.
_NORMAL, _OVER, _INFINITE = 0x38800000, 0x47800000, 0x7F800000
#: The last place of 1/2 is the smallest float16: adding to it rounds to a multiple of that.
_HALF = 0x3F000000


def store(out: Array, source: Array) -> None:
    """Copy into `out` of another dtype; float32 is rounded to float16 as numpy does."""
    if out.dtype != float16 or source.dtype != float32:
        np.copyto(out, source, casting="unsafe")
    elif out.flags.c_contiguous and source.flags.c_contiguous and out.shape == source.shape:
        to, of = out.reshape(-1), source.reshape(-1)
        for start in range(0, to.size, BLOCK):
            _narrow(to[start : start + BLOCK], of[start : start + BLOCK])
    else:
        _narrow(out, source)


def _narrow(out: Array, source: Array) -> None:
    bits = source.view(np.int32)
    sign = np.bitwise_and(bits, np.int32(-(1 << 31)))
    magnitude = np.bitwise_xor(bits, sign)
    small = np.add(magnitude.view(float32), float32.type(0.5)).view(np.int32)
    np.subtract(small, np.int32(_HALF), out=small)
    # Ties round to even: add one if the last remaining bit is 1.
    found = np.right_shift(magnitude, np.int32(13))
    np.bitwise_and(found, np.int32(1), out=found)
    np.add(found, magnitude, out=found)
    np.add(found, np.int32(0xFFF - (112 << 23)), out=found)
    np.right_shift(found, np.int32(13), out=found)
    np.copyto(found, small, where=np.less(magnitude, np.int32(_NORMAL)))
    if magnitude.size and magnitude.max() >= _OVER:
        np.copyto(found, 0x7C00, where=magnitude >= _OVER)
        payload = (magnitude >> 13) & 0x3FF
        np.copyto(found, 0x7E00 | payload, where=magnitude > _INFINITE)
    np.right_shift(sign, np.int32(16), out=sign)
    np.bitwise_or(found, sign, out=found)
    np.copyto(out.view(np.int16), found, casting="unsafe")
