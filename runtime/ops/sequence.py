"""Operators on sequences and optionals, which live on the host."""

from __future__ import annotations

import numpy as np

from ..errors import ShapeError
from ..ir.dtypes import DType, bool_, float32, int64
from ..ir.op import Op, op
from ..ir.types import Dim, MapType, OptionalType, SequenceType, TensorType, ValueType
from .propagate import with_value
from .shapes import checked, common_type, int_of, ints_of, normalize_axis, same_dim


def _sequence_of(element: ValueType | None) -> SequenceType:
    if isinstance(element, SequenceType):
        raise ShapeError(f"a sequence of {element}; expected tensors, optionals or maps")
    return SequenceType(element)


@op
class SequenceEmpty(Op):
    """An empty sequence of tensors of `dtype` (float32 if None)."""

    dtype: DType | None = None

    def infer(self) -> SequenceType:
        return SequenceType(TensorType(self.dtype or float32))


@op
class SequenceConstruct(Op):
    """The inputs as a list."""

    def infer(self, inputs: TensorType, *rest: TensorType) -> SequenceType:
        element: ValueType | None = inputs.without_value()
        for other in rest:
            element = common_type(element, other, "an element")
        return _sequence_of(element)


@op
class SequenceInsert(Op):
    """The list with `tensor` before `position` (appended if omitted)."""

    def infer(
        self, input_sequence: SequenceType, tensor: TensorType, position: TensorType | None = None
    ) -> SequenceType:
        int_of(position, "position")
        if input_sequence.element is None:
            return input_sequence
        return _sequence_of(common_type(input_sequence.element, tensor, "an element"))


@op
class SequenceErase(Op):
    """The list without the element at `position` (the last if omitted)."""

    def infer(
        self, input_sequence: SequenceType, position: TensorType | None = None
    ) -> SequenceType:
        int_of(position, "position")
        return input_sequence


@op
class SequenceAt(Op):
    """The element at `position`; a negative one counts from the end."""

    def infer(self, input_sequence: SequenceType, position: TensorType) -> ValueType | None:
        int_of(position, "position")
        return input_sequence.element


@op
class SequenceLength(Op):
    """The number of elements, as an int64 scalar."""

    def infer(self, input_sequence: SequenceType) -> TensorType:
        return TensorType(int64, ())


@op
class SplitToSequence(Op):
    """Parts of a tensor along `axis`, of the size or sizes `split` (1 if omitted).

    Attributes:
        keepdims: whether parts of size 1 keep the axis. Other parts, and those of a list of sizes,
            always do. PyTorch writes ``unbind`` with a `split` of 1 and without `keepdims`.
    """

    axis: int = 0
    keepdims: int = 1

    def infer(self, input: TensorType, split: TensorType | None = None) -> SequenceType:
        if input.shape is None:
            return SequenceType(input.without_value())
        shape, axis = list(input.shape), normalize_axis(self.axis, len(input.shape))
        size = 1 if split is None else _part_size(split, shape[axis])
        if not self.keepdims and (split is None or split.rank != 1):
            sizes = (1,) if split is None else ints_of(split, "split")
            if sizes is None or not isinstance(sizes[0], int):
                return SequenceType(input.with_shape(None))
            if sizes[0] == 1:
                return SequenceType(input.with_shape(checked(shape[:axis] + shape[axis + 1 :])))
        shape[axis] = size
        return SequenceType(input.with_shape(checked(shape)))


def _part_size(split: TensorType, length: Dim) -> Dim:
    """Return the size of all parts if it is the same, or None."""
    sizes = ints_of(split, "split", maximum=1 << 16)
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        return None
    exact = [size for size in sizes if isinstance(size, int)]
    if split.rank == 1:
        same_dim(sum(exact), length, "the sum of split and the axis it splits")
        return exact[0] if len(set(exact)) == 1 else None
    if exact[0] <= 0:
        raise ShapeError(f"split={exact[0]}; expected 1 or more")
    return exact[0] if isinstance(length, int) and length % exact[0] == 0 else None


@op
class ConcatFromSequence(Op):
    """The list's tensors concatenated along `axis`, or along a new one (`new_axis`)."""

    axis: int
    new_axis: int = 0

    def infer(self, input_sequence: SequenceType) -> TensorType | None:
        element = input_sequence.element
        if not isinstance(element, TensorType):
            return None
        if element.shape is None:
            return element.with_shape(None)
        shape = list(element.shape)
        if self.new_axis:
            shape.insert(normalize_axis(self.axis, len(shape) + 1), None)
        else:
            shape[normalize_axis(self.axis, len(shape))] = None
        return element.with_shape(checked(shape))


@op
class Optional(Op):
    """The input as an optional; an empty one of `type` if it is omitted."""

    type: ValueType | None = None

    def infer(self, input: ValueType | None = None) -> OptionalType:
        element = self.type if input is None else input
        if isinstance(element, OptionalType):
            return element
        if element is None or isinstance(element, MapType):
            raise ShapeError(f"an optional of {element}; expected an input or a type")
        return OptionalType(element.without_value() if isinstance(element, TensorType) else element)


@op
class OptionalHasElement(Op):
    """Whether the optional has an element; a bool scalar."""

    def infer(self, input: ValueType | None = None) -> TensorType:
        result = TensorType(bool_, ())
        if isinstance(input, OptionalType):
            return result
        return with_value(result, np.array(input is not None))


@op
class OptionalGetElement(Op):
    """The element of the optional; the input itself if it is not an optional."""

    def infer(self, input: ValueType) -> ValueType | None:
        return input.element if isinstance(input, OptionalType) else input
