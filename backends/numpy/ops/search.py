"""Operators that find elements: the largest, the distinct, the non-zero."""

from __future__ import annotations

from math import prod

import numpy as np

from ....runtime.base.guard import check_time
from ....runtime.ir.dtypes import float32, int64
from ....runtime.ir.types import Array
from ....runtime.ops.search import NonZero, TopK, Unique
from ..engine.registry import kernel

#: Elements processed between two checks of the deadline.
BLOCK = 1 << 24
#: Rows of at least as many times the elements that TopK selects are partitioned before sorting.
FEW = 4
#: Maximum elements of a group of which the best is found; minimum elements of a row for each that
#: TopK selects, for groups; and minimum elements of rows that are searched one by one.
GROUP, FEWEST, LONG = 64, 8, 1 << 12


@kernel(TopK)
def top_k(op: TopK, x: Array, k: Array) -> tuple[Array, Array]:
    """Return the largest (or smallest) elements; of equal ones the lower index comes first."""
    count = int(k.reshape(-1)[0])
    keys, largest = _sortable(x), bool(op.largest)
    if count == 1 and (first := _first(keys, op.axis, largest)) is not None:
        return np.take_along_axis(x, first, op.axis), first
    rows = np.moveaxis(keys, op.axis, -1)
    if (top := _top_of_long(rows, count, largest)) is not None:
        places = np.moveaxis(top, -1, op.axis)
        return np.take_along_axis(x, places, op.axis), places
    found = _candidates(rows, count, largest) if 0 < FEW * count <= rows.shape[-1] else None
    if found is None:
        places = _order(rows, largest)[..., :count]
    else:
        values = np.take_along_axis(rows, found, -1)
        places = np.take_along_axis(found, _order(values, largest), -1)
    places = np.moveaxis(places, -1, op.axis)
    return np.take_along_axis(x, places, op.axis), places


def _sortable(x: Array) -> Array:
    """Return the elements as numbers that numpy sorts, with NaN last.

    It does not know the order of bfloat16's NaN, and numpy 2.4 sorts float16 incorrectly on
    processors with AVX-512 VBMI2.
    """
    return x.astype(float32) if x.dtype.itemsize <= 2 and x.dtype.kind in "fV" else x


def _order(rows: Array, largest: bool) -> Array:
    """Return the indices that sort rows; NaN is the largest number."""
    if not largest:
        return np.argsort(rows, -1, kind="stable")
    return rows.shape[-1] - 1 - np.flip(np.argsort(np.flip(rows, -1), -1, kind="stable"), -1)


def _first(x: Array, axis: int, largest: bool) -> Array | None:
    """Return the index of the first largest or smallest element; None if NaN hides the latter."""
    if not x.shape[axis]:
        return None
    if largest:
        return x.argmax(axis, keepdims=True)
    found = x.argmin(axis, keepdims=True)
    is_number = x.dtype.kind != "f" or not np.isnan(np.take_along_axis(x, found, axis)).any()
    return found if is_number else None


def _top_of_long(rows: Array, count: int, largest: bool) -> Array | None:
    """Return the sorted indices of the top elements of a few long rows; None for others."""
    length = rows.shape[-1]
    if not (rows.size == length or length >= LONG) or FEWEST * count > length or not count:
        return None
    found: list[Array] = []
    for row in rows.reshape(-1, length):
        check_time()
        top = _top(row, count, largest)
        if top is None:
            return None
        found.append(top)
    return np.array(found, int64).reshape(*rows.shape[:-1], count)


def _top(row: Array, count: int, largest: bool) -> Array | None:
    """Return the sorted indices of the top elements; None if there is a NaN.

    The best elements of `count` groups are at least as good as the last of these, the limit. So
    all top elements are, and no others are sorted.
    """
    size = min(GROUP, len(row) // (2 * count))
    groups, rest = row[: len(row) // size * size].reshape(size, -1), row[len(row) // size * size :]
    best = groups.max(0) if largest else groups.min(0)
    if row.dtype.kind == "f" and (np.isnan(best).any() or np.isnan(rest).any()):
        return None
    place = len(best) - count if largest else count - 1
    limit = np.partition(best, place)[place]
    chosen = np.flatnonzero(row >= limit if largest else row <= limit)
    return chosen[_order(row[chosen], largest)[:count]]


def _candidates(rows: Array, count: int, largest: bool) -> Array | None:
    """Return the indices of the top elements of each row, ascending; None if there is a NaN.

    Of elements equal to the least of them, those with the lowest indices are taken.
    """
    if rows.dtype.kind == "f" and np.isnan(rows).any():
        return None
    place = rows.shape[-1] - count if largest else count - 1
    limit = np.partition(rows, place, -1)[..., place, np.newaxis]
    chosen = rows >= limit if largest else rows <= limit
    if np.count_nonzero(chosen) > count * limit.size:
        equal = rows == limit
        chosen ^= equal
        free = count - np.count_nonzero(chosen, -1)[..., np.newaxis]
        chosen |= equal & (np.cumsum(equal, -1) <= free)
    return np.nonzero(chosen)[-1].reshape(*rows.shape[:-1], count)


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
    keys = _sortable(x)
    if op.axis is not None and keys.dtype.kind == "f":
        # Slices with NaN would differ from one another.
        keys = np.unique(keys, return_inverse=True)[1].reshape(x.shape)
    _, first, inverse, counts = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True, axis=op.axis
    )
    inverse = inverse.reshape(-1)
    if not op.sorted:
        order = np.argsort(first, kind="stable")
        first, counts = first[order], counts[order]
        inverse = np.argsort(order, kind="stable")[inverse]
    values = x.reshape(-1)[first] if op.axis is None else np.take(x, first, op.axis)
    return values, first.astype(int64), inverse.astype(int64), counts.astype(int64)
