"""Sums of products of bytes that are exact in floats, as BLAS has no integers."""

from __future__ import annotations

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, float32, float64, int64
from ....runtime.ir.graph import Value
from ....runtime.ir.types import Array

#: Up to here, float32 has all integers.
WHOLE = 1 << 24


@record
class ExactSums:
    """How sums of integers are exact.

    Attributes:
        parts: parts of the terms of which float32 has all sums.
        dtype: one that has the sums of all parts, and what is added to them.
    """

    parts: tuple[slice, ...]
    dtype: DType

    @classmethod
    def of(cls, products: Array, added: Array | None = None) -> ExactSums | None:
        """Return this for some sums; None if these might be beyond int32.

        Args:
            products: the greatest magnitudes of products, [terms, sums].
            added: those of what is added.
        """
        whole = products.sum(0, float64)
        if added is not None:
            whole = whole + added
        if whole.max(initial=0) <= WHOLE:
            return cls((slice(0, len(products)),), float32)
        if whole.max() >= 1 << 31 or products.max(initial=0) > WHOLE:
            return None
        reached = np.cumsum(products, 0, float64)
        parts, before = list[slice](), np.zeros_like(reached[:1])
        while not parts or parts[-1].stop < len(reached):
            first = parts[-1].stop if parts else 0
            last = int(np.count_nonzero((reached - before).max(1) <= WHOLE))
            parts.append(slice(first, last))
            before = reached[last - 1]
        return cls(tuple(parts), float64)

    def __str__(self) -> str:
        return f" in {self.dtype.name}" + (f", {len(self.parts)} parts" * (len(self.parts) > 1))


def farthest(x: Value, zero_point: Value | None) -> int:
    """Return the greatest magnitude of integers less their zero point, which may be unknown."""
    limits = np.iinfo(x.tensor.dtype)
    if zero_point is None:
        return max(-limits.min, limits.max)
    if zero_point.data is None:
        return limits.max - limits.min
    zero = zero_point.data.astype(int64)
    return int(max((zero - limits.min).max(initial=0), (limits.max - zero).max(initial=0)))
