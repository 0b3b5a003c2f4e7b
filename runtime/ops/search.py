"""Operators that find elements: the largest, the distinct, the non-zero."""

from __future__ import annotations

import numpy as np

from ..errors import ShapeError
from ..ir.dtypes import int64
from ..ir.op import Op, op
from ..ir.types import Dim, TensorType
from .propagate import is_small, with_value
from .shapes import checked, int_of, normalize_axis, product


@op
class TopK(Op):
    """The `k` largest (or smallest) elements along `axis`, and their indices.

    Of equal elements, the one with the lower index comes first.
    """

    outputs = (2, 2)
    axis: int = -1
    largest: int = 1
    sorted: int = 1

    def infer(self, x: TensorType, k: TensorType) -> tuple[TensorType, TensorType]:
        count = int_of(k, "k")
        if x.shape is None:
            return x.without_value(), TensorType(int64)
        shape, axis = list(x.shape), normalize_axis(self.axis, len(x.shape))
        size = shape[axis]
        if isinstance(count, int) and isinstance(size, int) and count > size:
            raise ShapeError(f"k={count} elements of an axis of size {size}")
        shape[axis] = count
        found = checked(shape)
        return x.with_shape(found), TensorType(int64, found)


@op
class NonZero(Op):
    """The coordinates of all elements that are not 0, as int64 [rank, found], in C order."""

    def infer(self, x: TensorType) -> TensorType:
        data = x.known if is_small(x) else None
        if data is None or data.ndim == 0:
            return TensorType(int64, (x.rank, None))
        found = np.array(np.nonzero(data), np.int64)
        return with_value(TensorType(int64, found.shape), found)


@op
class Unique(Op):
    """The distinct elements, or slices along `axis`.

    Further outputs: the first occurrence of each, the index of each input element among them, and
    their counts.

    Attributes:
        sorted: whether they are sorted, or in order of first occurrence.
    """

    outputs = (1, 4)
    axis: int | None = None
    sorted: int = 1

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        per_place, per_value = TensorType(int64, (None,)), TensorType(int64, (None,))
        if self.axis is None:
            size: Dim = None if x.shape is None else product(x.shape)
            if size is not None:
                per_place = TensorType(int64, checked([size]))
            return x.with_shape((None,)), per_value, per_place, per_value
        if x.shape is None:
            return x.without_value(), per_value, per_place, per_value
        shape, axis = list(x.shape), normalize_axis(self.axis, len(x.shape))
        per_place = TensorType(int64, (shape[axis],))
        shape[axis] = None
        return x.with_shape(tuple(shape)), per_value, per_place, per_value
