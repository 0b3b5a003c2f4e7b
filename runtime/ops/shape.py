"""Operators that make, read and change shapes, and those that move whole axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from math import ceil, isfinite
from operator import itemgetter
from typing import Any

import numpy as np

from ..dtypes import FLOATS, INTEGERS, DType, float32, int64, string
from ..errors import ShapeError
from ..op import Op, Tensor, op
from ..types import Array, Dim, TensorType, ValueType, constant_type, dims_type
from ..types import Shape as Dims
from .propagate import combine, is_small, rearrange, with_value
from .shapes import (
    MAX_RANK,
    MAX_SIZE,
    add,
    broadcast,
    checked,
    exact_ints_of,
    int_of,
    ints_of,
    need_rank,
    normalize_axes,
    normalize_axis,
    product,
    same_dim,
    same_dtype,
    shape_text,
)

# ── reading shapes ───────────────────────────────────────────────────────────────────────────────


@op
class Shape(Op):
    """The sizes of the axes from `start` to before `end`, as int64 [count]."""

    start: int = 0
    end: int | None = None

    def infer(self, data: TensorType) -> TensorType:
        if data.shape is None:
            return TensorType(int64, (None,))
        return dims_type(checked(data.shape)[self.start : self.end])


@op
class Size(Op):
    """The number of elements, as an int64 scalar."""

    def infer(self, data: TensorType) -> TensorType:
        result = TensorType(int64, ())
        size = None if data.shape is None else product(data.shape)
        if isinstance(size, int) and size > MAX_SIZE:
            raise ShapeError(f"{data} has {size} elements; int64 ends at {MAX_SIZE}")
        return with_value(result, np.full((), size, object))


# ── other shapes for the same bytes ──────────────────────────────────────────────────────────────


def _reshaped(data: TensorType, shape: Dims | None) -> TensorType:
    result = data.with_shape(shape)
    return rearrange(result, lambda a: a.reshape(result.dims), data)


@op
class Identity(Op):
    """The input itself."""

    view = True

    def infer(self, input: ValueType) -> ValueType:
        return input


@op
class Reshape(Op):
    """The elements in C order under another shape.

    In `shape`, -1 stands for what is left, and 0 for the input's own size of that axis, or, with
    `allowzero`, for 0.
    """

    view = True
    allowzero: int = 0

    def infer(self, data: TensorType, shape: TensorType) -> TensorType:
        need_rank(shape, 1, "shape")
        wanted = ints_of(shape, "shape")
        if wanted is None:
            return data.with_shape(None)
        if self.allowzero and 0 in wanted and -1 in wanted:
            raise ShapeError(f"shape={shape_text(wanted)} has both 0 and -1 with allowzero=1")
        if wanted.count(-1) > 1:
            raise ShapeError(f"shape={shape_text(wanted)} has -1 more than once")
        rest = wanted.index(-1) if -1 in wanted else None
        dims = list(wanted if self.allowzero else _with_copies(wanted, data.shape))
        if rest is not None:
            dims[rest] = None
        elif dims.count(None) == 1:
            rest = dims.index(None)
        known = checked(dims)
        if data.shape is None:
            return data.with_shape(known)
        return _reshaped(data, checked(_balanced(data.shape, known, rest)))


def _with_copies(wanted: Sequence[Dim], shape: Dims | None) -> Sequence[Dim]:
    """Return `wanted` with the sizes of `shape` in place of its zeros."""
    if shape is None:
        return [None if size == 0 else size for size in wanted]
    if 0 in wanted[len(shape) :]:
        raise ShapeError(f"shape={shape_text(tuple(wanted))} copies an axis that the data lacks")
    return [shape[i] if size == 0 else size for i, size in enumerate(wanted)]


def _balanced(shape: Dims, dims: Dims, rest: int | None) -> Dims:
    """Return `dims` with the size at `rest` such that it has as many elements as `shape`.

    Symbols that occur on both sides cancel, so a symbolic batch does not hide the other sizes.
    """
    have = Counter(shape)
    want = Counter(d for i, d in enumerate(dims) if i != rest)
    if rest is None and have[0] and want[0]:
        return dims  # both are empty, whatever their other sizes
    unknown = have.pop(None, 0) + want.pop(None, 0)
    have, want = have - want, want - have
    if unknown:
        return dims
    total, known = product(have.elements()), product(want.elements())
    wrong = f"{shape_text(shape)} cannot take the shape {shape_text(dims)}"
    if rest is None:
        if isinstance(total, int) and isinstance(known, int) and total != known:
            raise ShapeError(f"{wrong}: {total} elements against {known} where they differ")
        return dims
    if not isinstance(known, int) or (known != 1 and not isinstance(total, int)):
        return dims
    if known == 0 or (isinstance(total, int) and total % known):
        raise ShapeError(f"{wrong}: no size fits the open axis")
    size = total // known if isinstance(total, int) else total
    return (*dims[:rest], size, *dims[rest + 1 :])


@op
class Flatten(Op):
    """A matrix: the axes before `axis` in one, all others in the other."""

    view = True
    axis: int = 1

    def infer(self, input: TensorType) -> TensorType:
        if input.shape is None:
            return input.with_shape((None, None))
        rank = len(input.shape)
        if not -rank <= self.axis <= rank:
            raise ShapeError(f"axis={self.axis} is outside of [{-rank}, {rank}]")
        axis = self.axis + rank if self.axis < 0 else self.axis
        return _reshaped(input, checked([product(input.shape[:axis]), product(input.shape[axis:])]))


@op
class Squeeze(Op):
    """The tensor without `axes` of size 1; without any of size 1 where `axes` is left out."""

    view = True

    def infer(self, data: TensorType, axes: TensorType | None = None) -> TensorType:
        if data.shape is None:
            return data.with_shape(None)
        rank = len(data.shape)
        if axes is None:
            if not all(isinstance(d, int) for d in data.shape):
                return data.with_shape(None)
            return _reshaped(data, tuple(d for d in data.shape if d != 1))
        exact = exact_ints_of(axes, "axes")
        if exact is None:
            count = ints_of(axes, "axes")
            return data.with_shape(None if count is None else (None,) * max(0, rank - len(count)))
        gone = normalize_axes(exact, rank)
        for axis in gone:
            same_dim(data.shape[axis], 1, f"axis {axis} of {data} and the size 1 to squeeze")
        return _reshaped(data, tuple(d for i, d in enumerate(data.shape) if i not in gone))


@op
class Unsqueeze(Op):
    """The tensor with new axes of size 1, which are `axes` of the result."""

    view = True

    def infer(self, data: TensorType, axes: TensorType) -> TensorType:
        count = ints_of(axes, "axes")
        if data.shape is None or count is None:
            return data.with_shape(None)
        rank = len(data.shape) + len(count)
        exact = exact_ints_of(axes, "axes")
        if exact is None:
            return data.with_shape(checked((None,) * rank))
        new, old = normalize_axes(exact, rank), iter(data.shape)
        return _reshaped(data, checked([1 if i in new else next(old) for i in range(rank)]))


# ── moving and repeating elements ────────────────────────────────────────────────────────────────


@op
class Transpose(Op):
    """The axes in the order `perm`; reversed where it is left out."""

    perm: tuple[int, ...] | None = None

    def infer(self, data: TensorType) -> TensorType:
        if data.shape is None:
            return data.with_shape(checked((None,) * len(self.perm)) if self.perm else None)
        order = self.order(len(data.shape))
        result = data.with_shape(tuple(data.shape[axis] for axis in order))
        return rearrange(result, lambda a: a.transpose(order), data)

    def order(self, rank: int) -> tuple[int, ...]:
        """Return `perm` with its default filled in; raises ShapeError if it is no permutation."""
        perm = tuple(reversed(range(rank))) if self.perm is None else self.perm
        if sorted(perm) != list(range(rank)):
            raise ShapeError(f"perm={list(perm)} is not an order of {rank} axes")
        return perm


@op
class Expand(Op):
    """The input broadcast with `shape`, each to the other."""

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
            raise ShapeError(f"{len(times)} repeats for {input}; expected one an axis")
        shape = checked(product(pair) for pair in zip(input.shape, checked(times), strict=True))
        return rearrange(input.with_shape(shape), lambda a: np.tile(a, _exact(times)), input)


def _exact(dims: Sequence[Dim]) -> tuple[int, ...]:
    return tuple(d for d in dims if isinstance(d, int))


@op
class Concat(Op):
    """The inputs one behind the other along `axis`."""

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
                if i != axis:
                    what = f"axis {i} of {shape_text(shapes[0])} and {shape_text(other)}"
                    shape[i] = same_dim(a, b, what)
        shape[axis] = length
        result = TensorType(dtype, checked(shape))
        return combine(result, lambda arrays: np.concatenate(arrays, axis), *tensors)


@op
class Split(Op):
    """Parts along `axis`: of the sizes `split`, or of equal ones, the last the smallest.

    `num_outputs` is always set: the importer fills in the number of the node's outputs.
    """

    outputs = (1, None)
    axis: int = 0
    num_outputs: int | None = None

    def infer(self, input: TensorType, split: TensorType | None = None) -> tuple[TensorType, ...]:
        sizes = ints_of(split, "split", most=_MAX_OUTPUTS)
        count = self.num_outputs or len(sizes or ())
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
                raise ShapeError(f"axis of size {length} has no {len(sizes)} parts {list(sizes)}")
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
    """Return `start` and `end` of a slice counted from the front and clamped as Slice clamps them.

    With a negative step, `end` may be -1: before the first element. There are
    ``len(range(start, end, step))`` elements.
    """
    start, end = (v + size if v < 0 else v for v in (start, end))
    if step > 0:
        return min(max(start, 0), size), min(max(end, 0), size)
    return min(max(start, 0), size - 1), min(max(end, -1), size - 1)


@op
class Slice(Op):
    """From `starts` to before `ends` by `steps`, along `axes` (all where left out)."""

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


def _sliced(size: Dim, start: Dim, end: Dim, step: Dim) -> tuple[Dim, slice]:
    """Return what is left of an axis, and the Python slice that leaves it."""
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
        return None, whole
    if not (isinstance(start, int) and isinstance(end, int) and isinstance(step, int)):
        return None, whole
    low, high = bounds_of_slice(start, end, step, size)
    return len(range(low, high, step)), slice(low, None if high < 0 else high, step)


@op
class Pad(Op):
    """`pads` more elements (fewer where negative) before and behind `axes` (all where left out).

    `pads` holds those before every axis, then those behind every axis.
    """

    mode: str = "constant"

    def infer(
        self,
        data: TensorType,
        pads: TensorType,
        constant_value: TensorType | None = None,
        axes: TensorType | None = None,
    ) -> TensorType:
        same_dtype(data, constant_value)
        amounts = ints_of(pads, "pads", most=2 * MAX_RANK)
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
        amounts = amounts or (None,) * (2 * len(along))
        if len(amounts) != 2 * len(along):
            raise ShapeError(f"{len(amounts)} pads for {len(along)} axes; expected two an axis")
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
    """[n, c, h, w] to [n, c/b², h·b, w·b]: channels become blocks of b × b pixels."""

    blocksize: int
    mode: str = "DCR"

    def infer(self, input: TensorType) -> TensorType:
        n, c, h, w = _image(input, self.blocksize)
        area = _divided(c, self.blocksize**2, "channels")
        b = self.blocksize
        return input.with_shape(checked([n, area, product((h, b)), product((w, b))]))


@op
class SpaceToDepth(Op):
    """[n, c, h, w] to [n, c·b², h/b, w/b]: blocks of b × b pixels become channels."""

    blocksize: int
    mode: str = "DCR"

    def infer(self, input: TensorType) -> TensorType:
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
    """The middle of `axes` (all where left out) cropped, or padded with zeros, to `shape`."""

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


# ── tensors out of nothing ───────────────────────────────────────────────────────────────────────


@op
class Constant(Op):
    """A tensor that is part of the model; exactly one attribute is set.

    Attributes:
        sparse_value: the tensor that a sparse one stands for, zeros written out.
    """

    value: Tensor | None = None
    sparse_value: Tensor | None = None
    value_float: float | None = None
    value_floats: tuple[float, ...] | None = None
    value_int: int | None = None
    value_ints: tuple[int, ...] | None = None
    value_string: str | None = None
    value_strings: tuple[str, ...] | None = None

    def infer(self) -> TensorType:
        return constant_type(self.data)

    @property
    def data(self) -> Array:
        """The elements; raises ShapeError unless exactly one attribute is set."""
        given: list[Any] = [self.value, self.sparse_value]
        found = [t.array for t in given if t is not None]
        plain: list[tuple[Any, DType]] = [
            (self.value_float, float32),
            (self.value_floats, float32),
            (self.value_int, int64),
            (self.value_ints, int64),
            (self.value_string, string),
            (self.value_strings, string),
        ]
        found += [np.array(v, dtype) for v, dtype in plain if v is not None]
        if len(found) != 1:
            raise ShapeError(f"a constant with {len(found)} of its attributes set; expected one")
        return found[0]


@op
class ConstantOfShape(Op):
    """A tensor of the shape `input`, filled with the one element `value` (float32 0)."""

    value: Tensor | None = None

    def infer(self, input: TensorType) -> TensorType:
        dims = ints_of(input, "input")
        fill = self.fill
        result = TensorType(fill.dtype, None if dims is None else checked(dims))
        if not is_small(result):
            return result
        return with_value(result, np.full(result.dims, fill))

    @property
    def fill(self) -> Array:
        """The element as a 0-d array; raises ShapeError unless `value` has exactly one."""
        if self.value is None:
            return np.zeros((), np.float32)
        if self.value.array.size != 1:
            raise ShapeError(f"value has {self.value.array.size} elements; expected 1")
        return self.value.array.reshape(())


@op
class Range(Op):
    """The numbers `start` + i · `delta` before `limit`.

    Attributes:
        stash_type: dtype that float16 and bfloat16 are computed in.
    """

    stash_type: DType = float32

    def infer(self, start: TensorType, limit: TensorType, delta: TensorType) -> TensorType:
        dtype = same_dtype(start, limit, delta)
        for x, name in ((start, "start"), (limit, "limit"), (delta, "delta")):
            need_rank(x, (0, 1), name)
        if dtype not in FLOATS | INTEGERS:
            raise ShapeError(f"start is {start}; expected numbers")
        if dtype in FLOATS:
            known = [_scalar(x) for x in (start, limit, delta)]
            exact = [v for v in known if v is not None]
            return TensorType(dtype, checked([_count(*exact) if len(exact) == 3 else None]))
        first, last, by = int_of(start, "start"), int_of(limit, "limit"), int_of(delta, "delta")
        if not (isinstance(first, int) and isinstance(last, int) and isinstance(by, int)):
            return TensorType(dtype, (last if first == 0 and by == 1 else None,))
        result = TensorType(dtype, checked([_count(first, last, by)]))
        if not is_small(result):
            return result
        return with_value(result, np.arange(result.size, dtype=object) * by + first)


def _scalar(x: TensorType) -> Any:
    return x.known.reshape(-1)[0] if x.known is not None and x.known.size == 1 else None


def _count(start: Any, limit: Any, delta: Any) -> int:
    """Return how many numbers there are from `start` to before `limit` in steps of `delta`."""
    if delta == 0:
        raise ShapeError("delta is 0")
    if isinstance(delta, int):
        return max(0, -((start - limit) // delta))
    with np.errstate(all="ignore"):
        steps = float(limit - start) / float(delta)
    if not isfinite(steps):
        raise ShapeError(f"from {start} to {limit} by {delta} there is no number of steps")
    return max(0, ceil(steps))


@op
class EyeLike(Op):
    """A matrix of the input's shape with ones on diagonal `k`, zeros elsewhere."""

    dtype: DType | None = None
    k: int = 0

    def infer(self, input: TensorType) -> TensorType:
        need_rank(input, 2, "input")
        shape = (None, None) if input.shape is None else input.shape
        return TensorType(self.dtype or input.dtype, shape)


@op
class Trilu(Op):
    """The triangle of every matrix from diagonal `k` up (`upper`) or down, zeros elsewhere."""

    upper: int = 1

    def infer(self, input: TensorType, k: TensorType | None = None) -> TensorType:
        int_of(k, "k")
        if input.rank is not None and input.rank < 2:
            raise ShapeError(f"input is {input}; expected two axes or more")
        return input.without_value()
