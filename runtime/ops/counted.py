"""Operators with data-dependent sizes in a bounded form: maximal outputs and a count.

A plan can hold these, because all their shapes are known. `counting` runs one in place of a node
with data-dependent shapes, reads the count, and slices the results.
"""

from __future__ import annotations

from ..ir.dtypes import int64
from ..ir.op import Op, op_base
from ..ir.types import TensorType
from .boxes import NonMaxSuppression
from .gather import Compress
from .search import NonZero, Unique
from .shapes import normalize_axis

COUNT = TensorType(int64, (1,))


@op_base
class Counted(Op):
    """An operator with bounded output sizes.

    Its outputs have their maximal size; elements beyond the count are undefined. One more output,
    int64 [1], is the count. No file has such operators.
    """

    outputs = (2, None)

    @property
    def cuts(self) -> tuple[int | None, ...]:
        """The axis along which each result is to be sliced; None if it is complete."""
        return (0,)


@op_base
class CountedNonZero(Counted):
    """NonZero as int64 [rank, elements]."""

    @property
    def cuts(self) -> tuple[int | None, ...]:
        """The axis of the elements."""
        return (1,)

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        return TensorType(int64, (len(x.dims), x.size)), COUNT


@op_base
class CountedUnique(Counted):
    """Unique with one value per element of the input."""

    axis: int | None = None
    sorted: int = 1

    @property
    def cuts(self) -> tuple[int | None, ...]:
        """The axis of the values; the inverse indices need no slicing."""
        return (self.axis or 0, 0, None, 0)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        dims = (x.size,) if self.axis is None else x.dims
        places = TensorType(int64, (dims[normalize_axis(self.axis or 0, len(dims))],))
        return x.with_shape(dims), places, places, places, COUNT


@op_base
class CountedCompress(Counted):
    """Compress with one slice per condition."""

    axis: int | None = None

    @property
    def cuts(self) -> tuple[int | None, ...]:
        """The axis of the slices."""
        return (self.axis or 0,)

    def infer(self, input: TensorType, condition: TensorType) -> tuple[TensorType, TensorType]:
        dims = [input.size] if self.axis is None else list(input.dims)
        axis = normalize_axis(self.axis or 0, len(dims))
        dims[axis] = min(dims[axis], condition.size)
        return input.with_shape(tuple(dims)), COUNT


@op_base
class CountedNonMaxSuppression(Counted):
    """NonMaxSuppression as int64 [images * classes * most, 3]."""

    center_point_box: int = 0

    def infer(
        self,
        boxes: TensorType,
        scores: TensorType,
        max_output_boxes_per_class: TensorType | None = None,
        iou_threshold: TensorType | None = None,
        score_threshold: TensorType | None = None,
    ) -> tuple[TensorType, TensorType]:
        images, classes, count = scores.dims
        limit = max_output_boxes_per_class
        maximum = 0 if limit is None else count
        if limit is not None and limit.known is not None and limit.known.size:
            maximum = max(0, min(maximum, int(limit.known.flat[0])))
        return TensorType(int64, (images * classes * maximum, 3)), COUNT


def within_bounds(op: Op) -> Counted | None:
    """Return the bounded form of an operator, or None if it has none."""
    match op:
        case NonZero():
            return CountedNonZero()
        case Compress():
            return CountedCompress(axis=op.axis)
        case Unique():
            return CountedUnique(axis=op.axis, sorted=op.sorted)
        case NonMaxSuppression():
            return CountedNonMaxSuppression(center_point_box=op.center_point_box)
        case _:
            return None
