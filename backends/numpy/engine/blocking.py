"""Cache blocking: cutting tensors into blocks for several calls."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.types import Array
from .cost import balanced

#: One slice per axis, whose start and stop are numbers.
Block = tuple[slice, ...]

#: Minimum positions per thread's share of an image: calls on shorter rows are slow.
SHORTEST = 128


@record
class Frame:
    """A tensor's axes merged to fewer, from which blocks are cut.

    Attributes:
        dims: the tensor's shape.
        starts: the first axis of each merged axis; starts with 0.
    """

    dims: tuple[int, ...]
    starts: tuple[int, ...]

    @classmethod
    def finest(cls, dims: tuple[int, ...]) -> Frame:
        """Return the frame without merged axes; a scalar gets one axis."""
        return cls(dims, tuple(range(len(dims))) or (0,))

    def _join(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        ends = (*self.starts[1:], len(dims))
        return tuple(prod(dims[a:b]) for a, b in zip(self.starts, ends, strict=True))

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the merged axes."""
        return self._join(self.dims)

    def fits(self, dims: tuple[int, ...]) -> bool:
        """Whether `dims` broadcast to the tensor so that every merged axis is whole or 1."""
        if len(dims) > len(self.dims):
            return False
        aligned = (1,) * (len(self.dims) - len(dims)) + dims
        ends = (*self.starts[1:], len(self.dims))
        parts = [(aligned[a:b], self.dims[a:b]) for a, b in zip(self.starts, ends, strict=True)]
        return all(part == whole or prod(part) == 1 for part, whole in parts)

    def view(self, data: Array) -> Array:
        """Return a contiguous array that `fits`, with its axes merged."""
        aligned = (1,) * (len(self.dims) - data.ndim) + data.shape
        return data.reshape(self._join(aligned))

    def block(self, box: Block) -> Block:
        """Return a box of the tensor, contiguous within each merged axis, as a block."""
        found: list[slice] = []
        for start, end in zip(self.starts, (*self.starts[1:], len(self.dims)), strict=True):
            first, count = 0, 1
            for part, size in zip(box[start:end], self.dims[start:end], strict=True):
                first = first * size + part.start
                count *= part.stop - part.start
            found.append(slice(first, first + count))
        return tuple(found)


def cut(data: Array, block: Block) -> Array:
    """Return the part of `data` in `block`; axes of size 1 are kept whole."""
    slices = zip(data.shape, block, strict=True)
    return data[tuple(slice(None) if size == 1 else part for size, part in slices)]


def blocks(shape: tuple[int, ...], limit: int, workers: int = 1) -> Iterator[Block]:
    """Yield blocks of at most `limit` elements (at least one) that cover `shape` in C order.

    If there are several, their number is a multiple of that of the threads, if possible.
    """
    if 0 in shape:
        return
    inner, axis = 1, len(shape)
    while axis and inner * shape[axis - 1] <= limit:
        axis -= 1
        inner *= shape[axis]
    whole = tuple(slice(0, size) for size in shape[axis:])
    if axis == 0:
        yield whole
        return
    axis -= 1
    size = shape[axis]
    count = -(-size // max(1, limit // inner))
    if prod(shape[:axis]) * count % workers:
        count = min(size, balanced(count, workers))
    bounds = [size * i // count for i in range(count + 1)]
    for lead in np.ndindex(*shape[:axis]):
        leading = tuple(slice(i, i + 1) for i in lead)
        for start, stop in pairwise(bounds):
            yield (*leading, slice(start, stop), *whole)


def shares(shape: tuple[int, ...], count: int, limit: int) -> list[list[Block]]:
    """Divide a result among threads, each with blocks of at most `limit` elements.

    A single image [1, channels, positions] is cut by positions, as convolutions do, so that a core
    finds what it has written in its cache.

    Args:
        shape: of the result, with merged axes.
        count: maximum number of shares.
        limit: elements per block.
    """
    if count > 1 and len(shape) == 3 and shape[0] == 1 and shape[2] >= count * SHORTEST:
        bounds = [shape[2] * i // count for i in range(count + 1)]
        return [
            [
                (image, channels, slice(start, stop))
                for image, channels, _ in blocks(shape, max(1, limit // (stop - start)) * shape[2])
            ]
            for start, stop in pairwise(bounds)
        ]
    found = list(blocks(shape, limit))
    count = max(1, min(count, len(found)))
    bounds = [len(found) * i // count for i in range(count + 1)]
    return [found[start:stop] for start, stop in pairwise(bounds)]


def full_block(shape: tuple[int, ...]) -> Block:
    """Return the block that contains all elements of a shape."""
    return tuple(slice(0, size) for size in shape)


def lengths(block: Block) -> tuple[int, ...]:
    """Return the number of elements along each axis of a block."""
    return tuple(part.stop - part.start for part in block)
