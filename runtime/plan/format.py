"""The physical formats of tensors."""

from __future__ import annotations

from enum import Enum
from math import prod

from ..ir.types import TensorType

#: Numbers of a row, or channels of a pixel, that share a scale in the formats of halves.
HALVES_BLOCK = 64


class Format(Enum):
    """The physical order of a tensor's elements; the logical shape is always ONNX's."""

    __hash__ = object.__hash__  # of Enum is one of the name, computed in Python

    CONTIGUOUS = "contiguous"
    """C order of the logical shape."""
    CHANNELS_LAST = "channels_last"
    """Axis 1 innermost: N, spatial axes, C."""

    HALVES = "halves"
    """Rows of float32, which are multiples of 64 long, as two float16 numbers each: what a device
    multiplies. Only its own steps make and read it, and its copier converts it. See `nbytes`."""

    PIXEL_HALVES = "pixel_halves"
    """The same of images, channels last: the rows are pixels."""

    SORTED = "sorted"
    """Indices of int64 as pairs of int32, an index and its place, by index and then by place. Only
    steps of a device read it, and its copier makes it."""

    @property
    def plain(self) -> Format:
        """The format that has the numbers as they are: in this order, or that of their places."""
        return _PLAIN.get(self, self)

    @property
    def is_plain(self) -> bool:
        """Whether numbers are as they are."""
        return self.plain is self

    @property
    def halves(self) -> Format:
        """The format that has halves in this order."""
        return next((each for each in _PLAIN if each.in_halves and each.plain is self), self)

    @property
    def in_halves(self) -> bool:
        """Whether numbers are two float16 numbers each."""
        return self in (Format.HALVES, Format.PIXEL_HALVES)

    def physical(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the elements in memory order."""
        if self.plain is not Format.CHANNELS_LAST or len(dims) < 3:
            return dims
        return (dims[0], *dims[2:], dims[1])

    def order(self, dims: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """Return number and size of every axis longer than 1, in memory order.

        If two formats agree on it, the same bytes are valid in both.
        """
        if not self.is_plain:
            return ((-1, list(Format).index(self)),)
        axes = list(range(len(dims)))
        if self is not Format.CONTIGUOUS and len(dims) > 2:
            axes = [0, *axes[2:], 1]
        sizes = zip(axes, self.physical(dims), strict=True)
        return tuple((axis, size) for axis, size in sizes if size != 1)

    def nbytes(self, type_: TensorType) -> int:
        """Return the bytes of a tensor without gaps.

        In halves, every number has four, and every 64 of a row have a scale of four; there are
        eight rows or a multiple of that, or as many as pixels.
        """
        if not self.in_halves:
            return type_.nbytes
        *rows, terms = self.physical(type_.dims)
        count = prod(rows) if self is Format.PIXEL_HALVES else -(-prod(rows) // 8) * 8
        return 4 * count * terms + 4 * count * terms // HALVES_BLOCK


_PLAIN = {
    **{Format.HALVES: Format.CONTIGUOUS, Format.PIXEL_HALVES: Format.CHANNELS_LAST},
    Format.SORTED: Format.CONTIGUOUS,
}
