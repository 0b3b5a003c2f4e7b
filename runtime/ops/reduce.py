"""Reductions along axes, and cumulative sums and products."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ..errors import ShapeError
from ..ir.dtypes import int64
from ..ir.op import Op, op, op_base
from ..ir.types import TensorType
from .propagate import ArrayFunction, reduce
from .shapes import exact_ints_of, int_of, ints_of, normalize_axes, normalize_axis


@op_base
class Reduce(Op):
    """A reduction of all elements along `axes`.

    If axes are omitted or empty, it reduces all of them, or none with `noop_with_empty_axes`.

    Attributes:
        keepdims: whether reduced axes remain, with size 1.
        function: computes known elements from an array, `axis` and `keepdims`; None for operators
            that do not occur in shape arithmetic.
        rounds: whether float results depend on the order of computation, which backends choose.
    """

    function: ClassVar[ArrayFunction | None] = None
    rounds: ClassVar[bool] = True
    keepdims: int = 1
    noop_with_empty_axes: int = 0

    def infer(self, data: TensorType, axes: TensorType | None = None) -> TensorType:
        exact = exact_ints_of(axes, "axes")
        if data.shape is None:
            return data.with_shape(() if axes is None and self._drops_all else None)
        rank = len(data.shape)
        if axes is not None and exact is None:
            return data.with_shape(self._vague_shape(rank, axes))
        along = self.axes(exact, rank)
        shape = (1 if i in along else d for i, d in enumerate(data.shape))
        if not self.keepdims:
            shape = (d for i, d in enumerate(data.shape) if i not in along)
        result = data.with_shape(tuple(shape))
        function = type(self).function
        kinds = "iu" if self.rounds else "iuf"
        if function is None or data.dtype.kind not in kinds or 0 in data.shape:
            return result
        return reduce(result, lambda a: function(a, axis=along, keepdims=bool(self.keepdims)), data)

    @property
    def _drops_all(self) -> bool:
        return not self.keepdims and not self.noop_with_empty_axes

    def _vague_shape(self, rank: int, axes: TensorType) -> tuple[None, ...] | None:
        if self.keepdims:
            return (None,) * rank
        count = ints_of(axes, "axes")
        return (None,) * max(0, rank - len(count)) if count else None

    def axes(self, given: tuple[int, ...] | None, rank: int) -> tuple[int, ...]:
        """Return the axes to reduce, from the front, given the elements of the input `axes`."""
        if given:
            return normalize_axes(given, rank)
        return () if self.noop_with_empty_axes else tuple(range(rank))


@op
class ReduceL1(Reduce):
    """The sum of absolute values."""


@op
class ReduceL2(Reduce):
    """The square root of the sum of squares."""


@op
class ReduceLogSum(Reduce):
    """The logarithm of the sum."""


@op
class ReduceLogSumExp(Reduce):
    """The logarithm of the sum of exponentials."""


@op
class ReduceMax(Reduce):
    """The largest element."""

    function = np.max
    rounds = False


@op
class ReduceMean(Reduce):
    """The arithmetic mean."""


@op
class ReduceMin(Reduce):
    """The smallest element."""

    function = np.min
    rounds = False


@op
class ReduceProd(Reduce):
    """The product."""

    function = np.prod


@op
class ReduceSum(Reduce):
    """The sum."""

    function = np.sum


@op
class ReduceSumSquare(Reduce):
    """The sum of squares."""


@op_base
class ArgReduce(Op):
    """The index along `axis` of one element, as int64.

    Attributes:
        keepdims: whether the axis remains, with size 1.
        select_last_index: whether the last of several equal elements is selected instead of the
            first.
    """

    axis: int = 0
    keepdims: int = 1
    select_last_index: int = 0

    def infer(self, data: TensorType) -> TensorType:
        if data.shape is None:
            return TensorType(int64)
        axis = normalize_axis(self.axis, len(data.shape))
        if data.shape[axis] == 0:
            raise ShapeError(f"axis {axis} of {data} is empty: no element to point at")
        kept = (1,) if self.keepdims else ()
        return TensorType(int64, data.shape[:axis] + kept + data.shape[axis + 1 :])


@op
class ArgMax(ArgReduce):
    """The index of the largest element."""


@op
class ArgMin(ArgReduce):
    """The index of the smallest element."""


@op_base
class Cumulative(Op):
    """Cumulative results along the axis given by the second input.

    Attributes:
        exclusive: whether each result excludes its own element.
        reverse: whether it runs from the last element to the first.
    """

    exclusive: int = 0
    reverse: int = 0

    def infer(self, x: TensorType, axis: TensorType) -> TensorType:
        along = int_of(axis, "axis")
        if x.rank == 0:
            raise ShapeError(f"x is {x}; expected one axis or more")
        if isinstance(along, int) and x.shape is not None:
            normalize_axis(along, len(x.shape))
        return x.without_value()


@op
class CumSum(Cumulative):
    """Cumulative sums."""


@op
class CumProd(Cumulative):
    """Cumulative products."""
