"""Reductions of short rows, for which numpy starts a loop each: that takes longer than the loop.

Rows are transposed and combined as wholes, in the order in which numpy combines those of a row.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ....runtime.ir.dtypes import DType
from ....runtime.ir.types import Array

#: Maximum elements of a row, and of one of floats to add: numpy adds eight and more in parts.
SHORT, ADDED = 16, 7
#: Minimum rows, and elements transposed at a time.
MANY, BLOCK = 64, 1 << 15


def takes_columns(function: np.ufunc, shape: tuple[int, ...], dtype: DType) -> bool:
    """Whether rows of such an array are so many and so short that they are combined as wholes."""
    *others, size = shape
    most = ADDED if function is np.add and dtype.kind not in "iu" else SHORT
    return 1 < size <= most and prod(others) >= MANY


def reduced(function: np.ufunc, x: Array, **options: Any) -> Array:
    """Return ``function.reduce(x, -1, x.dtype, keepdims=True, **options)``, bit for bit.

    Args:
        function: `np.add`, `np.multiply`, `np.maximum` or `np.minimum`.
        x: numbers or booleans, with at least one axis.
        options: the `initial` element.
    """
    size = x.shape[-1]
    if not takes_columns(function, x.shape, x.dtype):
        return function.reduce(x, -1, x.dtype, keepdims=True, **options)
    rows = x.reshape(-1, size)
    found, step = np.empty(len(rows), x.dtype), BLOCK // size
    for first in range(0, len(rows), step):
        some = slice(first, first + step)
        columns = np.ascontiguousarray(rows[some].T)
        function.reduce(columns, 0, x.dtype, found[some], **options)
    return found.reshape(*x.shape[:-1], 1)
