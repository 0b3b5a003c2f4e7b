"""Interpolation: neighbours and weights of positions along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product
from math import prod

import ml_dtypes
import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import (
    COMPLEX,
    INTEGERS,
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int64,
    string,
)
from ....runtime.ir.types import Array
from ....runtime.ops.resampling import linear
from .convert import blank

#: Elements of sums per block, so that they stay in the cache.
BLOCK = 1 << 16
#: Minimum channels to take at once, and minimum neighbours per element of an image, inverted.
CHANNELS, DENSE = 8, 4


def arithmetic(dtype: DType) -> DType:
    """Return the dtype for weighted sums of `dtype`.

    Raises:
        ValueError: it is the string dtype.
    """
    if dtype == string:
        raise ValueError("strings cannot be interpolated")
    if dtype in (float16, bfloat16, float32):
        return float32
    return dtype if dtype in COMPLEX else float64


def narrowed(sums: Array, dtype: DType) -> Array:
    """Return weighted sums in the dtype of the result.

    Integers are truncated, as by Cast and in onnxruntime, and saturated; values within rounding
    error of an integer count as that integer.
    """
    if dtype in INTEGERS:
        limits = ml_dtypes.iinfo(dtype)
        whole = np.trunc(sums * (1 + 1e-9))
        return np.clip(whole, int(limits.min), int(limits.max)).astype(dtype)
    return np.rint(sums).astype(bool) if dtype == bool_ else sums.astype(dtype, copy=False)


@record
class Tap:
    """One neighbour of every position along an axis; all arrays have the same shape.

    Attributes:
        index: its index, from 0 to the axis' size - 1.
        inside: whether it is inside; otherwise it counts as 0.
        weight: its weight.
    """

    index: Array
    inside: Array
    weight: Array


def surrounded_by_zeros(position: Array, size: int) -> tuple[Tap, Tap]:
    """Return both neighbours of each position, with zeros beyond the borders."""
    position = np.clip(position, -2, size + 1)
    low = np.floor(position)
    taps: list[Tap] = []
    for index in (low, low + 1):
        inside = (index >= 0) & (index < size)
        place = np.where(inside, index, 0).astype(int64)
        taps.append(Tap(place, inside, linear(position - index)))
    return taps[0], taps[1]


def sampled(x: Array, axes: Sequence[Sequence[Tap]], weighted: bool = True) -> Array:
    """Return [..., positions]: sums over all combinations of neighbours along each axis.

    Args:
        x: [..., *spatial].
        axes: for each spatial axis the neighbours; their arrays, [..., positions], broadcast with
            those of other axes and the leading axes of `x`.
        weighted: whether neighbours are multiplied by their weights.
    """
    spatial = x.shape[x.ndim - len(axes) :]
    flat = x.reshape(*x.shape[: x.ndim - len(axes)], prod(spatial))
    neighbours = [_neighbour(taps, spatial, weighted) for taps in product(*axes)]
    if _have_rows(flat, neighbours):
        return _summed_by_row(flat, neighbours)
    total: Array | None = None
    for each in neighbours:
        part = _taken(flat, each.place)
        if not each.inside.all():
            np.copyto(part, np.array(blank(x.dtype), x.dtype), where=~each.inside)
        if each.weight is not None:
            part *= each.weight
        total = part if total is None else np.add(total, part, out=total)
    assert total is not None
    return total


@record
class _Neighbour:
    """One neighbour of every position along all axes.

    Attributes:
        place: its index among all elements.
        inside: whether it is inside.
        weight: the product of its weights; None for 1.
    """

    place: Array
    inside: Array
    weight: Array | None


def _neighbour(taps: Sequence[Tap], spatial: Sequence[int], weighted: bool) -> _Neighbour:
    """Return the neighbour with these taps along axes of these sizes."""
    place, inside = taps[0].index, taps[0].inside
    for tap, size in zip(taps[1:], spatial[1:], strict=True):
        place, inside = place * size + tap.index, inside & tap.inside
    weight = reduce(np.multiply, [tap.weight for tap in taps]) if weighted else None
    return _Neighbour(place, inside, weight)


def _have_rows(x: Array, neighbours: Sequence[_Neighbour]) -> bool:
    """Whether all channels of a place are better taken at once, from [places, channels].

    Args:
        x: [..., channels, elements].
        neighbours: of the positions; their arrays are [..., 1, positions] if channels share them.
    """
    shape = neighbours[0].place.shape
    if x.dtype.kind not in "biuf" or x.ndim < 2 or shape[:-1] != (*x.shape[:-2], 1):
        return False
    count = len(neighbours)
    is_dense = count * shape[-1] * DENSE >= max(1, x.shape[-1])
    return x.shape[-2] >= CHANNELS and count > 1 and is_dense


def _summed_by_row(x: Array, neighbours: Sequence[_Neighbour]) -> Array:
    """Return the sums of `sampled`, a block of positions at a time; see `_have_rows`."""
    *lead, channels, elements = x.shape
    count = neighbours[0].place.shape[-1]
    result = np.empty((*lead, channels, count), x.dtype)
    step = min(count, max(1, BLOCK // channels))
    rows, work = np.empty((elements, channels), x.dtype), np.empty((2, step, channels), x.dtype)
    for index in np.ndindex(*lead):
        np.copyto(rows, x[index].T)
        for first in range(0, count, step):
            some = (*index, 0, slice(first, min(first + step, count)))
            total, part = work[:, : some[-1].stop - first]
            for number, each in enumerate(neighbours):
                target = part if number else total
                np.take(rows, each.place[some], 0, target, "clip")
                if not (inside := each.inside[some]).all():
                    target[~inside] = 0
                if each.weight is not None:
                    np.multiply(target, each.weight[some][:, np.newaxis], target)
                if number:
                    np.add(total, part, total)
            result[index][:, some[-1]] = total.T
    return result


def _taken(x: Array, places: Array) -> Array:
    """Return ``np.take_along_axis(x, places, -1)``, faster if lines have the same places."""
    lead = x.ndim - 1
    while lead and places.shape[lead - 1] == 1:
        lead -= 1
    if lead == x.ndim - 1 or places.shape[:lead] != x.shape[:lead]:
        return np.take_along_axis(x, places, -1)
    result = np.empty((*x.shape[:-1], places.shape[-1]), x.dtype)
    for index in np.ndindex(x.shape[:lead]):
        np.take(x[index], places[index].reshape(-1), -1, out=result[index], mode="clip")
    return result
