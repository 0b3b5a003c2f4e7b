"""Squared distances between the rows of two matrices."""

from __future__ import annotations

import numpy as np

from ....runtime.ir.dtypes import float32, float64
from ....runtime.ir.types import Array

#: Elements of differences held at a time.
BLOCK = 1 << 20
#: Squared distances below this share of the squared lengths are computed from differences.
CLOSE = 1e-6


def squared_distances(a: Array, b: Array) -> Array:
    """Return the squared distance of every row of a [m, k] from every row of b [n, k]: float64.

    Those of float32 and narrower rows are |a|² + |b|² - 2ab in float64, which is a matrix product.
    Where that would cancel digits, and for float64, they are sums of squared differences.
    """
    if np.result_type(a, b, float32) == float64:
        return _of_differences(a, b)
    wide_a, wide_b = a.astype(float64), b.astype(float64)
    lengths = np.einsum("mk,mk->m", wide_a, wide_a)[:, np.newaxis]
    lengths = lengths + np.einsum("nk,nk->n", wide_b, wide_b)
    squares = lengths - 2 * (wide_a @ wide_b.T)
    i, j = np.nonzero(~(squares > CLOSE * lengths))
    step = max(1, BLOCK // max(1, a.shape[1]))
    for first in range(0, len(i), step):
        part = slice(first, first + step)
        apart = wide_a[i[part]] - wide_b[j[part]]
        squares[i[part], j[part]] = np.einsum("pk,pk->p", apart, apart)
    return squares


def _of_differences(a: Array, b: Array) -> Array:
    squares = np.empty((len(a), len(b)))
    rows = max(1, BLOCK // max(1, b.size))
    for first in range(0, len(a), rows):
        apart = a[first : first + rows, np.newaxis] - b
        squares[first : first + rows] = np.einsum("mnk,mnk->mn", apart, apart)
    return squares
