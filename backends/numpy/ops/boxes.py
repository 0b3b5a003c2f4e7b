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
#: Boxes that are compared with one another at a time, the most of them, and pairs of boxes.
TOGETHER, MOST_TOGETHER, PAIRS = 64, 1 << 10, 1 << 16
#: Maximum boxes of an image that are all compared once for all classes.
MOST_SHARED = 1 << 13
#: Fewest scores that are sorted as integers.
MANY = 1 << 10


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
        suppression = _Suppression(_corners(boxes[image], bool(op.center_point_box)), overlap)
        kept = suppression.kept([_ordered(row, minimum) for row in rows], maximum)
        labels = np.repeat(np.arange(len(rows)), [*map(len, kept)])
        chosen = np.concatenate([np.zeros(0, int64), *kept])
        found.append(np.stack(np.broadcast_arrays(image, labels, chosen), -1))
    return np.concatenate([np.zeros((0, 3), int64), *found], dtype=int64, casting="unsafe")


def _ordered(scores: Array, minimum: float | None) -> Array:
    """Return the indices of boxes with a higher score than `minimum`, those with more first."""
    if minimum is None:
        return _descending(scores)
    some = np.flatnonzero(scores > minimum)
    return some[_descending(scores[some])] if some.size else some


def _descending(scores: Array) -> Array:
    """Return the indices that sort scores, highest first; NaN are last, equal ones stay in order.

    numpy sorts integers with vector instructions, but not in a stable way: so the bits of many
    float32 become integers of the same order, followed by their indices.
    """
    if len(scores) < MANY or scores.dtype != float32 or np.isnan(scores).any():
        return np.argsort(-scores, kind="stable")
    bits = np.subtract(np.float32(0), scores).view(np.int32)  # without negative zeros
    bits ^= (bits >> 31) & np.int32(0x7FFF_FFFF)
    keys = bits.astype(int64) << 32 | np.arange(len(scores))
    keys.sort()
    return keys & 0xFFFF_FFFF


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
    """Which boxes of an image overlap which.

    Args:
        corners: [4, boxes], see `_corners`.
        overlap: the intersection over union above which a box suppresses another.
    """

    def __init__(self, corners: Array, overlap: float) -> None:
        self._overlap = overlap
        area = (corners[2] - corners[0]) * (corners[3] - corners[1])
        area[~(area > 0)] = np.nan  # boxes without area suppress nothing
        self._boxes = np.concatenate([corners, area[np.newaxis]])

    def kept(self, ordered: list[Array], maximum: int) -> list[Array]:
        """Return the candidates of each class that no better one suppresses, at most so many."""
        most = [min(len(each), max(0, maximum)) for each in ordered]
        # About half of those with higher scores than the last one that is kept are suppressed.
        pairs = sum(min(len(each), 2 * n) * n for each, n in zip(ordered, most, strict=True)) // 2
        if len(ordered) > 1 and pairs > PAIRS:
            is_candidate = np.zeros(self._boxes.shape[1], bool)
            for candidates in ordered:
                is_candidate[candidates] = True
            places = np.flatnonzero(is_candidate)
            if len(places) ** 2 < pairs and len(places) <= MOST_SHARED:
                return self._kept_of_known(places, ordered, maximum)
        return [self._kept(each, maximum) for each in ordered]

    def _kept_of_known(self, places: Array, ordered: list[Array], maximum: int) -> list[Array]:
        """Return the same from bits that say what each box suppresses, found once for all."""
        boxes, rows = self._boxes.take(places, 1), list[int]()
        step = max(1, PAIRS // len(places))
        for first in range(0, len(places), step):
            check_time()
            above = self._is_above(boxes[:, first : first + step], boxes)
            for bits in np.packbits(above, 1, "little"):
                rows.append(int.from_bytes(bits.tobytes(), "little"))
        found: list[Array] = []
        for candidates in ordered:
            check_time()
            gone, kept = 0, list[int]()
            for box in np.searchsorted(places, candidates).tolist():
                if len(kept) >= maximum:
                    break
                if not gone >> box & 1:
                    kept.append(box)
                    gone |= rows[box]
            found.append(places[kept] if kept else candidates[:0])
        return found

    def _kept(self, candidates: Array, maximum: int) -> Array:
        """Return the candidates of one class that are kept.

        Candidates are only compared with those that are kept and, some at a time, with each other:
        with more at a time where most of the last ones were suppressed.
        """
        most = max(0, min(maximum, len(candidates)))
        if most <= 1:
            return candidates[:most]
        ordered = self._boxes.take(candidates, 1)
        found, kept = np.empty(most, int64), np.empty((len(ordered), most), ordered.dtype)
        count = first = 0
        size = TOGETHER
        while count < most and first < len(candidates):
            check_time()
            some = ordered[:, first : first + size]
            left = self._left(some, kept[:, :count])
            taken = slice(count, min(count + len(left), most))
            size = min(TOGETHER * some.shape[1] // max(1, len(left)), MOST_TOGETHER)
            left = left[: most - count]
            found[taken], kept[:, taken] = candidates[first + left], some.take(left, 1)
            first, count = first + some.shape[1], taken.stop
        return found[:count]

    def _left(self, boxes: Array, kept: Array) -> Array:
        """Return which boxes no kept one suppresses, nor a better one of them that is left."""
        places = np.arange(boxes.shape[1])
        step = max(1, PAIRS // len(places))
        for first in range(0, kept.shape[1], step):
            is_gone = self._is_above(kept[:, first : first + step], boxes).any(0)
            if is_gone.any():
                places, boxes = places[~is_gone], boxes.compress(~is_gone, 1)
        above = self._is_above(boxes, boxes)
        above.reshape(-1)[:: len(above) + 1] = False
        some = np.flatnonzero(above.any(1))
        if not some.size:
            return places
        gone, rows = 0, np.packbits(above, 1, "little")
        for box in some.tolist():
            if not gone >> box & 1:
                gone |= int.from_bytes(rows[box].tobytes(), "little")
        bits = np.frombuffer(gone.to_bytes(rows.shape[1], "little"), np.uint8)
        return places[np.unpackbits(bits, count=len(places), bitorder="little") == 0]

    def _is_above(self, some: Array, others: Array) -> Array:
        """Return which boxes suppress which others [some, others].

        Intersection over union is NaN or not above 0 where there is none.
        """
        ours = some[..., np.newaxis]
        theirs = others[:, np.newaxis]
        low = np.maximum(ours[:2], theirs[:2])
        high = np.minimum(ours[2:4], theirs[2:4])
        shared, wide = np.subtract(high, low, out=low)
        np.clip(shared, 0, np.inf, out=shared)  # else two negative factors were a positive product
        np.multiply(shared, wide, out=shared)
        union = np.add(ours[4], theirs[4], out=wide)
        np.subtract(union, shared, out=union)
        found = np.divide(shared, union, out=shared) > self._overlap
        if not self._overlap >= 0:  # even boxes that are apart overlap by 0
            found[...] = True
        return found
