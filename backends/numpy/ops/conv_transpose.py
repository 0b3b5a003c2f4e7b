"""Transposed convolutions: a matrix product, whose columns are added at their windows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from math import prod
from typing import cast

import numpy as np

from ....runtime.ir.dtypes import FLOATS
from ....runtime.ir.types import Array
from ....runtime.ops.conv import ConvTranspose
from ....runtime.ops.window import transposed_window
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine import thread_pool
from ..engine.chain import Chain
from ..engine.cost import ELEMENT, PRODUCT
from ..engine.registry import builder
from ..engine.step import Bound, HostStep, ScratchLayout, Tape, portions
from ..numerics.products import stacked, sums
from ..windows.window_axis import transposed_axes
from .conv import COLUMNS


@builder(ConvTranspose, fuses=True, dtypes=FLOATS)
def conv_transpose(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Run a transposed convolution over any number of axes with its fused nodes."""
    return _Transposed(chain, options.workspace).step(site)


class _Transposed:
    """The geometry of one transposed convolution, cut into blocks of groups or of filters."""

    def __init__(self, chain: Chain, workspace: int | None) -> None:
        self.chain = chain
        self.x, self.w, self.bias = chain.operands
        x, w = self.x.tensor, self.w.tensor
        op = cast(ConvTranspose, chain.head.op)
        self.group, self.filters = op.group, w.dims[1]
        self.window = transposed_window(op, x.dims[2:], w.dims[2:])
        self.axes = transposed_axes(self.window, x.dims[2:])
        self.dtype, self.workers = sums(x.dtype), thread_pool.size()
        self.positions, self.taps = prod(x.dims[2:]), prod(self.window.kernel)
        column = self.positions * self.taps * self.dtype.itemsize
        limit = min(COLUMNS, (workspace or COLUMNS) // self.workers)
        self.step_by = max(1, min(self.filters, limit // max(1, column)))
        whole = max(1, column * self.filters)
        self.together = max(1, min(self.group, limit // whole))
        self.scratch = ScratchLayout()
        rows = self.together * self.step_by * self.taps
        self.columns = self.scratch.take(rows * self.positions, self.dtype)
        self.sums = None
        if x.dtype != self.dtype:
            size = self.together * self.step_by * prod(self.window.output)
            self.sums = self.scratch.take(size, self.dtype)

    def step(self, site: BuildContext) -> HostStep:
        """Return the step."""
        channels = self.x.tensor.dims[1] // self.group
        size = f"{self.filters * self.taps}x{channels}x{self.positions}"
        name = f"{self.chain.title}: product {size} and {self.taps} sums"
        return HostStep(name, site, self._record, self.workers, self.scratch.nbytes)

    def _blocks(self) -> Iterator[tuple[int, slice, slice]]:
        """Yield image, groups and filters of every block: all filters if there are more groups."""
        images, groups = range(self.x.tensor.dims[0]), range(0, self.group, self.together)
        for image, group, first in product(images, groups, range(0, self.filters, self.step_by)):
            some = slice(group, min(group + self.together, self.group))
            yield image, some, slice(first, min(first + self.step_by, self.filters))

    def _nanoseconds(self) -> float:
        """Return the estimated time on one core."""
        channels, *_ = self.w.tensor.dims
        column = self.filters * self.taps * (channels * PRODUCT / self.group + 2 * ELEMENT)
        outputs = self.filters * prod(self.window.output) * (1 + self.chain.calls) * ELEMENT
        return self.x.tensor.dims[0] * self.group * (self.positions * column + outputs)

    def _record(self, bound: Bound) -> list[Tape]:
        x, out = bound[self.x], bound[self.chain.output]
        channels = self.x.tensor.dims[1] // self.group
        grouped = x.reshape(len(x), self.group, channels, self.positions)
        weights = bound.as_dtype(self.w, self.dtype).reshape(
            self.group, channels, self.filters, self.taps
        )
        bias = bound.get(self.bias)
        frame = self.chain.frame((0, 1, 2))
        finish = self.chain.finish(frame, bound)
        tapes: list[Tape] = []
        for image, groups, part in self._blocks():
            tape: Tape = []
            outputs = slice(
                groups.start * self.filters + part.start,
                (groups.stop - 1) * self.filters + part.stop,
            )
            target = out[image, outputs]
            sums = target if self.sums is None else bound.scratch(self.sums, target.shape)
            tape.append(_start(sums, None if bias is None else bias[outputs]))
            self._scatter(tape, bound, weights[groups, :, part], grouped[image, groups], sums)
            if sums is not target:
                tape.append(partial(np.copyto, target, sums))
            whole = (slice(0, size) for size in self.window.output)
            finish(tape, frame.block((slice(image, image + 1), outputs, *whole)))
            tapes.append(tape)
        return portions(tapes, self._nanoseconds(), self.workers)

    def _scatter(self, tape: Tape, bound: Bound, weights: Array, data: Array, sums: Array) -> None:
        """Multiply weights by data, and add every tap at its position.

        Args:
            tape: the calls.
            bound: the step's arrays.
            weights: [groups, channels, filters, taps].
            data: [groups, channels, positions].
            sums: [groups * filters, *outputs].
        """
        groups, channels, filters, taps = weights.shape
        columns = bound.scratch(self.columns, (groups, filters * taps, self.positions))
        matrices = weights.reshape(groups, channels, filters * taps).swapaxes(1, 2)
        tape.append(stacked(matrices, data, columns))
        spatial = self.x.tensor.dims[2:]
        windows = columns.reshape(groups * filters, *self.window.kernel, *spatial)
        for tap in product(*map(range, self.window.kernel)):
            pairs = [axis.tap(k) for axis, k in zip(self.axes, tap, strict=True)]
            place = sums[(slice(None), *(at for _, at in pairs))]
            part = windows[(slice(None), *tap)][(slice(None), *(which for which, _ in pairs))]
            if part.size:
                tape.append(partial(np.add, place, part, out=place))


def _start(sums: Array, bias: Array | None) -> partial[object]:
    """Return a function that initialises every sum."""
    if bias is None:
        return partial(sums.fill, 0)
    return partial(np.copyto, sums, bias.reshape(-1, *[1] * (sums.ndim - 1)))
