"""Operators on sequences (lists) and optionals (a value or None)."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ....runtime.ir.dtypes import int64
from ....runtime.ir.types import Array, TensorType
from ....runtime.ops import sequence as ops
from ....runtime.ops.movement import Concat
from ....runtime.ops.shapes import same_shape
from ..engine.fitted import fitted
from ..engine.registry import kernel

# ── sequences ────────────────────────────────────────────────────────────────────────────────────


def _place(position: Array, maximum: int, length: int) -> int:
    """Return a position from the front; raises IndexError outside -length to `maximum`."""
    at = int(position.reshape(()))
    if not -length <= at <= maximum:
        raise IndexError(
            f"position {at} of a sequence of {length}; it goes from {-length} to {maximum}"
        )
    return at + length if at < 0 else at


@kernel(ops.SequenceEmpty)
def sequence_empty(op: ops.SequenceEmpty) -> list[Any]:
    """Return an empty list."""
    return []


@kernel(ops.SequenceConstruct)
def sequence_construct(op: ops.SequenceConstruct, *inputs: Array) -> list[Any]:
    """Return the inputs as a list."""
    return list(inputs)


@kernel(ops.SequenceInsert)
def sequence_insert(
    op: ops.SequenceInsert, sequence: list[Any], tensor: Array, position: Array | None = None
) -> list[Any]:
    """Return the list with one more element."""
    length = len(sequence)
    at = length if position is None else _place(position, length, length)
    return [*sequence[:at], tensor, *sequence[at:]]


@kernel(ops.SequenceErase)
def sequence_erase(
    op: ops.SequenceErase, sequence: list[Any], position: Array | None = None
) -> list[Any]:
    """Return the list without one of its elements."""
    length = len(sequence)
    at = _place(np.array(-1) if position is None else position, length - 1, length)
    return [*sequence[:at], *sequence[at + 1 :]]


@kernel(ops.SequenceAt)
def sequence_at(op: ops.SequenceAt, sequence: list[Any], position: Array) -> Any:
    """Return one element."""
    return sequence[_place(position, len(sequence) - 1, len(sequence))]


@kernel(ops.SequenceLength)
def sequence_length(op: ops.SequenceLength, sequence: list[Any]) -> Array:
    """Return the number of elements."""
    return np.array(len(sequence), int64)


@kernel(ops.SplitToSequence)
def split_to_sequence(
    op: ops.SplitToSequence, data: Array, split: Array | None = None
) -> list[Any]:
    """Split along an axis, into parts of one size or of given sizes."""
    length = data.shape[op.axis]
    size = 0
    if split is not None and split.ndim == 1:
        sizes = split.tolist()
    else:
        size = 1 if split is None else int(split)
        if size < 1:
            raise ValueError(f"parts of {size} elements; expected 1 or more")
        sizes = [min(size, length - first) for first in range(0, length, size)]
    if sum(sizes) != length or min(sizes, default=0) < 0:
        raise ValueError(f"split={sizes} for an axis of {length} elements")
    lead = (slice(None),) * (op.axis % data.ndim)
    parts = [data[(*lead, slice(a, b))] for a, b in pairwise(accumulate(sizes, initial=0))]
    is_squeezed = size == 1 and not op.keepdims
    return [part.squeeze(op.axis) for part in parts] if is_squeezed else parts


@kernel(ops.ConcatFromSequence)
def concat_from_sequence(op: ops.ConcatFromSequence, sequence: list[Any]) -> Array:
    """Concatenate the elements along an existing or a new axis."""
    if not sequence:
        raise ValueError("the list is empty; expected one tensor or more")
    if not op.new_axis:
        sequence = list(fitted(sequence, op.axis))
    types = [TensorType(element.dtype, element.shape) for element in sequence]
    if op.new_axis:
        for type_ in types[1:]:
            same_shape(types[0].shape, type_.shape, "tensors along a new axis")
    else:
        Concat(axis=op.axis).infer(*types)
    return (np.stack if op.new_axis else np.concatenate)(sequence, op.axis)


# ── optionals ────────────────────────────────────────────────────────────────────────────────────


@kernel(ops.Optional)
def optional(op: ops.Optional, element: Any = None) -> Any:
    """Return the input, None if omitted."""
    return element


@kernel(ops.OptionalHasElement)
def optional_has_element(op: ops.OptionalHasElement, element: Any = None) -> Array:
    """Return whether there is an element."""
    return np.array(element is not None)


@kernel(ops.OptionalGetElement)
def optional_get_element(op: ops.OptionalGetElement, element: Any) -> Any:
    """Return the element."""
    if element is None:
        raise ValueError("the optional is empty")
    return element
