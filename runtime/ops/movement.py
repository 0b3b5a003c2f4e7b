"""Operators that move, repeat, join and split elements without changing them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import itemgetter

import numpy as np

from ..errors import ShapeError
from ..ir.grown import combined, span
from ..ir.limited import Limited
from ..ir.op import Op, op
from ..ir.types import Dim, TensorType
from ..ir.types import Shape as Dims
from .propagate import combine, rearrange
from .shapes import (
    MAX_RANK,
    add,
    broadcast,
    checked,
    exact_ints_of,
    ints_of,
    need_choice,
    need_one,
    need_rank,
    normalize_axes,
    normalize_axis,
    product,
    same_dim,
    same_dtype,
    shape_text,
)


@op
class Transpose(Op):
    """The axes in the order `perm`; reversed if omitted."""

    perm: tuple[int, ...] | None = None

    def infer(self, data: TensorType) -> TensorType:
        if data.shape is None:
            if self.perm is None:
                return data.with_shape(None)
            return data.with_shape(checked((None,) * len(self.order(len(self.perm)))))
        order = self.order(len(data.shape))
        result = data.with_shape(tuple(data.shape[axis] for axis in order))
        return rearrange(result, lambda a: a.transpose(order), data)

    def order(self, rank: int) -> tuple[int, ...]:
        """Return `perm` with its default filled in; raises ShapeError if not a permutation."""
        perm = tuple(reversed(range(rank))) if self.perm is None else self.perm
        if sorted(perm) != list(range(rank)):
            raise ShapeError(f"perm={list(perm)} is not an order of {rank} axes")
        return perm


@op
class Expand(Op):
    """The input broadcast together with `shape`."""

    def infer(self, input: TensorType, shape: TensorType) -> TensorType:
        wanted = ints_of(shape, "shape")
        if wanted is None or input.shape is None:
            return input.with_shape(None)
        result = input.with_shape(broadcast(input.shape, checked(wanted)))
        return rearrange(result, lambda a: np.broadcast_to(a, result.dims), input)


@op
class Tile(Op):
    """The input repeated `repeats` times along each axis."""

    def infer(self, input: TensorType, repeats: TensorType) -> TensorType:
        times = ints_of(repeats, "repeats")
        if input.shape is None:
            return input.with_shape(None if times is None else (None,) * len(times))
        if times is None:
            return input.with_shape((None,) * len(input.shape))
        if len(times) != len(input.shape):
            raise ShapeError(f"{len(times)} repeats for {input}; expected one per axis")
        shape = checked(product(pair) for pair in zip(input.shape, checked(times), strict=True))
        return rearrange(input.with_shape(shape), lambda a: np.tile(a, _exact(times)), input)


def _exact(dims: Sequence[Dim]) -> tuple[int, ...]:
    return tuple(d for d in dims if isinstance(d, int))


@op
class Concat(Op):
    """The inputs concatenated along `axis`."""

    axis: int

    def infer(self, inputs: TensorType, *rest: TensorType) -> TensorType:
        tensors = (inputs, *rest)
        dtype = same_dtype(*tensors)
        shapes = [t.shape for t in tensors if t.shape is not None]
        if not shapes:
            return TensorType(dtype)
        rank = len(shapes[0])
        axis = normalize_axis(self.axis, rank)
        shape, length = list(shapes[0]), 0 if len(shapes) == len(tensors) else None
        for other in shapes:
            if len(other) != rank:
                texts = f"{shape_text(shapes[0])} and {shape_text(other)}"
                raise ShapeError(f"{texts} must have the same rank to be concatenated")
            length = add(length, other[axis])
            for i, (a, b) in enumerate(zip(shape, other, strict=True)):
                if i != axis and a != b:
                    what = f"axis {i} of {shape_text(shapes[0])} and {shape_text(other)}"
                    shape[i] = same_dim(a, b, what)
        shape[axis] = length
        result = TensorType(dtype, checked(shape))
        return combine(result, lambda arrays: np.concatenate(arrays, axis), *tensors)


def that_add_nothing(shapes: Sequence[Dims | None], axis: int) -> list[bool]:
    """Return which tensors of a Concat have no elements, and sizes that do not fit the others.

    Args:
        shapes: of its inputs; None if unknown.
        axis: its attribute; none of them where it is out of range.
    """
    known = [shape for shape in shapes if shape is not None]
    full = next((shape for shape in known if 0 not in shape), None)
    if full is not None and not -len(full) <= axis < len(full):
        full = None
    return [
        not (shape is None or full is None) and 0 in shape and _adds_nothing(shape, full, axis)
        for shape in shapes
    ]


def _adds_nothing(empty: Dims, full: Dims, axis: int) -> bool:
    """Whether a tensor without elements can neither be joined with another nor make it longer."""
    if len(empty) != len(full):
        return True
    axis %= len(full)
    pairs = enumerate(zip(empty, full, strict=True))
    known = [each for each in pairs if all(isinstance(size, int) for size in each[1])]
    return empty[axis] == 0 and any(a != b for i, (a, b) in known if i != axis)


@op
class Split(Op):
    """Parts along `axis`: of the sizes `split`, or equal ones, of which the last is the smallest.

    `num_outputs` is that of the node, with sizes, too: a file need not say it, a node has to.
    """

    outputs = (1, None)
    axis: int = 0
    num_outputs: int | None = None

    def infer(self, input: TensorType, split: TensorType | None = None) -> tuple[TensorType, ...]:
        sizes = ints_of(split, "split", maximum=_MAX_OUTPUTS)
        count = self.num_outputs or 0
        if not 0 < count <= _MAX_OUTPUTS or (sizes is not None and len(sizes) != count):
            given = "no split" if sizes is None else f"{len(sizes)} sizes in split"
            raise ShapeError(f"num_outputs={self.num_outputs} with {given}")
        if input.shape is None:
            return (input.with_shape(None),) * count
        axis = normalize_axis(self.axis, len(input.shape))
        length = input.shape[axis]
        if split is None:
            sizes = _equal_parts(length, count)
        sizes = self._checked_sizes(sizes or (None,) * count, length)
        ends = list(accumulate(sizes, add))
        parts: list[TensorType] = []
        for size, end in zip(sizes, ends, strict=True):
            part = input.with_shape((*input.shape[:axis], size, *input.shape[axis + 1 :]))
            if isinstance(end, int) and isinstance(size, int):
                window = (*(slice(None),) * axis, slice(end - size, end))
                part = rearrange(part, itemgetter(window), input)
            parts.append(part)
        return tuple(parts)

    def _checked_sizes(self, sizes: Sequence[Dim], length: Dim) -> Dims:
        total: Dim = 0
        for size in sizes:
            if isinstance(size, int) and size < 0:
                raise ShapeError(
                    f"axis of size {length} cannot be split into {len(sizes)} parts {list(sizes)}"
                )
            total = add(total, size)
        same_dim(total, length, f"the sum of split={shape_text(tuple(sizes))} and axis {self.axis}")
        return tuple(sizes)


_MAX_OUTPUTS = 1 << 16


def _equal_parts(length: Dim, count: int) -> Dims:
    if not isinstance(length, int):
        return (length,) if count == 1 else (None,) * count
    size = -(-length // count)
    return (*(size,) * (count - 1), length - size * (count - 1))


def bounds_of_slice(start: int, end: int, step: int, size: int) -> tuple[int, int]:
    """Return `start` and `end` counted from the front and clamped as Slice clamps them.

    With a negative step, `end` may be -1: before the first element. There are
    ``len(range(start, end, step))`` elements.
    """
    start, end = (v + size if v < 0 else v for v in (start, end))
    if step > 0:
        return min(max(start, 0), size), min(max(end, 0), size)
    return min(max(start, 0), size - 1), min(max(end, -1), size - 1)


@op
class Slice(Op):
    """Elements from `starts` to before `ends` by `steps`, along `axes` (all if omitted)."""

    def infer(
        self,
        data: TensorType,
        starts: TensorType,
        ends: TensorType,
        axes: TensorType | None = None,
        steps: TensorType | None = None,
    ) -> TensorType:
        first, last = ints_of(starts, "starts"), ints_of(ends, "ends")
        by, along = ints_of(steps, "steps"), exact_ints_of(axes, "axes")
        if data.shape is None:
            return data.with_shape(None)
        rank = len(data.shape)
        count = next((len(v) for v in (first, last, by, along) if v is not None), None)
        if any(v is not None and len(v) != count for v in (first, last, by, along)):
            raise ShapeError("starts, ends, axes and steps have different lengths")
        if axes is None and count is not None:
            along = tuple(range(count))
        if along is None or count is None:
            return data.with_shape((None,) * rank)
        none = (None,) * count
        by = (1,) * count if steps is None else by or none
        shape, windows = list(data.shape), [slice(None)] * rank
        along = normalize_axes(along, rank)
        for axis, a, b, c in zip(along, first or none, last or none, by, strict=True):
            shape[axis], windows[axis] = _sliced(data.shape[axis], a, b, c)
        result = data.with_shape(tuple(shape))
        return rearrange(result, itemgetter(tuple(windows)), data)


def grown_bound(size: Dim, bound: Dim) -> Dim:
    """Return a slice bound with step 1, counted from the front and clamped.

    Args:
        size: of the axis; it or the bound is a growing size.
        bound: the bound as given to Slice.
    """
    if isinstance(bound, int) and bound < 0:
        bound = max(0, size + bound) if isinstance(size, int) else combined(size, bound, 1)
    if isinstance(bound, int) and bound >= 2**31 - 1:
        return size
    found = span(bound, size)
    if found is None:
        return None
    return bound if found[1] <= 0 else size if found[0] >= 0 else None


def grown_extent(size: Dim, start: Dim, end: Dim) -> Dim:
    """Return the length of a slice with step 1 where bounds or size grow."""
    low, high = grown_bound(size, start), grown_bound(size, end)
    found = span(high, low)
    if found is None or found[0] < 0 < found[1]:
        return None
    if found[1] <= 0:
        return 0
    if isinstance(high, int) and isinstance(low, int):
        return high - low
    return combined(high, low, -1)


def _sliced(size: Dim, start: Dim, end: Dim, step: Dim) -> tuple[Dim, slice]:
    """Return the new size of an axis, and the corresponding Python slice."""
    whole = slice(None)
    if step == 0:
        raise ShapeError("a step is 0")
    if not isinstance(size, int):
        to_end = isinstance(end, int) and end >= 2**31 - 1
        if start == 0 and step == 1 and (to_end or (size is not None and end == size)):
            return size, whole
        to_front = isinstance(end, int) and end <= -(2**31 - 1)
        if start == -1 and step == -1 and to_front:
            return size, whole
    if isinstance(size, int) and start == 0 and step == 1 and type(end) is str:
        return Limited(end, size), whole
    if not all(isinstance(each, int) for each in (size, start, end, step)):
        return (grown_extent(size, start, end) if step == 1 else None), whole
    assert isinstance(size, int)
    assert isinstance(start, int)
    assert isinstance(end, int)
    assert isinstance(step, int)
    low, high = bounds_of_slice(start, end, step, size)
    return len(range(low, high, step)), slice(low, None if high < 0 else high, step)


@op
class Pad(Op):
    """`pads` more elements (fewer if negative) before and after `axes` (all if omitted).

    `pads` holds the amounts before all axes, then those after all axes.
    """

    mode: str = "constant"

    def infer(
        self,
        data: TensorType,
        pads: TensorType,
        constant_value: TensorType | None = None,
        axes: TensorType | None = None,
    ) -> TensorType:
        need_choice(self.mode, "mode", "constant", "reflect", "edge", "wrap")
        same_dtype(data, constant_value)
        need_one(constant_value, "constant_value")
        amounts = ints_of(pads, "pads", maximum=2 * MAX_RANK)
        along = exact_ints_of(axes, "axes")
        if data.shape is None:
            if axes is None and amounts is not None:
                return data.with_shape((None,) * (len(amounts) // 2))
            return data.with_shape(None)
        rank = len(data.shape)
        if axes is None:
            along = tuple(range(rank))
        if along is None:
            return data.with_shape((None,) * rank)
        amounts = (None,) * (2 * len(along)) if amounts is None else amounts
        if len(amounts) != 2 * len(along):
            raise ShapeError(f"{len(amounts)} pads for {len(along)} axes; expected two per axis")
        shape = list(data.shape)
        for i, axis in enumerate(normalize_axes(along, rank)):
            more = add(amounts[i], amounts[i + len(along)])
            shape[axis] = add(shape[axis], more) if isinstance(more, int) else None
        if any(isinstance(size, int) and size < 0 for size in shape):
            raise ShapeError(
                f"pads={shape_text(amounts)} leave nothing of {shape_text(data.shape)}"
            )
        return data.with_shape(checked(shape))


@op
class DepthToSpace(Op):
    """[n, c, h, w] to [n, c/b², h·b, w·b]: channels become b × b blocks of pixels."""

    blocksize: int
    mode: str = "DCR"

    def infer(self, input: TensorType) -> TensorType:
        need_choice(self.mode, "mode", "DCR", "CRD")
        n, c, h, w = _image(input, self.blocksize)
        area = _divided(c, self.blocksize**2, "channels")
        b = self.blocksize
        return input.with_shape(checked([n, area, product((h, b)), product((w, b))]))


@op
class SpaceToDepth(Op):
    """[n, c, h, w] to [n, c·b², h/b, w/b]: b × b blocks of pixels become channels."""

    blocksize: int
    mode: str = "DCR"

    def infer(self, input: TensorType) -> TensorType:
        need_choice(self.mode, "mode", "DCR", "CRD")
        n, c, h, w = _image(input, self.blocksize)
        b = self.blocksize
        h, w = _divided(h, b, "height"), _divided(w, b, "width")
        return input.with_shape(checked([n, product((c, b * b)), h, w]))


def _image(x: TensorType, blocksize: int) -> Dims:
    need_rank(x, 4, "input")
    if blocksize < 1:
        raise ShapeError(f"blocksize={blocksize}; expected 1 or more")
    return (None,) * 4 if x.shape is None else x.shape


def _divided(size: Dim, by: int, what: str) -> Dim:
    if not isinstance(size, int):
        return size if by == 1 else None
    if size % by:
        raise ShapeError(f"{what} {size} cannot be divided by {by}")
    return size // by


@op
class ReverseSequence(Op):
    """The first `sequence_lens[i]` elements of each batch entry along `time_axis` reversed."""

    batch_axis: int = 1
    time_axis: int = 0

    def infer(self, input: TensorType, sequence_lens: TensorType) -> TensorType:
        if {self.batch_axis, self.time_axis} != {0, 1}:
            axes = f"batch_axis={self.batch_axis}, time_axis={self.time_axis}"
            raise ShapeError(f"{axes}; expected 0 and 1 in either order")
        need_rank(sequence_lens, 1, "sequence_lens")
        if input.shape is None:
            return input.without_value()
        if len(input.shape) < 2:
            raise ShapeError(f"input is {input}; expected two axes or more")
        if sequence_lens.shape is not None:
            same_dim(input.shape[self.batch_axis], sequence_lens.shape[0], "batch and lengths")
        return input.without_value()


@op
class CenterCropPad(Op):
    """The centre of `axes` (all if omitted) cropped, or padded with zeros, to `shape`."""

    axes: tuple[int, ...] | None = None

    def infer(self, input_data: TensorType, shape: TensorType) -> TensorType:
        wanted = ints_of(shape, "shape")
        if input_data.shape is None:
            known = self.axes is None and wanted is not None
            return input_data.with_shape(checked(wanted) if known and wanted else None)
        rank = len(input_data.shape)
        axes = tuple(range(rank)) if self.axes is None else normalize_axes(self.axes, rank)
        if wanted is not None and len(wanted) != len(axes):
            raise ShapeError(f"shape has {len(wanted)} sizes for {len(axes)} axes")
        dims = list(input_data.shape)
        for axis, size in zip(axes, wanted or (None,) * len(axes), strict=True):
            dims[axis] = size
        return input_data.with_shape(checked(dims))
