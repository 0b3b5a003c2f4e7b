"""Windows reduced along one row: images are one after another, and a tap is the same row, shifted.

A call on a whole row takes a fraction of the time of one on strided or short rows. What it computes
beyond the windows, between strides and across the ends of an image's rows, is never read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import accumulate, cycle
from math import prod
from operator import mul
from typing import Any

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.types import Array
from ..engine.blocking import Block
from ..engine.step import Tape
from .window_axis import WindowAxis

#: Nanoseconds per element of a call on a whole row, on other rows, on strided rows, and on every
#: other element of rows; and of overhead per row.
WHOLE, PART, STRIDED, APART, ROW = 0.1, 0.1, 0.38, 0.65, 6.0


@record
class Sliding:
    """Windows over images of one size.

    Attributes:
        axes: the windows, axis by axis.
    """

    axes: tuple[WindowAxis, ...]

    @property
    def _spans(self) -> tuple[int, ...]:
        """What the windows cover of each axis, padding included."""
        return tuple(
            (axis.output - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1
            for axis in self.axes
        )

    @property
    def is_padded(self) -> bool:
        """Whether windows cover padding, so that images are copied first."""
        pairs = zip(self.axes, self._spans, strict=True)
        return any(axis.begin or span > axis.size for axis, span in pairs)

    @property
    def dims(self) -> tuple[int, ...]:
        """The sizes of an image, padding included."""
        return self._spans if self.is_padded else tuple(axis.size for axis in self.axes)

    @property
    def pieces(self) -> int:
        """The number of arrays of workspace, each of the size of the images."""
        return min(2, self.is_padded + sum(axis.kernel > 1 for axis in self.axes))

    @property
    def nanoseconds(self) -> float:
        """Estimated time of an image on one core."""
        size, outputs = prod(self.dims), [axis.output for axis in self.axes]
        calls = sum(axis.kernel - 1 for axis in self.axes) + self.is_padded
        copied = size / self.dims[-1] * ROW + size * PART if self.is_padded else 0.0
        return calls * size * WHOLE + copied + prod(outputs) * STRIDED + prod(outputs[:-1]) * ROW

    @property
    def by_axis(self) -> float:
        """Estimated time of calls on the rows of an image, axis by axis."""
        sizes, total = [axis.size for axis in self.axes], 0.0
        for i, axis in enumerate(self.axes):
            if axis.is_trivial:
                continue
            sizes[i] = axis.output
            apart = APART if i == len(sizes) - 1 else STRIDED
            element = PART if axis.stride == 1 else apart
            calls = 1 if axis.output == 1 else max(1, axis.kernel - 1 + bool(axis.begin))
            total += calls * (prod(sizes) * element + prod(sizes[:-1]) * ROW)
        return total

    def record(
        self, tape: Tape, ufunc: np.ufunc, start: Any, source: Array, workspace: list[Array]
    ) -> Array:
        """Record the calls that reduce all windows, and return a view of the results.

        Args:
            tape: the calls.
            ufunc: combines two elements.
            start: its neutral element, for padding.
            source: contiguous images [n, *spatial].
            workspace: as many `pieces` of n * prod(dims) elements; the view may be of one of them.
        """
        shape = len(source), *self.dims
        targets, row = cycle(workspace), source.reshape(-1)
        if self.is_padded:
            row = next(targets)
            inside, at = self._places()
            tape.append(partial(row.fill, start))
            padded = row.reshape(shape)[(slice(None), *at)]
            tape.append(partial(np.copyto, padded, source[(slice(None), *inside)]))
        count = row.size
        for axis, pitch in self._pitches():
            if axis.kernel == 1:
                continue
            shift, target = pitch * axis.dilation, next(targets)
            count -= (axis.kernel - 1) * shift
            found = target[:count]
            tape.append(partial(ufunc, row[:count], row[shift : shift + count], out=found))
            for first in range(2 * shift, axis.kernel * shift, shift):
                tape.append(partial(ufunc, found, row[first : first + count], out=found))
            row = target
        steps = (slice(0, (a.output - 1) * a.stride + 1, a.stride) for a in self.axes)
        return row.reshape(shape)[(slice(None), *steps)]

    def _pitches(self) -> Iterator[tuple[WindowAxis, int]]:
        """Yield the axes, the last one first, and how far apart their elements are."""
        backward = reversed(self.dims)
        return zip(reversed(self.axes), accumulate(backward, mul, initial=1), strict=False)

    def _places(self) -> tuple[Block, Block]:
        """Return the part of an image that windows cover, and its place among the padding."""
        inside: list[slice] = []
        at: list[slice] = []
        for axis, span in zip(self.axes, self._spans, strict=True):
            first, place = max(0, -axis.begin), min(span, max(0, axis.begin))
            count = max(0, min(axis.size - first, span - place))
            inside.append(slice(first, first + count))
            at.append(slice(place, place + count))
        return tuple(inside), tuple(at)
