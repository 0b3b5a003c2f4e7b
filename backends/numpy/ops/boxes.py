"""Regions of interest: pooling, and non-maximum suppression."""

from __future__ import annotations

from math import ceil

import numpy as np

from ....runtime.base.guard import check_time, need
from ....runtime.ir.dtypes import DType, float32, float64, int64
from ....runtime.ir.types import Array
from ....runtime.ops.boxes import MaxRoiPool, NonMaxSuppression, RoiAlign
from ..engine.registry import kernel
from ..numerics.halves import in_dtype, store

#: Indices and weights of the lower neighbours of samples, and of the upper ones.
Neighbours = tuple[tuple[Array, Array], tuple[Array, Array]]

#: Regions of an image from which a copy with channels last is worth it.
SHARED = 4
#: Maximum boxes that are compared with all others at a time, and pairs of boxes.
TOGETHER, PAIRS = 64, 1 << 16


def _arithmetic(dtype: DType) -> DType:
    return float64 if dtype == float64 else float32


# ── regions ──────────────────────────────────────────────────────────────────────────────────────


class _Images:
    """Images with channels last, so that rows of channels are read for a sample; made when needed.

    Args:
        x: [images, channels, height, width].
        indices: the image of each region.
    """

    def __init__(self, x: Array, indices: Array) -> None:
        self._x, self._indices = np.moveaxis(x, 1, -1), indices
        self._copies: dict[int, Array] = {}

    def __getitem__(self, index: int) -> Array:
        """Return [height, width, channels]; raises IndexError if there is none of that index."""
        if not 0 <= index < len(self._x):
            raise IndexError(f"a region is of image {index}; there are {len(self._x)}")
        if index not in self._copies:
            image = np.asarray(self._x[index])
            is_shared = np.count_nonzero(self._indices == index) >= SHARED
            self._copies[index] = np.ascontiguousarray(image) if is_shared else image
        return self._copies[index]


@kernel(RoiAlign)
def roi_align(op: RoiAlign, x: Array, rois: Array, batch_indices: Array, *, out: Array) -> None:
    """Pool bilinear samples of each region.

    The maximum is over the samples' four weighted neighbours, as in the specification's examples
    and onnxruntime, not over the samples.
    """
    dtype = _arithmetic(x.dtype)
    images, size = _Images(in_dtype(x, dtype), batch_indices), (op.output_height, op.output_width)
    result = np.zeros((len(rois), *size, x.shape[1]), dtype)
    shift = 0.5 if op.coordinate_transformation_mode == "half_pixel" else 0.0
    corners = rois.astype(dtype) * dtype.type(op.spatial_scale) - dtype.type(shift)
    for target, (left, top, right, bottom), image in zip(
        result, corners, batch_indices, strict=True
    ):
        source = images[int(image)]
        rows = _samples(op, (top, bottom), size[0], source.shape[0])
        columns = _samples(op, (left, right), size[1], source.shape[1])
        counts = (len(rows[0][0]) // size[0], len(columns[0][0]) // size[1])
        if not all(counts):
            continue
        samples = len(rows[0][0]) * len(columns[0][0])
        need(6 * source.shape[2] * samples * dtype.itemsize, "the samples of RoiAlign")
        if op.mode == "avg":
            _average(source, rows, columns, target)
            continue
        parts = [
            source[row[:, np.newaxis], column] * (height[:, np.newaxis] * width)[..., np.newaxis]
            for row, height in rows
            for column, width in columns
        ]
        cells = (size[0], counts[0], size[1], counts[1], -1)
        np.maximum.reduce(parts).reshape(cells).max((1, 3), out=target)
    store(out, np.moveaxis(result, -1, 1))


def _average(x: Array, rows: Neighbours, columns: Neighbours, out: Array) -> None:
    """Average the samples of each cell, along one axis after the other: whole rows first.

    Args:
        x: an image [height, width, channels].
        rows: of all samples along the height.
        columns: of all samples along the width.
        out: [cells, cells, channels].
    """
    ends = [(int(low.min()), int(high.max()) + 1) for (low, _), (high, _) in (rows, columns)]
    part = x[tuple(slice(*each) for each in ends)]
    for axis, (samples, (start, _)) in enumerate(zip((rows, columns), ends, strict=True)):
        taken = [np.take(part, places - start, axis, mode="clip") for places, _ in samples]
        shape = (-1, *[1] * (2 - axis))
        part = _weighted(taken, [weights.reshape(shape) for _, weights in samples])
        count = part.shape[axis] // out.shape[axis]
        lead = (slice(None),) * axis
        total = part[(*lead, slice(0, None, count))]
        for i in range(1, count):
            total = total + part[(*lead, slice(i, None, count))]
        part = total / total.dtype.type(count)
    np.copyto(out, part)


def _weighted(parts: list[Array], weights: list[Array]) -> Array:
    (total, other), (first, second) = parts, weights
    total *= first
    other *= second
    total += other
    return total


def _samples(op: RoiAlign, ends: tuple[Array, Array], cells: int, size: int) -> Neighbours:
    """Return both neighbours of all samples along one axis: indices and weights.

    Samples more than one element outside have weight 0, others are clamped to the border.
    """
    begin, end = ends
    extent = end - begin
    if op.coordinate_transformation_mode == "output_half_pixel":
        extent = max(extent, extent.dtype.type(1))
    cell = extent / cells
    count = op.sampling_ratio or max(0, ceil(cell))
    need(4 * cells * count * int64.itemsize, "the samples of RoiAlign")
    steps = (np.arange(count, dtype=cell.dtype) + 0.5) / max(count, 1)
    position = (begin + (np.arange(cells, dtype=cell.dtype)[:, np.newaxis] + steps) * cell).ravel()
    near = (position >= -1) & (position <= size)
    position = np.clip(position, 0, size - 1)
    low = position.astype(int64)
    rest = position - low
    high = np.minimum(low + 1, size - 1)
    return (low, np.where(near, 1 - rest, 0)), (high, np.where(near, rest, 0))


@kernel(MaxRoiPool)
def max_roi_pool(op: MaxRoiPool, x: Array, rois: Array, *, out: Array) -> None:
    """Take the maximum of each cell of each region; 0 for cells without elements."""
    height, width = op.pooled_shape
    indices = rois[:, 0].astype(int64)
    images = _Images(x, indices)
    result = np.empty((len(rois), height, width, x.shape[1]), x.dtype)
    scaled = rois[:, 1:].astype(_arithmetic(x.dtype)) * op.spatial_scale
    corners = np.floor(scaled + 0.5).astype(int64)
    for target, image, (x1, y1, x2, y2) in zip(result, indices, corners, strict=True):
        source = images[int(image)]
        rows = _ranges((y1, y2), height, source.shape[0])
        columns = _ranges((x1, x2), width, source.shape[1])
        left, right = columns.min(), columns.max()
        found = _greatest(source[:, left:right], 0, rows)
        target[...] = _greatest(found, 1, columns - left)
    np.copyto(result, 0, where=np.isneginf(result))
    np.copyto(out, np.moveaxis(result, -1, 1))


def _ranges(ends: tuple[int, int], cells: int, length: int) -> Array:
    """Return the beginnings and ends of `cells` overlapping ranges between both ends."""
    begin, size = ends[0], max(ends[1] - ends[0] + 1, 1)
    edges = [(i * size // cells, -(-(i + 1) * size // cells)) for i in range(cells)]
    return np.clip(begin + np.array(edges, int64).reshape(-1, 2), 0, length)


def _greatest(x: Array, axis: int, ranges: Array) -> Array:
    """Return the maxima of some ranges along an axis, minus infinity for those without elements."""
    shape = (*x.shape[:axis], len(ranges), *x.shape[axis + 1 :])
    found = np.empty(shape, x.dtype)
    lead = (slice(None),) * axis
    for i, (low, high) in enumerate(ranges.tolist()):
        some = x[(*lead, slice(low, high))]
        np.max(some, axis, initial=-np.inf, out=found[(*lead, i)])
    return found


# ── suppression ──────────────────────────────────────────────────────────────────────────────────


@kernel(NonMaxSuppression)
def non_max_suppression(
    op: NonMaxSuppression,
    boxes: Array,
    scores: Array,
    max_output_boxes_per_class: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
) -> Array:
    """Return [image, class, box] of the boxes to keep, higher scores first."""
    maximum = int(_scalar(max_output_boxes_per_class, 0))
    overlap = _scalar(iou_threshold, 0)
    minimum = None if score_threshold is None else _scalar(score_threshold, -np.inf)
    found: list[Array] = []
    for image, rows in enumerate(scores):
        ordered = [_ordered(row, minimum) for row in rows]
        kept = _kept(boxes[image], ordered, maximum, overlap, is_centred=bool(op.center_point_box))
        labels = np.repeat(np.arange(len(rows)), [len(each) for each in kept])
        chosen = np.array([box for each in kept for box in each], int64)
        found.append(np.stack(np.broadcast_arrays(image, labels, chosen), -1))
    return np.concatenate([np.zeros((0, 3), int64), *found], dtype=int64, casting="unsafe")


def _kept(
    boxes: Array, ordered: list[Array], maximum: int, overlap: float, *, is_centred: bool
) -> list[list[int]]:
    """Return which boxes of an image each class keeps.

    Only the first of them are compared with one another, unless they are too few.
    """
    first = [candidates[: 2 * maximum + TOGETHER] for candidates in ordered]
    kept = _kept_of(boxes, first, maximum, overlap, is_centred=is_centred)
    short = [
        label
        for label, candidates in enumerate(ordered)
        if len(kept[label]) < maximum and len(candidates) > len(first[label])
    ]
    others = [ordered[label] for label in short]
    again = _kept_of(boxes, others, maximum, overlap, is_centred=is_centred)
    for label, each in zip(short, again, strict=True):
        kept[label] = each
    return kept


def _kept_of(
    boxes: Array, ordered: list[Array], maximum: int, overlap: float, *, is_centred: bool
) -> list[list[int]]:
    is_candidate = np.zeros(len(boxes), bool)
    for candidates in ordered:
        is_candidate[candidates] = True
    places, number = np.flatnonzero(is_candidate), np.cumsum(is_candidate) - 1
    suppression = _Suppression(_corners(boxes[places], is_centred), overlap)
    kept = [suppression.kept(number[candidates], maximum) for candidates in ordered]
    return [places[each].tolist() if each else [] for each in kept]


def _ordered(scores: Array, minimum: float | None) -> Array:
    """Return the indices of boxes with a higher score than `minimum`, those with more first."""
    if minimum is None:
        return np.argsort(-scores, kind="stable")
    some = np.flatnonzero(scores > minimum)
    return some[np.argsort(-scores[some], kind="stable")] if some.size else some


def _scalar(x: Array | None, default: float) -> float:
    return default if x is None or not x.size else float(x.reshape(-1)[0])


def _corners(boxes: Array, centred: bool) -> Array:
    """Return [4, boxes]: the lower and upper coordinates along both axes."""
    wide = boxes.T.astype(_arithmetic(boxes.dtype), "C")
    if centred:
        middle, half = wide[:2], wide[2:] / 2
        return np.concatenate([middle - half, middle + half])
    return np.concatenate([np.minimum(wide[:2], wide[2:]), np.maximum(wide[:2], wide[2:])])


class _Suppression:
    """Which boxes of an image overlap which, compared once for all classes.

    Args:
        corners: [4, boxes], see `_corners`.
        overlap: the intersection over union above which a box suppresses another.
    """

    def __init__(self, corners: Array, overlap: float) -> None:
        self._corners, self._overlap = corners, overlap
        area = (corners[2] - corners[0]) * (corners[3] - corners[1])
        self._areas = np.where(area > 0, area, np.nan)  # boxes without area suppress nothing
        self._together = max(1, min(TOGETHER, PAIRS // max(1, len(area))))
        self._suppressed: dict[int, int] = {}

    def kept(self, candidates: Array, maximum: int) -> list[int]:
        """Return the candidates that no better one suppresses, at most so many."""
        gone, kept, left = 0, list[int](), candidates.tolist() if maximum > 0 else []
        known = self._suppressed
        for at, box in enumerate(left):
            if gone >> box & 1:
                continue
            kept.append(box)
            if len(kept) == maximum:
                break
            if box not in known:
                ahead = left[at : at + 2 * self._together]
                self._compare([i for i in ahead if not gone >> i & 1 and i not in known])
            gone |= known[box]
        return kept

    def _compare(self, some: list[int]) -> None:
        """Compare the first of some boxes with all, whose bits are set if they are suppressed."""
        check_time()
        some = some[: self._together]
        above = self._overlaps(np.array(some)) > self._overlap
        if not self._overlap >= 0:  # even boxes that are apart overlap by 0
            above[...] = True
        for box, bits in zip(some, np.packbits(above, 1, "little"), strict=True):
            self._suppressed[box] = int.from_bytes(bits.tobytes(), "little")

    def _overlaps(self, some: Array) -> Array:
        """Return intersection over union [some, boxes], NaN or not above 0 if there is none."""
        corners = self._corners[:, some, np.newaxis]
        shared, wide = (
            np.subtract(np.minimum(corners[axis + 2], self._corners[axis + 2]), low, out=low)
            for axis in (0, 1)
            for low in (np.maximum(corners[axis], self._corners[axis]),)
        )
        np.clip(shared, 0, np.inf, out=shared)  # else two negative factors were a positive product
        np.multiply(shared, wide, out=shared)
        union = np.add(self._areas[some, np.newaxis], self._areas, out=wide)
        np.subtract(union, shared, out=union)
        return np.divide(shared, union, out=shared)
