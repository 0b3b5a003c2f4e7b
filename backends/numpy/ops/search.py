"""Operators that find elements: the largest, the distinct, the non-zero."""

from __future__ import annotations

from math import prod

import numpy as np

from ....runtime.base.guard import check_time
from ....runtime.ir.dtypes import float16, float32, int64
from ....runtime.ir.types import Array
from ....runtime.ops.search import NonZero, TopK, Unique
from ..engine.registry import kernel

#: Elements processed between two checks of the deadline.
BLOCK = 1 << 24


@kernel(TopK)
def top_k(op: TopK, x: Array, k: Array) -> tuple[Array, Array]:
    """Return the largest (or smallest) elements; of equal ones the lower index comes first."""
    count = int(k.reshape(-1)[0])
    if op.largest:
        size = x.shape[op.axis]
        order = size - 1 - np.flip(np.argsort(np.flip(x, op.axis), op.axis, kind="stable"), op.axis)
    else:
        order = np.argsort(x, op.axis, kind="stable")
    places = np.take(order, np.arange(count), op.axis)
    return np.take_along_axis(x, places, op.axis), places


@kernel(NonZero)
def non_zero(op: NonZero, x: Array) -> Array:
    """Return the coordinates of all elements that are not 0."""
    if x.ndim == 0:
        return np.zeros((0, int(bool(x))), int64)
    found: list[Array] = []
    rows = max(1, BLOCK // max(1, prod(x.shape[1:])))
    for first in range(0, len(x), rows):
        check_time()
        places = np.array(np.nonzero(x[first : first + rows]), int64)
        places[0] += first
        found.append(places)
    return np.concatenate(found, 1) if found else np.zeros((x.ndim, 0), int64)


@kernel(Unique)
def unique(op: Unique, x: Array) -> tuple[Array, Array, Array, Array]:
    """Return the distinct elements or slices, their positions and counts."""
    # numpy 2.4 sorts float16 incorrectly on processors with AVX-512 VBMI2.
    wide = x.astype(float32) if x.dtype == float16 else x
    values, first, inverse, counts = np.unique(
        wide, return_index=True, return_inverse=True, return_counts=True, axis=op.axis
    )
    values = values.astype(x.dtype, copy=False)
    inverse = inverse.reshape(-1)
    if not op.sorted:
        order = np.argsort(first, kind="stable")
        values = np.take(values, order, 0 if op.axis is None else op.axis)
        first, counts = first[order], counts[order]
        inverse = np.argsort(order, kind="stable")[inverse]
    return values, first.astype(int64), inverse.astype(int64), counts.astype(int64)
