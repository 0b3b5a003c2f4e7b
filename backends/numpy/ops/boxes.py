"""Regions of interest: pooling, and non-maximum suppression."""

from __future__ import annotations

from math import ceil

import numpy as np

from ....runtime.base.guard import check_time, need
from ....runtime.ir.dtypes import DType, float32, float64, int64
from ....runtime.ir.types import Array
from ....runtime.ops.boxes import MaxRoiPool, NonMaxSuppression, RoiAlign
from ..engine.registry import kernel

#: Indices and weights of the lower neighbours of samples, and of the upper ones.
Neighbours = tuple[tuple[Array, Array], tuple[Array, Array]]

#: Maximum boxes that are compared with all others at a time, and pairs of boxes.
TOGETHER, PAIRS = 64, 1 << 16


def _arithmetic(dtype: DType) -> DType:
    return float64 if dtype == float64 else float32


# ── regions ──────────────────────────────────────────────────────────────────────────────────────


@kernel(RoiAlign)
def roi_align(op: RoiAlign, x: Array, rois: Array, batch_indices: Array) -> Array:
    """Pool bilinear samples of each region.

    The maximum is over the samples' four weighted neighbours, as in the specification's examples
    and onnxruntime, not over the samples.
    """
    dtype = _arithmetic(x.dtype)
    size = (op.output_height, op.output_width)
    result = np.zeros((len(rois), x.shape[1], *size), dtype)
    shift = 0.5 if op.coordinate_transformation_mode == "half_pixel" else 0.0
    corners = rois.astype(dtype) * dtype.type(op.spatial_scale) - dtype.type(shift)
    for target, (left, top, right, bottom), image in zip(
        result, corners, batch_indices, strict=True
    ):
        source = _image(x, int(image)).astype(dtype)
        rows = _samples(op, (top, bottom), size[0], source.shape[1])
        columns = _samples(op, (left, right), size[1], source.shape[2])
        counts = (len(rows[0][0]) // size[0], len(columns[0][0]) // size[1])
        if not all(counts):
            continue
        samples = len(rows[0][0]) * len(columns[0][0])
        need(6 * len(source) * samples * dtype.itemsize, "the samples of RoiAlign")
        if op.mode == "avg":
            _average(source, rows, columns, target)
            continue
        parts = [
            source[:, row[:, np.newaxis], column] * (height[:, np.newaxis] * width)
            for row, height in rows
            for column, width in columns
        ]
        cells = (-1, size[0], counts[0], size[1], counts[1])
        np.maximum.reduce(parts).reshape(cells).max((2, 4), out=target)
    return result.astype(x.dtype)


def _average(x: Array, rows: Neighbours, columns: Neighbours, out: Array) -> None:
    """Average the samples of each cell, along one axis after the other: whole rows first.

    Args:
        x: an image [channels, height, width].
        rows: of all samples along the height.
        columns: of all samples along the width.
        out: [channels, cells, cells].
    """
    ends = [(int(low.min()), int(high.max()) + 1) for (low, _), (high, _) in (rows, columns)]
    part = np.ascontiguousarray(x[(..., *(slice(*each) for each in ends))])
    for axis, (samples, (start, _)) in enumerate(zip((rows, columns), ends, strict=True), 1):
        taken = [np.take(part, places - start, axis, mode="clip") for places, _ in samples]
        shape = (-1, 1)[: 3 - axis]
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


def _image(x: Array, index: int) -> Array:
    """Return an image; raises IndexError if there is none of that index."""
    if not 0 <= index < len(x):
        raise IndexError(f"a region is of image {index}; there are {len(x)}")
    return np.asarray(x[index])


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
def max_roi_pool(op: MaxRoiPool, x: Array, rois: Array) -> Array:
    """Take the maximum of each cell of each region; 0 for cells without elements."""
    height, width = op.pooled_shape
    result = np.empty((len(rois), x.shape[1], height, width), x.dtype)
    scaled = rois[:, 1:].astype(_arithmetic(x.dtype)) * op.spatial_scale
    corners = np.floor(scaled + 0.5).astype(int64)
    for target, image, (x1, y1, x2, y2) in zip(result, rois[:, 0], corners, strict=True):
        rows = _greatest(_image(x, int(image)), 1, (y1, y2), height)
        target[...] = _greatest(rows, 2, (x1, x2), width)
    return np.where(np.isneginf(result), 0, result).astype(x.dtype)


def _greatest(x: Array, axis: int, ends: tuple[int, int], cells: int) -> Array:
    """Return the maxima of `cells` overlapping ranges between both ends."""
    begin, size = ends[0], max(ends[1] - ends[0] + 1, 1)
    edges = [(i * size // cells, -(-(i + 1) * size // cells)) for i in range(cells)]
    limits = np.clip(begin + np.array(edges), 0, x.shape[axis])
    parts = [
        np.take(x, np.arange(low, high), axis).max(axis, initial=-np.inf) for low, high in limits
    ]
    return np.stack(parts, axis)


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
