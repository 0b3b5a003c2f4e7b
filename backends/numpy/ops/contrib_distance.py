"""Pairwise distances; see `runtime.ops.contrib_distance`."""

from __future__ import annotations

import numpy as np

from ....runtime.ir.dtypes import float64
from ....runtime.ir.types import Array
from ....runtime.ops.contrib_distance import CDist
from ..engine.registry import kernel

#: Elements of differences held at a time.
BLOCK = 1 << 20


@kernel(CDist)
def cdist(op: CDist, a: Array, b: Array) -> Array:
    """Return the distances, from differences in float64, so that close points lose no digits."""
    result = np.empty((len(a), len(b)), a.dtype)
    rows = max(1, BLOCK // max(1, b.size))
    wide = b.astype(float64)
    for first in range(0, len(a), rows):
        apart = a[first : first + rows, np.newaxis].astype(float64) - wide
        squares = np.einsum("mnk,mnk->mn", apart, apart)
        distances = np.sqrt(squares) if op.metric == "euclidean" else squares
        result[first : first + rows] = distances
    return result
