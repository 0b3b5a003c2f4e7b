"""Operands of epilogues: which elements of a tensor the results of a kernel read, in C++."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, bool_
from ....runtime.ir.graph import Value
from ....runtime.ir.types import Array
from ....runtime.plan.format import Format
from ..recipe.operands import Packed, Tensor

#: How an operand is indexed: like the result, with one element per channel or per row of a matrix,
#: like the result with rows of another distance, with one row for all rows of a sample, or with one
#: element per row of all matrices, or pixel of all images; or not read, but a second result, stored
#: like the first; see `epilogue.cuh`.
ALONG, BY_CHANNEL, BY_ROW, PLACED, BY_SAMPLE, BY_LINE, SECOND = 1, 2, 3, 4, 5, 6, 7


@record
class RowLayout:
    """Where the rows of an operand are; as those of the result by default.

    Attributes:
        result: elements between rows of the result.
        operand: elements between its own rows.
        shared: rows of the result for which it has one; 0 if its rows have one element.
        period: after how many of its rows it repeats; 0 if it does not.
    """

    result: int = 1
    operand: int = 1
    shared: int = 1
    period: int = 0

    @property
    def place(self) -> str:
        """In C++, the place of what it has for the result's element ``i``."""
        if self.result == self.operand and self.shared == 1:
            return f"(unsigned)i % {self.result * self.period}u" if self.period else "i"
        own = f" % {self.period}u" if self.period else ""
        row = f"(unsigned)i / {self.result * (self.shared or 1)}u{own} * {self.operand}ll"
        return f"{row} + (unsigned)i % {self.result}u" if self.shared else row


@record
class Places:
    """Where the operands of an epilogue may be.

    Attributes:
        channels: the axis of the channels; None if there is none.
        rows: the axis of the rows of a matrix product that count from zero in each matrix, or None.
        by_sample: whether all rows of a sample may share one.
        by_plane: whether all elements of an image's plane may share one.
        by_line: whether all elements of a row, or channels of a pixel, may share one.
        repeats: whether batches may share constants that are whole rows of matrices.
        masks: whether constants of booleans may be as large as a matrix; else they have one element
            for each channel or row. Kernels whose weights are constant map other operands.
        pitches: of operands that are slices; see `View.pitch`.
    """

    channels: int | None
    rows: int | None
    by_sample: bool
    by_plane: bool
    by_line: bool
    repeats: bool
    masks: bool
    pitches: Mapping[Value, int]


@record
class EpilogueOperand:
    """An operand of an epilogue.

    Attributes:
        tensor: its elements.
        kind: how it is indexed.
        code: its element, in C++.
        rows: where its rows are.
    """

    tensor: Tensor | Packed
    kind: int
    code: str
    rows: RowLayout = RowLayout()


def operand_of(
    value: Value, number: int, y: Tensor, sums: DType, places: Places
) -> EpilogueOperand | str:
    """Return an operand that a kernel can read beside its results, or why it cannot.

    Args:
        value: what is read.
        number: how many operands are in front of it.
        y: the result, in the format that the kernel stores.
        sums: the dtype of the kernel's own results.
        places: where operands may be.
    """
    tensor = Tensor(value, y.format, places.pitches.get(value, 0))
    is_mask = value.data is not None and tensor.dtype == bool_
    if tensor.dtype != sums and not is_mask:
        return f"operand of {tensor.dtype.name}"
    found = _kind_of(tensor, y, places, is_mask=is_mask)
    if isinstance(found, str):
        return found
    kind, rows = found
    if is_mask and not places.masks and kind not in (BY_CHANNEL, BY_ROW):
        return f"a mask of {value.tensor}"
    tensor = Tensor(value) if kind in (BY_CHANNEL, BY_ROW) else tensor
    index = {BY_CHANNEL: "channel", BY_ROW: "row"}.get(kind, f"place{number}(i)")
    element = f"z{number}[{index}]"
    if is_mask:
        return EpilogueOperand(_numbers(value, sums), kind, f"float({element}) != 0", rows)
    return EpilogueOperand(tensor, kind, element, rows)


def _kind_of(
    operand: Tensor, y: Tensor, places: Places, *, is_mask: bool
) -> tuple[int, RowLayout] | str:
    """Return how an operand is indexed, and its rows; see `EpilogueOperand`."""
    is_constant, plain = operand.data is not None, RowLayout()
    if is_constant and is_per_channel(operand.dims, y.dims, places.channels):
        return BY_CHANNEL, plain
    if is_constant and places.rows and is_per_channel(operand.dims, y.dims, places.rows):
        return BY_ROW, plain
    if _is_along(operand, y):
        if not operand.rank or operand.row == y.row:
            return ALONG, plain
        if y.extent >= 2**32:
            return f"an operand whose rows are apart, and {y.extent} results"
        return PLACED, RowLayout(y.row, operand.row)
    if shared := _place_by_sample(operand, y, places):
        return BY_SAMPLE, shared
    if places.by_line and not is_mask and _is_by_line(operand, y):
        return BY_LINE, RowLayout(y.row, operand.pitch or 1, shared=0)
    if is_constant and places.repeats and _is_repeated(operand.dims, y):
        period = operand.size // operand.row
        return PLACED, RowLayout(y.row, operand.row, period=period)
    return f"an operand of {operand.value.tensor} does not fit {y.value.tensor}"


def row_of(operand: Tensor | Packed, columns: int) -> int:
    """Return the elements between rows of an operand in the result's order, which has `columns`."""
    return operand.row if isinstance(operand, Tensor) else columns


def rows_of_boxes(
    operand: Tensor | Packed, rows: int, period: int, height: int
) -> tuple[Tensor | Packed, int]:
    """Return what boxes of rows of an operand are copied from, and its rows.

    Args:
        operand: along.
        rows: of the result.
        period: after how many rows the operand repeats; boxes begin within the first ones. 0 if it
            does not.
        height: rows of a box.
    """
    if not period:
        return operand, rows
    assert isinstance(operand, Tensor)
    pack = partial(_repeated, rows=period + height)
    return Packed((operand.value,), ("repeated", period + height), pack), period + height


def _repeated(data: Array, rows: int) -> Array:
    return np.resize(data, (rows, data.shape[-1]))


def size_of(operand: Tensor | Packed) -> int:
    """Return the number of elements of an operand, a tensor or a mask as numbers."""
    return operand.size if isinstance(operand, Tensor) else operand.sources[0].tensor.size


def _numbers(mask: Value, dtype: DType) -> Packed:
    """Return a constant of booleans as zeros and ones."""
    return Packed((mask,), ("numbers", dtype), partial(_converted, dtype=dtype))


def _converted(data: Array, dtype: DType) -> Array:
    return data.astype(dtype)


def _place_by_sample(operand: Tensor, y: Tensor, places: Places) -> RowLayout | None:
    """Return where a computed operand is that many rows of the result share; see `EpilogueOperand`.

    Such as a vector of each of 32 samples, [32, 1, 1, 96], of which 49 rows of a result of [32, 7,
    7, 96] have one, or the pixels of channels-last images; or constants of one of several matrices.
    """
    allowed = places.repeats if operand.data is not None else places.by_sample
    if not allowed or y.rank < 2 or y.extent >= 2**32:
        return None
    dims = (1,) * (y.rank - operand.rank) + operand.dims
    if places.by_plane and y.format is Format.CONTIGUOUS:
        of_planes = dims == (*y.dims[:2], *(1,) * (y.rank - 2))
        return RowLayout(shared=prod(y.dims[2:])) if of_planes else None
    if y.format.order(dims) != Format.CONTIGUOUS.order(dims):
        return None  # pixels of one axis: nothing asks for them with channels last
    own, sizes = (y.format.physical(each) for each in (dims, y.dims))
    same = next((i for i, (d, s) in enumerate(zip(own, sizes, strict=True)) if d != s), y.rank)
    if own != (*sizes[:same], *(1,) * (y.rank - 1 - same), sizes[-1]):
        return None
    return RowLayout(y.row, operand.pitch or own[-1], prod(sizes[same:-1]))


def _is_by_line(operand: Tensor, y: Tensor) -> bool:
    """Whether an operand has one element for each row of the result, or pixel of an image."""
    dims = (1,) * (y.rank - operand.rank) + operand.dims
    if y.rank < 2 or y.extent >= 2**32 or y.format.order(dims) != Format.CONTIGUOUS.order(dims):
        return False
    own, sizes = (y.format.physical(each) for each in (dims, y.dims))
    return own == (*sizes[:-1], 1) and sizes[-1] > 1


def _is_along(operand: Tensor, y: Tensor) -> bool:
    """Whether an operand has the result's elements in its order; constants are contiguous."""
    if operand.data is None:
        return operand.dims == y.dims
    padded = (1,) * (y.rank - operand.rank) + operand.dims
    return padded == y.dims and y.format is Format.CONTIGUOUS


def _is_repeated(dims: tuple[int, ...], y: Tensor) -> bool:
    """Whether a tensor is whole matrices of a result, the same for the first axes of a batch."""
    whole = y.format is Format.CONTIGUOUS and 2 <= len(dims) <= y.rank and y.extent < 2**32
    padded = (1,) * (y.rank - len(dims)) + dims
    same = next((i for i, d in enumerate(padded) if d != 1), y.rank)
    return whole and same <= y.rank - 2 and padded[same:] == y.dims[same:]


def is_per_channel(dims: tuple[int, ...], shape: tuple[int, ...], axis: int | None) -> bool:
    """Whether a constant has one element for each channel, along `axis`; one in all if None."""
    axis = None if axis is None else axis % max(1, len(shape))
    padded = (1,) * (len(shape) - len(dims)) + dims
    return all(
        d == (s if i == axis else 1) for i, (d, s) in enumerate(zip(padded, shape, strict=True))
    )
