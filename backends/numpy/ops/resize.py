"""Resampling: resizing axis by axis, and sampling at grids of coordinates."""

from __future__ import annotations

from math import prod

import numpy as np

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
    crops = op.coordinate_transformation_mode == "tf_crop_and_resize"
    outside = np.zeros([1] * x.ndim, bool)
    axes = list(axes_of(op, x.shape, out.shape, scales, sizes, roi if crops else None))
    axes = [axis for axis in axes if crops or not axis.is_whole]
    shrinking = [axis for axis in axes if axis.new <= axis.old]
    growing = [axis for axis in axes if axis.new > axis.old]
    steps: list[_Step] = []
    for axis in (*shrinking, *reversed(growing)):
        # Nearest rounds as in float32, where 3 / 0.6 is 5.
        dtype = float32 if op.mode == "nearest" else float64
        positions = positions_of(op.coordinate_transformation_mode, axis, dtype)
        if op.mode == "nearest":
            steps.append((axis.index, nearest(op.nearest_mode, positions, axis.old), None))
        else:
            steps.append((axis.index, *taps_of(op, axis, positions)))
        if crops:
            beyond = (positions < 0) | (positions > axis.old - 1)
            outside = outside | _along(axis.index, beyond, x.ndim)
    lead = min((axis.index for axis in axes), default=0)
    images, results = (a.reshape(-1, *a.shape[lead:]) for a in (x, out))
    steps = [(index - lead + 1, places, weights) for index, places, weights in steps]
    count = max(1, BLOCK // prod(out.shape[lead:]))
    for first in range(0, len(images), count):
        some = slice(first, first + count)
        _resize_images(images[some], steps, op.mode == "nearest", results[some])
    if crops:
        np.copyto(out, np.asarray(op.extrapolation_value).astype(x.dtype), where=outside)


#: An axis, and for each position the source elements and their weights.
_Step = tuple[int, Array, Array | None]


def _resize_images(x: Array, steps: list[_Step], is_exact: bool, out: Array) -> None:
    result = x if is_exact else x.astype(arithmetic(x.dtype), copy=False)
    for axis, places, weights in steps:
        if weights is None:
            result = np.take(result, places, axis)
        else:
            result = _weighted(result, axis, places, weights)
    np.copyto(out, result if is_exact else narrowed(result, x.dtype))


def _along(axis: int, line: Array, rank: int) -> Array:
    """Return a vector as a tensor of `rank` axes along one of them."""
    return line.reshape([-1 if i == axis else 1 for i in range(rank)])


def _weighted(x: Array, axis: int, indices: Array, weights: Array) -> Array:
    """Return the sum over taps of elements along an axis times weights."""
    total: Array | None = None
    for places, factors in zip(indices, weights.astype(x.dtype), strict=True):
        part = np.take(x, places, axis)
        part *= _along(axis, factors, x.ndim)
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
        position = np.clip(position, -3, size + 2)
    left = np.floor(position)
    offsets = {"nearest": range(1), "linear": range(2), "cubic": range(-1, 3)}[op.mode]
    taps: list[Tap] = []
    for offset in offsets:
        distance = (position - left) - offset
        weight = linear(distance) if op.mode != "cubic" else cubic(distance, -0.75)
        index = left + offset
        if op.padding_mode == "reflection":
            index = _reflected(index, low, high)
        place = np.clip(np.nan_to_num(index), 0, size - 1)
        inside = place == index if op.padding_mode == "zeros" else np.ones(index.shape, bool)
        taps.append(Tap(place.astype(int64), inside, weight.astype(dtype)))
    return taps


def _reflected(position: Array, low: float, high: float) -> Array:
    """Return positions reflected at both borders until they are between them."""
    extent = high - low
    if extent == 0:
        return np.full_like(position, low)
    away = np.abs(position - low) % (2 * extent)
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
