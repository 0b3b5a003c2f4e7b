"""Convolutions whose windows are padding for the most part: one product per tap.

Where a dilation is about as large as the image (atrous spatial pyramids), a tap meets the image in
a few windows only, or in none. Its product with the pixels that it meets is added to the results of
these windows; columns of im2col would be zeros for the most part.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise, product
from math import prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.types import Array
from ....runtime.ops.window import Window
from ..engine.blocking import Block, lengths
from ..engine.chain import Chain
from ..engine.cost import ELEMENT, FETCH, PRODUCT, blocks_worth
from ..engine.step import Bound, ScratchLayout, Tape
from ..numerics.products import recorded, sums
from .algorithm import ConvAlgorithm

#: Minimum filters per block: thin products are slow.
FEWEST = 32


@record
class Tap:
    """A place of the kernel.

    Attributes:
        index: which.
        outputs: the windows in which it meets the image.
        pixels: what it meets there.
    """

    index: tuple[int, ...]
    outputs: Block
    pixels: Block

    @classmethod
    def met(cls, window: Window, spatial: tuple[int, ...]) -> list[Tap]:
        """Return the taps that meet the image, those in most windows first."""
        found: list[Tap] = []
        for index in product(*map(range, window.kernel)):
            outputs: list[slice] = []
            pixels: list[slice] = []
            for axis, place in enumerate(index):
                stride, size = window.strides[axis], spatial[axis]
                first = place * window.dilations[axis] - window.pads_begin[axis]
                low = max(0, -(first // stride))
                high = max(low, min(window.output[axis], -((first - size) // stride)))
                outputs.append(slice(low, high))
                pixels.append(slice(first + low * stride, first + (high - 1) * stride + 1, stride))
            if all(part.stop > part.start for part in outputs):
                found.append(cls(index, tuple(outputs), tuple(pixels)))
        return sorted(found, key=lambda tap: -prod(lengths(tap.outputs)))


class Shifted(ConvAlgorithm):
    """A convolution as a sum of products, one per tap, cut into blocks of filters.

    Args:
        chain: a convolution for which `applies` holds, and its fused nodes.
    """

    def __init__(self, chain: Chain) -> None:
        super().__init__(chain)
        self.images, self.channels, *spatial = self.x.tensor.dims
        self.filters = self.w.tensor.dims[0]
        self.taps = Tap.met(self.window, tuple(spatial))
        wanted = -(-blocks_worth(self.nanoseconds, self.workers) // max(1, self.images))
        count = max(1, min(wanted, self.filters // FEWEST))
        bounds = [self.filters * i // count for i in range(count + 1)]
        self.parts = [slice(start, stop) for start, stop in pairwise(bounds)]
        most = max((prod(lengths(tap.outputs)) for tap in self.taps), default=0)
        widest = max(part.stop - part.start for part in self.parts)
        scratch = ScratchLayout()
        self.columns = scratch.take(self.channels * most, self.dtype)
        self.products = scratch.take(widest * most, self.dtype)
        self.nbytes = scratch.nbytes

    @classmethod
    def applies(cls, chain: Chain) -> bool:
        """Whether the head is a convolution by constant filters, in one group, with outputs."""
        dtype = chain.operands[0].tensor.dtype
        return cls.is_plain(chain) and sums(dtype) == dtype and chain.output.tensor.size > 0

    @property
    def nanoseconds(self) -> float:
        """Estimated time on one core."""
        met = sum(prod(lengths(tap.outputs)) for tap in self.taps)
        column = self.channels * ELEMENT + self.filters * (self.channels * PRODUCT + ELEMENT)
        fetched = len(self.taps) * self.filters * self.channels * FETCH
        stages = (1 + self.chain.calls) * ELEMENT * self.filters * prod(self.window.output)
        return self.images * (met * column + fetched + stages)

    @property
    def kernel(self) -> str:
        """The taps and sizes of the products."""
        sizes = "x".join(map(str, (self.filters, self.channels, *self.window.output)))
        return f"{len(self.taps)} of {prod(self.window.kernel)} taps, each a product {sizes}"

    def _record(self, bound: Bound) -> list[Tape]:
        x, result = bound[self.x], bound[self.chain.output]
        weights = bound.packed((self.w,), ("taps", tuple(self._places())), self._by_tap)
        bias = None if self.bias is None else bound[self.bias]
        frame = self.chain.frame((0, 1, 2))
        finish = self.chain.finish(frame, bound)
        whole = tuple(slice(0, size) for size in self.window.output)
        tapes: list[Tape] = []
        for image, part in product(range(self.images), self.parts):
            tape: Tape = []
            total = result[image, part]
            if not self.taps or self.taps[0].outputs != whole:
                tape.append(partial(total.fill, 0))
            for tap, matrix in zip(self.taps, weights.swapaxes(1, 2), strict=True):
                pixels = x[(image, slice(None), *tap.pixels)]
                target = total[(slice(None), *tap.outputs)]
                is_first = tap is self.taps[0] and tap.outputs == whole
                columns = self._columns(tape, bound, pixels)
                shape = len(target), columns.shape[1]
                found = total.reshape(shape) if is_first else bound.scratch(self.products, shape)
                tape.append(recorded(matrix[part], columns, found))
                if not is_first:
                    tape.append(partial(np.add, target, found.reshape(target.shape), target))
            if bias is not None:
                addend = bias[part].reshape(-1, *[1] * len(whole))
                tape.append(partial(np.add, total, addend, total))
            finish(tape, frame.block((slice(image, image + 1), part, *whole)))
            tapes.append(tape)
        return tapes

    def _columns(self, tape: Tape, bound: Bound, pixels: Array) -> Array:
        """Return pixels as a matrix [channels, windows], copied unless it is one."""
        shape = len(pixels), prod(pixels.shape[1:])
        if pixels.flags.c_contiguous:
            return pixels.reshape(shape)
        columns = bound.scratch(self.columns, pixels.shape)
        tape.append(partial(np.copyto, columns, pixels))
        return columns.reshape(shape)

    def _places(self) -> Iterator[int]:
        for tap in self.taps:
            yield int(np.ravel_multi_index(tap.index, self.window.kernel))

    def _by_tap(self, w: Array) -> Array:
        """Return the weights of the taps as matrices [taps, channels, filters]."""
        flat = w.reshape(*w.shape[:2], -1)[..., [*self._places()]]
        return np.ascontiguousarray(flat.transpose(2, 1, 0))
