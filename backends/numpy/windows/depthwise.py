"""2-D depthwise convolutions: one copy of the image per column of the kernel.

In such a copy, the pixels for one tap are contiguous from row to row: the outputs of a channel are
sums of a few long ranges, each times a number, which `numpy.einsum` adds in one pass. That needs a
third of im2col's copies. Strides split the rows of the copies into phases: the rows that meet the
first row of the kernel, the second, ...
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from math import gcd, prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ....runtime.base.record import record
from ....runtime.ir.types import Array
from ....runtime.ops.conv import Conv
from ....runtime.ops.window import Window, window
from ..engine.blocking import Block, blocks, lengths
from ..engine.chain import Chain
from ..engine.cost import ELEMENT, blocks_worth
from ..engine.step import Bound, ScratchLayout, Tape
from ..numerics.calls import summing
from ..numerics.halves import copying, store
from .algorithm import ConvAlgorithm
from .columns import outside, region
from .window_axis import WindowAxis, axes_of_window

#: Bytes of copies and sums per block, sized for the cache.
COPIES = 1 << 20
#: Nanoseconds per multiply-add, per copied pixel, and of overhead per row of pixels and
#: per range.
TAP, COPY, ROW, STRETCH = 0.1, 0.1, 4.5, 25.0


@record
class StridePhase:
    """Rows or columns of an image spaced by the stride, and those of the kernel that meet them.

    Attributes:
        first: the first of these rows.
        taps: the rows of the kernel.
        start: row of the phase that the first kernel row meets in the first window.
        step: distance in rows to the next one.
    """

    first: int
    taps: slice
    start: int
    step: int

    @classmethod
    def of(cls, window: Window, axis: int = 0) -> list[StridePhase]:
        """Return all phases of windows along an axis."""
        stride, dilation, high = window.strides[axis], window.dilations[axis], window.kernel[axis]
        common = gcd(stride, dilation)
        period = stride // common
        return [
            cls(
                tap * dilation % stride,
                slice(tap, high, period),
                tap * dilation // stride,
                dilation // common,
            )
            for tap in range(min(period, high))
        ]


class Depthwise(ConvAlgorithm):
    """A depthwise convolution, cut into blocks of channels and rows.

    Args:
        chain: a convolution for which `applies` holds, and its fused nodes.
    """

    def __init__(self, chain: Chain) -> None:
        super().__init__(chain)
        x, w = self.x, self.w
        self.channels, self.filters = x.tensor.dims[1], w.tensor.dims[0] // x.tensor.dims[1]
        self.phases = StridePhase.of(self.window)
        self._cut()
        regions = [region(self.window, x.tensor.dims[2:], box) for box in self.boxes]
        scratch, most = ScratchLayout(), max(prod(lengths(box)) for box in self.boxes)
        rows = max(-(-each.shape[0] // self.window.strides[0]) for each in regions)
        copy = rows * self.window.output[1]
        pieces = self.window.kernel[1] * len(self.phases) * self.together
        self.copies = scratch.take(pieces * copy, self.dtype)
        self.image = None
        if self.dtype != x.tensor.dtype:
            inside = max(lengths(each.inside)[0] for each in regions)
            self.image = scratch.take(self.together * inside * x.tensor.dims[3], self.dtype)
        self.spare = scratch.take(self.together * most, self.dtype)
        self.sums = None
        if self.dtype != x.tensor.dtype:
            self.sums = scratch.take(self.together * self.filters * most, self.dtype)
        self.nbytes = scratch.nbytes

    @classmethod
    def applies(cls, chain: Chain) -> bool:
        """Whether the head is a 2-D depthwise convolution."""
        op, (x, w, *_) = chain.head.op, chain.head.inputs
        if not isinstance(op, Conv) or x is None or w is None or x.tensor.rank != 4:
            return False
        if op.group != x.tensor.dims[1] or op.group < 2 or w.tensor.dims[2] < 2:
            return False
        return min(window(op, x.tensor.dims[2:], w.tensor.dims[2:]).output) > 1

    @property
    def nanoseconds(self) -> float:
        """Estimated time on one core."""
        rows, columns = self.window.output
        (high, wide), positions = self.window.kernel, rows * columns
        copies = wide * len(self.phases) * (rows + high) * (ROW + columns * COPY)
        taps = high * wide * (STRETCH + positions * TAP)
        stages = (1 + self.chain.calls) * ELEMENT * positions
        images = self.x.tensor.dims[0] * self.channels
        return images * (copies + self.filters * (taps + stages))

    @property
    def unfolded(self) -> float:
        """Estimated time of im2col and products on one core."""
        rows, columns = self.window.output
        tap = rows * (ROW + columns * COPY / 2) + self.filters * rows * columns * TAP
        stages = (1 + self.chain.calls) * ELEMENT * rows * columns * self.filters
        images = self.x.tensor.dims[0] * self.channels
        return images * (prod(self.window.kernel) * tap + stages)

    def _cut(self) -> None:
        """Choose the channels and rows of a block."""
        high, wide = self.window.output
        copies = self.window.kernel[1] * len(self.phases)
        row = (copies + self.filters) * wide * self.dtype.itemsize
        limit = max(1, COPIES // row) * wide
        self.boxes = list(blocks((high, wide), limit, self.workers))
        wanted = blocks_worth(self.nanoseconds, self.workers)
        share = -(-self.channels * self.x.tensor.dims[0] * len(self.boxes) // wanted)
        fits = COPIES // (row * lengths(self.boxes[0])[0])
        self.together = max(1, min(self.channels, share, fits))

    @property
    def kernel(self) -> str:
        """The window, filters and outputs."""
        size = "x".join(map(str, (self.channels * self.filters, *self.window.output)))
        return f"depthwise {'x'.join(map(str, self.window.kernel))} of {size}"

    def _blocks(self) -> Iterator[tuple[int, slice, Block]]:
        """Yield image, channels and outputs of every block."""
        starts = range(0, self.channels, self.together)
        for image, first, box in product(range(self.x.tensor.dims[0]), starts, self.boxes):
            yield image, slice(first, min(first + self.together, self.channels)), box

    def _record(self, bound: Bound) -> list[Tape]:
        x, result = bound[self.x], bound[self.chain.output]
        result = result.reshape(len(x), self.channels, self.filters, -1)
        high, wide = self.window.kernel
        weights = bound.as_dtype(self.w, self.dtype)
        weights = weights.reshape(self.channels, self.filters, high, wide).swapaxes(2, 3)
        addend = None
        if self.bias is not None:
            bias = bound.as_dtype(self.bias, self.dtype)
            addend = bias.reshape(self.channels, self.filters, 1)
        frame = self.chain.frame((0, 1, 2))
        finish = self.chain.finish(frame, bound, self.dtype)
        across = axes_of_window(self.window, self.x.tensor.dims[2:])[1]
        tapes: list[Tape] = []
        for image, some, box in self._blocks():
            tape: Tape = []
            stretches = self._copies(tape, bound, x[image, some], box, across)
            columns = slice(*(row * self.window.output[1] for row in (box[0].start, box[0].stop)))
            target = result[image, some, :, columns]
            found = target if self.sums is None else bound.scratch(self.sums, target.shape)
            spare = bound.scratch(self.spare, (len(found), found.shape[2]))
            for i, (number, (phase, pixels)) in product(range(self.filters), enumerate(stretches)):
                total = found[:, i]
                factors = weights[some, i, :, phase.taps]
                out = spare if number else total
                tape.append(summing("cxyp,cxy->cp", pixels, factors, out=out))
                if number:
                    tape.append(partial(np.add, total, spare, total))
            last = found
            if addend is not None:
                is_other = bool(self.chain.stages) or found.dtype != target.dtype
                last = found if is_other else target
                tape.append(partial(np.add, found, addend[some], last))
            if not self.chain.stages and last is not target:
                tape.append(partial(store, target, last))
            filters = slice(some.start * self.filters, some.stop * self.filters)
            place = frame.block((slice(image, image + 1), filters, *box))
            finish(tape, place, None if found is target else found.reshape(lengths(place)))
            tapes.append(tape)
        return tapes

    def _copies(
        self, tape: Tape, bound: Bound, image: Array, box: Block, across: WindowAxis
    ) -> list[tuple[StridePhase, Array]]:
        """Record the copies of some channels; return by phase what each tap reads.

        Returns:
            Arrays [channels, columns of the kernel, its rows, outputs].
        """
        covered = region(self.window, image.shape[1:], box)
        stride, (rows, outputs) = self.window.strides[0], lengths(box)
        inside, at = covered.inside[0], covered.at[0]
        if self.image is not None:  # converted once, not for every column of the kernel
            narrow = image[:, inside]
            image, inside = bound.scratch(self.image, narrow.shape), slice(0, narrow.shape[1])
            tape.append(copying(image, narrow))
        shape = len(self.phases), len(image), self.window.kernel[1]
        copies = bound.scratch(self.copies, (*shape, -(-covered.shape[0] // stride), outputs))
        found: list[tuple[StridePhase, Array]] = []
        for phase, copy in zip(self.phases, copies, strict=True):
            low, high = (-(-(end - phase.first) // stride) for end in (at.start, at.stop))
            start = inside.start + phase.first + stride * low - at.start
            pixels = image[:, start : inside.stop : stride]
            gaps = outside(copy, 2, slice(low, high)) if covered.is_padded else []
            is_joined = across.stride == 1 and outputs == pixels.shape[2]
            is_joined &= pixels.strides[1:] == (outputs * pixels.itemsize, pixels.itemsize)
            for i in range(copy.shape[1]):
                places, columns = across.tap(i)
                target, source = copy[:, i, low:high, places], pixels[..., columns]
                if target.size:
                    if is_joined:
                        target, source = copy[:, i, low:high], pixels
                        target, source = _as_ranges(target, source, columns.start - places.start)
                    tape.append(partial(np.copyto, target, source))
                gaps += outside(copy[:, i, low:high], 2, places)
            tape.extend(partial(gap.fill, 0) for gap in gaps)
            count = len(range(*phase.taps.indices(self.window.kernel[0])))
            steps = (*copy.strides[:2], copy.strides[2] * phase.step, copy.strides[3])
            taps = (*copy.shape[:2], count, rows * outputs)
            stretch = as_strided(copy[:, :, phase.start :], taps, steps, writeable=False)
            found.append((phase, stretch))
        return found


def _as_ranges(target: Array, source: Array, shift: int) -> tuple[Array, Array]:
    """Return what to copy for columns to the left by `shift`, as one range for each channel.

    Elements that leave a row come to the next one, or are left out: gaps, which are filled after.

    Args:
        target: [channels, rows, columns], without gaps between the rows of a channel.
        source: the same of the image.
        shift: positive to the left, negative to the right.
    """
    size = target.shape[1] * target.shape[2]
    ranges: list[Array] = []
    for array, first in ((target, max(0, -shift)), (source, max(0, shift))):
        flat = array.reshape(len(array), size, copy=False)
        ranges.append(flat[:, first : first + size - abs(shift)])
    return ranges[0], ranges[1]
