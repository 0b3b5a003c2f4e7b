"""Depthwise convolutions of small images, channels-last, so that a tap covers many channels.

Rows of small images are short, and starting a loop over one costs more than running it. In a
channels-last copy, `numpy.einsum` adds a tap of all channels of a pixel in one loop.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise, product
from math import prod

import numpy as np

from ....runtime.ir.types import Array
from ..engine.blocking import lengths
from ..engine.chain import Chain
from ..engine.cost import ELEMENT, blocks_worth
from ..engine.step import Bound, ScratchLayout, Tape
from ..numerics.calls import summing
from ..numerics.halves import copying, store
from .algorithm import ConvAlgorithm
from .columns import region, windows
from .depthwise import Depthwise

#: Bytes of image and sums per block, sized for the cache.
COPIES = 1 << 20
#: Minimum channels per block.
FEWEST = 16
#: Channels a multiple of this many bytes apart collide in few cache sets.
CLASH = 1 << 10
#: Nanoseconds per element copied in and out, per multiply-add, and of overhead per loop.
INTO, OUT, TAP, LOOP = 0.6, 0.75, 0.16, 15.0


class DepthwiseLast(ConvAlgorithm):
    """A depthwise convolution, cut into blocks of channels of an image, or of images.

    Args:
        chain: a convolution for which `applies` holds, and its fused nodes.

    Attributes:
        stack: the images of a block, whose channels are one axis.
        parts: the channels of a block.
    """

    def __init__(self, chain: Chain) -> None:
        super().__init__(chain)
        x = self.x
        spatial = x.tensor.dims[2:]
        self.box = tuple(slice(0, size) for size in self.window.output)
        self.region = region(self.window, spatial, self.box)
        images, channels = x.tensor.dims[:2]
        sizes = prod(self.region.shape), prod(self.window.output)
        self.together = COPIES // (sum(sizes) * self.dtype.itemsize)
        self.fewest = -(-channels // max(1, self.together))
        self.stack = max(1, min(images, self.together // channels))
        wanted = -(-blocks_worth(self.nanoseconds, self.workers) // images)
        self.stack = min(self.stack, max(1, images // self.workers))
        count = max(1, min(max(wanted, self.fewest), channels // FEWEST)) if self.stack == 1 else 1
        bounds = [channels * i // count for i in range(count + 1)]
        self.parts = [slice(start, stop) for start, stop in pairwise(bounds)]
        most = self.stack * max(part.stop - part.start for part in self.parts)
        scratch = ScratchLayout()
        self.image, self.sums = (scratch.take(most * size, self.dtype) for size in sizes)
        self.nbytes = scratch.nbytes

    @classmethod
    def applies(cls, chain: Chain) -> bool:
        """Whether the head is a 2-D depthwise convolution with many channels."""
        if not Depthwise.applies(chain):
            return False
        x, w, _ = chain.operands
        channels, size = x.tensor.dims[1], prod(x.tensor.dims[2:]) * x.tensor.dtype.itemsize
        is_plain = w.is_constant and w.tensor.dims[0] == channels >= FEWEST
        return is_plain and bool(size % CLASH) and cls(chain).together >= FEWEST

    @property
    def nanoseconds(self) -> float:
        """Estimated time on one core."""
        images, channels, *spatial = self.x.tensor.dims
        outputs, taps = prod(self.window.output), prod(self.window.kernel)
        stages = (1 + self.chain.calls) * ELEMENT
        channel = prod(spatial) * INTO + outputs * (taps * TAP + OUT + stages)
        loops = self.fewest if self.stack == 1 else 1 / self.stack
        return images * (channels * channel + loops * taps * outputs * LOOP)

    @property
    def kernel(self) -> str:
        """The window, filters and outputs."""
        size = "x".join(map(str, (self.w.tensor.dims[0], *self.window.output)))
        return f"depthwise {'x'.join(map(str, self.window.kernel))} of {size}, channels last"

    def _record(self, bound: Bound) -> list[Tape]:
        x, result = bound[self.x], bound[self.chain.output]
        layout = ("channels last", self.dtype, self.stack)
        weights = bound.packed((self.w,), layout, self._transposed)
        bias = None if self.bias is None else bound.as_dtype(self.bias, self.dtype)
        frame = self.chain.frame((0, 1, 2))
        finish = self.chain.finish(frame, bound, self.dtype)
        tapes: list[Tape] = []
        for first, some in product(range(0, len(x), self.stack), self.parts):
            tape: Tape = []
            images = slice(first, min(first + self.stack, len(x)))
            counts = images.stop - first, some.stop - some.start
            copy = bound.scratch(self.image, (*self.region.shape, *counts))
            if self.region.is_padded:
                tape.append(partial(copy.fill, 0))
            pixels = x[(images, some, *self.region.inside)].transpose(2, 3, 0, 1)
            tape.append(copying(copy[self.region.at], pixels))
            total = bound.scratch(self.sums, (*self.window.output, *counts))
            flat = copy.reshape(*self.region.shape, -1).transpose(2, 0, 1)
            seen = windows(flat, self.window, self.window.output)
            factors = weights[..., some.start : some.start + prod(counts)]
            sums = total.reshape(*self.window.output, -1)
            tape.append(summing("cuvxy,uvc->xyc", seen, factors, out=sums))
            if bias is not None:
                tape.append(partial(np.add, total, bias[some], total))
            place = frame.block((images, some, *self.box))
            found, target = total.transpose(2, 3, 0, 1), result[images, some]
            if self.chain.stages and found.dtype != target.dtype:
                finish(tape, place, found.reshape(lengths(place)))
            else:
                tape.append(partial(store, target, found))
                finish(tape, place)
            tapes.append(tape)
        return tapes

    def _transposed(self, w: Array) -> Array:
        """Return the weights as [rows of the kernel, columns, channels of all images]."""
        return np.tile(w[:, 0].transpose(1, 2, 0).astype(self.dtype), self.stack)
