"""Resampling: resizing axis by axis, and sampling at grids of coordinates."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, float32, float64, int64
from ....runtime.ir.types import Array
from ....runtime.ops.resampling import (
    axes_of,
    cubic,
    linear,
    nearest,
    positions_of,
    taps_of,
)
from ....runtime.ops.resize import AffineGrid, GridSample, Resize
from ..engine.registry import kernel
from ..numerics.interpolate import Tap, arithmetic, narrowed, sampled

#: Elements of results per block, so that they stay in the cache.
BLOCK = 1 << 16

# ── resizing ─────────────────────────────────────────────────────────────────────────────────────


@kernel(Resize)
def resize(
    op: Resize,
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    out: Array,
) -> None:
    """Interpolate along one axis after another, shrinking ones first.

    Elements of the last axis are gathered individually. So where axes grow, the last is first.
    """
    if not out.size:
        return
    way = _way(op, x.shape, out.shape, *(_values(each) for each in (scales, sizes, roi)))
    images, results = (a.reshape(-1, *a.shape[way.lead :]) for a in (x, out))
    count = max(1, BLOCK // prod(out.shape[way.lead :]))
    for first in range(0, len(images), count):
        some = slice(first, first + count)
        _resize_images(images[some], way.steps, op.mode == "nearest", results[some])
    if way.outside is not None:
        np.copyto(out, np.asarray(op.extrapolation_value).astype(x.dtype), where=way.outside)


@record
class _Source:
    """Which element of an axis each element of the result is.

    Attributes:
        places: their numbers [new].
        shifts: if element ``i * len(shifts) + k`` is number ``i + shifts[k]``, limited to the axis,
            these shifts; else none.
    """

    places: Array
    shifts: tuple[int, ...] = ()

    @classmethod
    def of(cls, places: Array, old: int) -> _Source:
        """Return the source of these places of an axis of `old` elements."""
        count = len(places) // old
        if count * old != len(places):
            return cls(places)
        middle, steps = old // 2, np.arange(old)
        shifts = tuple(int(places[middle * count + k]) - middle for k in range(count))
        found = [np.clip(steps + shift, 0, old - 1) for shift in shifts]
        return cls(places, shifts if np.array_equal(np.stack(found, 1).ravel(), places) else ())

    def take(self, x: Array, axis: int, out: Array | None = None) -> Array:
        """Return these elements of `x` along an axis, in `out` if it is given."""
        if out is None:
            shape = (*x.shape[:axis], len(self.places), *x.shape[axis + 1 :])
            out = np.empty(shape, x.dtype)
        if axis < x.ndim - 1 or not self.shifts:
            # `clip` needs no check, and so no buffer.
            return np.take(x, self.places, axis, out=out, mode="clip")
        old = x.shape[-1]
        for k, shift in enumerate(self.shifts):
            target = out[..., k :: len(self.shifts)]
            low, high = min(max(0, -shift), old), max(min(old, old - shift), 0)
            np.copyto(target[..., low:high], x[..., low + shift : high + shift])
            if low:
                np.copyto(target[..., :low], x[..., :1])
            if high < old:
                np.copyto(target[..., high:], x[..., -1:])
        return out


@record
class _Resampling:
    """One axis: where the elements of the result come from.

    Attributes:
        axis: its number, the first axis being that of images.
        taps: the source of each tap.
        weights: of the taps [taps, new]; None if there is one, of weight 1.
    """

    axis: int
    taps: tuple[_Source, ...]
    weights: Array | None

    @classmethod
    def of(cls, axis: int, old: int, places: Array, weights: Array | None) -> _Resampling:
        """Return the axis for source elements [taps, new] of `old`."""
        return cls(axis, tuple(_Source.of(each, old) for each in places), weights)


@record
class _Way:
    """How an input is resized.

    Attributes:
        lead: the first axis that changes; those before it are merged to one of images.
        steps: the axes in order.
        outside: results beyond the region of interest, broadcast; None if nothing is cropped.
    """

    lead: int
    steps: tuple[_Resampling, ...]
    outside: Array | None


def _values(data: Array | None) -> tuple[float, ...] | None:
    return None if data is None else tuple(data.tolist())


@lru_cache(maxsize=64)
def _way(
    op: Resize,
    old: tuple[int, ...],
    new: tuple[int, ...],
    scales: tuple[float, ...] | None,
    sizes: tuple[float, ...] | None,
    roi: tuple[float, ...] | None,
) -> _Way:
    crops = op.coordinate_transformation_mode == "tf_crop_and_resize"
    outside = np.zeros([1] * len(old), bool)
    scaled, sized, region = (
        None if each is None else np.array(each) for each in (scales, sizes, roi if crops else None)
    )
    axes = list(axes_of(op, old, new, scaled, sized, region))
    axes = [axis for axis in axes if crops or not axis.is_whole]
    shrinking = [axis for axis in axes if axis.new <= axis.old]
    growing = [axis for axis in axes if axis.new > axis.old]
    lead = min((axis.index for axis in axes), default=0)
    steps: list[_Resampling] = []
    for axis in (*shrinking, *reversed(growing)):
        # Nearest rounds as in float32, where 3 / 0.6 is 5.
        dtype = float32 if op.mode == "nearest" else float64
        positions = positions_of(op.coordinate_transformation_mode, axis, dtype)
        number = axis.index - lead + 1
        if op.mode == "nearest":
            places, weights = nearest(op.nearest_mode, positions, axis.old)[np.newaxis], None
        else:
            places, weights = taps_of(op, axis, positions)
        steps.append(_Resampling.of(number, axis.old, places, weights))
        if crops:
            beyond = (positions < 0) | (positions > axis.old - 1)
            outside = outside | _along(axis.index, beyond, len(old))
    return _Way(lead, tuple(steps), outside if crops else None)


def _resize_images(x: Array, steps: tuple[_Resampling, ...], is_exact: bool, out: Array) -> None:
    if is_exact and steps:
        for step in steps[:-1]:
            x = step.taps[0].take(x, step.axis)
        steps[-1].taps[0].take(x, steps[-1].axis, out)
        return
    result = x if is_exact else x.astype(arithmetic(x.dtype), copy=False)
    for step in steps:
        result = _weighted(result, step)
    np.copyto(out, result if is_exact else narrowed(result, x.dtype))


def _along(axis: int, line: Array, rank: int) -> Array:
    """Return a vector as a tensor of `rank` axes along one of them."""
    return line.reshape([-1 if i == axis else 1 for i in range(rank)])


def _weighted(x: Array, step: _Resampling) -> Array:
    """Return the sum over taps of elements along an axis times weights."""
    assert step.weights is not None
    total: Array | None = None
    for source, factors in zip(step.taps, step.weights.astype(x.dtype), strict=True):
        part = source.take(x, step.axis)
        part *= _along(step.axis, factors, x.ndim)
        total = part if total is None else np.add(total, part, out=total)
    assert total is not None
    return total


# ── grids ────────────────────────────────────────────────────────────────────────────────────────


@kernel(GridSample)
def grid_sample(op: GridSample, x: Array, grid: Array, *, out: Array) -> None:
    """Interpolate at every position of the grid."""
    if not out.size:
        return
    n, _, *spatial = x.shape
    wide = grid.astype(float64 if grid.dtype == float64 else float32, copy=False)
    wide = wide.reshape(n, 1, prod(grid.shape[1:-1]), len(spatial))
    if op.mode != "nearest":
        x = x.astype(arithmetic(x.dtype), copy=False)
    axes = [_neighbours(op, wide[..., -1 - i], size, x.dtype) for i, size in enumerate(spatial)]
    result = sampled(x, axes, weighted=op.mode != "nearest").reshape(out.shape)
    np.copyto(out, result if op.mode == "nearest" else narrowed(result, out.dtype))


def _neighbours(op: GridSample, coordinates: Array, size: int, dtype: DType) -> list[Tap]:
    """Return the taps of one axis for coordinates from -1 to 1."""
    if op.align_corners:
        low, high = 0.0, size - 1.0
        position = (coordinates + 1) / 2 * (size - 1)
    else:
        low, high = -0.5, size - 0.5
        position = ((coordinates + 1) * size - 1) / 2
    if op.mode == "nearest":
        position = np.rint(position)
    if op.padding_mode == "reflection":
        position = _reflected(position, low, high)
    else:
        position = np.fmin(np.fmax(position, -3), size + 2)  # NaN is in front of the axis
    left = np.floor(position)
    offsets = {"nearest": range(1), "linear": range(2), "cubic": range(-1, 3)}[op.mode]
    taps: list[Tap] = []
    for offset in offsets:
        distance = (position - left) - offset
        weight = linear(distance) if op.mode != "cubic" else cubic(distance, -0.75)
        index = left + offset
        if op.padding_mode == "reflection":
            index = _reflected(index, low, high)
        place = np.clip(index, 0, size - 1)
        inside = place == index if op.padding_mode == "zeros" else np.ones(index.shape, bool)
        taps.append(Tap(place.astype(int64), inside, weight.astype(dtype)))
    return taps


def _reflected(position: Array, low: float, high: float) -> Array:
    """Return positions reflected at both borders until they are between; `low` for no number."""
    extent = high - low
    if extent == 0:
        return np.full_like(position, low)
    away = np.nan_to_num(np.abs(position - low) % (2 * extent))
    return low + np.where(away > extent, 2 * extent - away, away)


@kernel(AffineGrid)
def affine_grid(op: AffineGrid, theta: Array, size: Array) -> Array:
    """Return theta @ (x, y, 1) of every pixel, x being the innermost axis."""
    spatial = [int(s) for s in size[2:]]
    lines = [_line(s, bool(op.align_corners)) for s in spatial]
    mesh = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*reversed(mesh), np.ones(spatial)], -1)
    wide = theta.astype(float64).swapaxes(1, 2)
    grid = points.reshape(-1, len(spatial) + 1) @ wide
    return grid.reshape(len(theta), *spatial, len(spatial)).astype(theta.dtype)


def _line(size: int, align_corners: bool) -> Array:
    """Return pixel coordinates along an axis from -1 to 1."""
    if align_corners:
        return np.linspace(-1, 1, size) if size > 1 else np.zeros(size)
    return (2 * np.arange(size) + 1) / size - 1
