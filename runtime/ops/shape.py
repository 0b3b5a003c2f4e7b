"""Operators that read and change shapes, and that create tensors of a shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil, isfinite, prod
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..ir.dtypes import FLOATS, INTEGERS, DType, float32, int64, string
from ..ir.grown import combined, divided
from ..ir.needs import equate
from ..ir.op import Op, TensorAttribute, op
from ..ir.types import Array, Dim, TensorType, ValueType, constant_type, dims_type
from ..ir.types import Shape as Dims
from .propagate import is_small, rearrange, with_value
from .shapes import (
    MAX_SIZE,
    checked,
    exact_ints_of,
    int_of,
    ints_of,
    need_rank,
    normalize_axes,
    product,
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
    """The elements in C order with another shape.

    In `shape`, -1 stands for the remaining size, and 0 for the input's own size of that axis, or
    for 0 with `allowzero`. The specification forbids -1 together with such a 0; the shapes
    that PyTorch's models compute of empty inputs have both, and the remaining size is that of the
    axes which are not empty, as in onnxruntime.
    """

    view = True
    allowzero: int = 0

    def infer(self, data: TensorType, shape: TensorType) -> TensorType:
        need_rank(shape, 1, "shape")
        wanted = ints_of(shape, "shape")
        if wanted is None:
            return data.with_shape(None)
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
        if self.allowzero and rest is not None and 0 in known and 0 in data.shape:
            return _reshaped(data, checked(_balanced_without_zeros(data.shape, known, rest)))
        return _reshaped(data, checked(_balanced(data.shape, known, rest)))


def _with_copies(wanted: Sequence[Dim], shape: Dims | None) -> Sequence[Dim]:
    """Return `wanted` with its zeros replaced by the sizes of `shape`."""
    if shape is None:
        return [None if size == 0 else size for size in wanted]
    if 0 in wanted[len(shape) :]:
        raise ShapeError(f"shape={shape_text(tuple(wanted))} copies an axis that the data lacks")
    return [shape[i] if size == 0 else size for i, size in enumerate(wanted)]


def _balanced(shape: Dims, dims: Dims, rest: int | None) -> Dims:
    """Return `dims` with the size at `rest` set so that the number of elements is that of `shape`.

    Symbols on both sides cancel, so that a symbolic batch does not hide the other sizes.
    """
    have = Counter(shape)
    want = Counter(d for i, d in enumerate(dims) if i != rest)
    if rest is None and have[0] and want[0]:
        return dims  # both are empty, whatever the other sizes
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
    if not isinstance(known, int):
        return dims
    if known == 0 or (isinstance(total, int) and total % known):
        raise ShapeError(f"{wrong}: no size fits the open axis")
    if isinstance(total, int):
        size = total // known
    else:
        numbers = prod(d for d in have.elements() if isinstance(d, int))
        symbols = [d for d in have.elements() if not isinstance(d, int)]
        single = len(symbols) == 1 and numbers == known
        size = symbols[0] if single else total if known == 1 else divided(total, known)
    return (*dims[:rest], size, *dims[rest + 1 :])


def _balanced_without_zeros(shape: Dims, dims: Dims, rest: int) -> Dims:
    """Return `dims` with the size at `rest` that fits the axes of `shape` which are not empty."""
    others = tuple(d for i, d in enumerate(dims) if d != 0 and i != rest)
    size, *_ = _balanced(tuple(d for d in shape if d != 0), (None, *others), 0)
    return (*dims[:rest], size, *dims[rest + 1 :])


@op
class Flatten(Op):
    """A matrix: the axes before `axis` become one axis, the others the other."""

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
    """The tensor without `axes` of size 1; without all axes of size 1 if `axes` is omitted."""

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
            if count is None:
                return data.with_shape(None)
            able = sum(not isinstance(size, int) or size == 1 for size in data.shape)
            if len(count) > able:
                raise ShapeError(
                    f"{len(count)} axes of {data} are squeezed; {able} may have size 1"
                )
            return data.with_shape((None,) * (rank - len(count)))
        gone = normalize_axes(exact, rank)
        for axis in gone:
            if isinstance(size := data.shape[axis], int) and size != 1:
                raise ShapeError(
                    f"axis {axis} of {data} has size {size}; only 1 can be squeezed (PyTorch's "
                    "squeeze leaves such an axis, and its exporter writes a Squeeze all the same: "
                    "export the module without that call)"
                )
            equate(size, 1)
        return _reshaped(data, tuple(d for i, d in enumerate(data.shape) if i not in gone))


@op
class Unsqueeze(Op):
    """The tensor with new axes of size 1 at the positions `axes` of the result."""

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


#: Operators that give the elements of their first input another shape, in the same order.
RESHAPES = (Reshape, Flatten, Squeeze, Unsqueeze)
#: Those and the one that keeps the shape: all whose `view` is true.
VIEWS = (Identity, *RESHAPES)


# ── tensors out of nothing ───────────────────────────────────────────────────────────────────────


@op
class Constant(Op):
    """A tensor that is part of the model; exactly one attribute is set.

    Attributes:
        sparse_value: the dense form of a sparse tensor.
    """

    value: TensorAttribute | None = None
    sparse_value: TensorAttribute | None = None
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
    """A tensor of the shape `input`, filled with one element, `value` (float32 0)."""

    value: TensorAttribute | None = None

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
        stash_type: dtype in which float16 and bfloat16 are computed.
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
            return TensorType(dtype, (_distance(first, last) if by == 1 else None,))
        result = TensorType(dtype, checked([_count(first, last, by)]))
        if not is_small(result):
            return result
        return with_value(result, np.arange(result.size, dtype=object) * by + first)


def _distance(first: Dim, last: Dim) -> Dim:
    """Return the difference of two sizes, not both numbers; None if unknown."""
    if first == 0:
        return last
    found = combined(last, first, -1)
    return max(0, found) if isinstance(found, int) else found


def _scalar(x: TensorType) -> Any:
    return x.known.reshape(-1)[0] if x.known is not None and x.known.size == 1 else None


def _count(start: Any, limit: Any, delta: Any) -> int:
    """Return the number of elements from `start` to `limit` (exclusive) in steps of `delta`."""
    if delta == 0:
        raise ShapeError("delta is 0")
    if isinstance(delta, int):
        return max(0, -((start - limit) // delta))
    with np.errstate(all="ignore"):
        steps = float(limit - start) / float(delta)
    if not isfinite(steps):
        raise ShapeError(f"from {start} to {limit} by {delta} the number of steps is undefined")
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
    """The triangle of every matrix above (`upper`) or below diagonal `k`, zeros elsewhere."""

    upper: int = 1

    def infer(self, input: TensorType, k: TensorType | None = None) -> TensorType:
        int_of(k, "k")
        if input.rank is not None and input.rank < 2:
            raise ShapeError(f"input is {input}; expected two axes or more")
        return input.without_value()
