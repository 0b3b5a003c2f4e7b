"""Extremes of short rows, which numpy finds row by row: starting a loop takes longer than its work.

They are the same in any order, so rows are transposed, and compared as wholes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....runtime.ir.types import Array

#: Maximum elements of a row, minimum rows, and elements transposed at a time.
SHORT, MANY, BLOCK = 16, 64, 1 << 15


def extremes(function: np.ufunc, x: Array, initial: Any) -> Array:
    """Return ``function.reduce(x, -1, keepdims=True, initial=initial)``.

    Args:
        function: `np.maximum` or `np.minimum`.
        x: of at least one axis.
        initial: compared with all elements.
    """
    size = x.shape[-1]
    if not 1 < size <= SHORT or x.size < MANY * size:
        return function.reduce(x, -1, keepdims=True, initial=initial)
    rows = x.reshape(-1, size)
    found, step = np.empty(len(rows), x.dtype), BLOCK // size
    for first in range(0, len(rows), step):
        some = slice(first, first + step)
        function.reduce(np.ascontiguousarray(rows[some].T), 0, initial=initial, out=found[some])
    return found.reshape(*x.shape[:-1], 1)
