"""The sampling positions of Resize: positions and weights along each axis."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor

import numpy as np

from ..base.record import record
from ..ir.dtypes import DType, int64
from ..ir.types import Array
from .resize import Resize


@record
class ResizeAxis:
    """An axis being resized.

    Attributes:
        index: its number.
        old: its size.
        new: its size in the result.
        length: the requested size; fractional if scales are given.
        scale: output positions per input position.
        begin: start of the region of interest, as a fraction of the axis.
        end: its end.
    """

    index: int
    old: int
    new: int
    length: float
    scale: float
    begin: float = 0.0
    end: float = 1.0

    @property
    def is_whole(self) -> bool:
        """Whether the axis is unchanged if no region is cropped."""
        return self.scale == 1 and self.old == self.new


def axes_of(
    op: Resize,
    old: tuple[int, ...],
    new: tuple[int, ...],
    scales: Array | None,
    sizes: Array | None,
    roi: Array | None,
) -> Iterator[ResizeAxis]:
    """Yield the axes being resized.

    Args:
        op: the attributes.
        old: shape of the input.
        new: shape of the result.
        scales: one factor per axis, or empty, or None.
        sizes: one size per axis if there are no scales.
        roi: where the region starts along every axis, then where it ends; None for everything.
    """
    rank = len(old)
    places = range(rank) if op.axes is None else [a % rank for a in op.axes]
    begins, ends = [0.0] * len(places), [1.0] * len(places)
    if roi is not None:
        begins, ends = roi[: len(places)].tolist(), roi[len(places) :].tolist()
    if scales is not None and scales.size:
        factors = [float(np.float32(s)) for s in scales]
        lengths = [old[a] * factor for a, factor in zip(places, factors, strict=True)]
    else:
        from fractions import Fraction  # which imports decimal

        wanted = () if sizes is None else sizes.tolist()
        ratios = [Fraction(size, old[a]) for a, size in zip(places, wanted, strict=True)]
        if op.keep_aspect_ratio_policy != "stretch":
            ratio = (min if op.keep_aspect_ratio_policy == "not_larger" else max)(ratios)
            ratios = [ratio] * len(ratios)
        factors = [float(r) for r in ratios]
        lengths = [float(r * old[a]) for a, r in zip(places, ratios, strict=True)]
    for a, length, factor, begin, end in zip(places, lengths, factors, begins, ends, strict=True):
        yield ResizeAxis(a, old[a], new[a], length, factor, begin, end)


def positions_of(mode: str, axis: ResizeAxis, dtype: DType) -> Array:
    """Return the input position of each output element, computed in `dtype`."""
    y = np.arange(axis.new, dtype=dtype)
    scale, length = dtype.type(axis.scale), dtype.type(axis.length)
    last = axis.old - 1
    if mode == "align_corners":
        return y * last / (length - 1) if length != 1 else np.zeros_like(y)
    if mode == "asymmetric":
        return y / scale
    if mode == "tf_crop_and_resize":
        extent = axis.end - axis.begin
        if axis.new == 1:
            return np.full_like(y, 0.5 * (axis.begin + axis.end) * last)
        return axis.begin * last + y * (extent * last) / (axis.new - 1)
    if mode == "pytorch_half_pixel" and axis.new == 1:
        return np.zeros_like(y)
    centres = (y + 0.5) / scale
    if mode == "tf_half_pixel_for_nn":
        return centres
    if mode == "half_pixel_symmetric":
        centres = axis.old / 2 * (1 - axis.new / length) + centres
    return centres - 0.5


def nearest(mode: str, positions: Array, size: int) -> Array:
    """Return the index nearest to each position, for an axis of `size` elements."""
    low = np.floor(positions)
    rest = positions - low
    up = {
        "round_prefer_floor": rest > 0.5,
        "round_prefer_ceil": rest >= 0.5,
        "floor": np.zeros_like(rest, bool),
        "ceil": rest > 0,
    }[mode]
    return np.clip((low + up).astype(int64), 0, size - 1)


def taps_of(op: Resize, axis: ResizeAxis, positions: Array) -> tuple[Array, Array]:
    """Return the indices and weights [taps, positions] that make up each element."""
    stretch = max(1.0, 1 / axis.scale) if op.antialias else 1.0
    reach = stretch if op.mode == "linear" else 2 * stretch
    left = np.ceil(positions) - 1
    first = floor(-reach) + 1
    offsets = np.arange(first, 2 - first)[:, np.newaxis]
    distance = (offsets - (positions - left)) / stretch
    weights = linear(distance) if op.mode == "linear" else cubic(distance, op.cubic_coeff_a)
    indices = left.astype(int64) + offsets
    inside = np.clip(indices, 0, axis.old - 1)
    if op.exclude_outside:
        weights = np.where(indices == inside, weights, 0)
    if op.exclude_outside or op.antialias:
        total = weights.sum(0)
        weights = weights / np.where(total == 0, 1, total)
    return inside, weights


def linear(distance: Array) -> Array:
    """Return linear interpolation weights by distance: 1 at 0, 0 from 1 on."""
    return np.maximum(1 - np.abs(distance), 0)


def cubic(distance: Array, a: float) -> Array:
    """Return Keys' cubic weights by distance: 1 at 0, 0 at 1 and from 2 on."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))
