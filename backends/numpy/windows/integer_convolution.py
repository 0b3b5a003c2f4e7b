"""Convolutions of bytes with constant weights, as products of floats that are exact."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from math import prod
from operator import methodcaller
from typing import cast

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32, float64
from ....runtime.ir.graph import Node, Value
from ....runtime.ir.types import Array
from ....runtime.ops.quantize import ConvInteger, QLinearConv
from ....runtime.ops.window import window
from ....runtime.plan.backend import BuildContext
from ..engine import thread_pool
from ..engine.blocking import Block, blocks, lengths
from ..engine.chain import Chain
from ..engine.cost import ELEMENT, PRODUCT
from ..engine.step import Bound, HostStep, ScratchLayout, Tape, portions
from ..numerics.calls import summing
from ..numerics.convert import saturating
from ..numerics.exact_sums import ExactSums, farthest
from .columns import margins, region, windows

#: Bytes of columns and sums per block, sized for the cache.
COLUMNS = 1 << 19
#: What shows the windows' part of an array of sums.
View = Callable[[Array], Array]
#: Filters of one channel up to which products are added tap by tap.
FEW_FILTERS = 2


@record
class IntegerConvOperands:
    """The operands of a QLinearConv or ConvInteger.

    Attributes:
        x: the image.
        w: the weights.
        x_zero, w_zero: their zero points.
        bias: added to the sums.
        scales: those of image, weights and result.
        y_zero: the zero point of the result.
    """

    x: Value
    w: Value
    x_zero: Value | None
    w_zero: Value | None
    bias: Value | None = None
    scales: tuple[Value, ...] = ()
    y_zero: Value | None = None

    @classmethod
    def of(cls, node: Node) -> IntegerConvOperands:
        """Return those of a node."""
        given = [*node.inputs, None, None, None]
        if isinstance(node.op, ConvInteger):
            x, w, x_zero, w_zero = given[:4]
            return cls(cast(Value, x), cast(Value, w), x_zero, w_zero)
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = given[:9]
        scales = tuple(cast(Value, scale) for scale in (x_scale, w_scale, y_scale))
        return cls(cast(Value, x), cast(Value, w), x_zero, w_zero, bias, scales, y_zero)

    def exact(self) -> ExactSums | None:
        """Return how no sum is rounded or wraps; None if that is unknown.

        All operands but the image and its zero point must be constant.
        """
        fixed = (self.w, self.w_zero, self.bias, *self.scales, self.y_zero)
        if any(value is not None and value.data is None for value in fixed):
            return None
        assert self.w.data is not None
        weights = centred(self.w.data, None if self.w_zero is None else self.w_zero.data)
        products = np.abs(weights).reshape(len(weights), -1).T * farthest(self.x, self.x_zero)
        bias = None if self.bias is None else self.bias.data
        return ExactSums.of(products, None if bias is None else np.abs(bias.astype(float64)))


def centred(w: Array, zero_point: Array | None) -> Array:
    """Return weights minus their zero point, one or one per filter, as float32."""
    if zero_point is None:
        return w.astype(float32)
    return w.astype(float32) - zero_point.astype(float32).reshape(-1, *[1] * (w.ndim - 1))


class IntegerConvolution:
    """A QLinearConv or ConvInteger, cut into blocks of outputs.

    Args:
        chain: the convolution.
        operands: its operands.
        exact: how sums are exact; see `IntegerConvOperands.exact`.

    Attributes:
        by_tap: whether products are added for each column of the kernel, as few are of one pixel.
        cuts: the groups of a block.
        boxes: the outputs of a block.
    """

    def __init__(self, chain: Chain, operands: IntegerConvOperands, exact: ExactSums) -> None:
        self.chain, self.operands, self.exact = chain, operands, exact
        self.group = cast(QLinearConv | ConvInteger, chain.head.op).group
        x, w = operands.x.tensor, operands.w.tensor
        self.images, self.channels, *_ = x.dims
        self.filters, self.terms = w.dims[0] // self.group, prod(w.dims[1:])
        self.window = window(chain.head.op, x.dims[2:], w.dims[2:])
        has_channel = w.dims[1] == 1 and self.filters <= FEW_FILTERS and len(w.dims) <= 5
        self.by_tap = has_channel and {*self.window.strides} == {1} and exact.dtype == float32
        rows = 1 if self.by_tap else self.terms
        position = (rows + 2 * self.filters) * float32.itemsize
        whole = max(1, position * prod(self.window.output))
        together = max(1, min(COLUMNS // whole, -(-self.group // thread_pool.size())))
        starts = range(0, self.group, together)
        self.cuts = [slice(n, min(n + together, self.group)) for n in starts]
        self.boxes = list(blocks(self.window.output, max(1, COLUMNS // (position * together))))
        regions = [region(self.window, x.dims[2:], box) for box in self.boxes]
        scratch, most = ScratchLayout(), max(prod(lengths(box)) for box in self.boxes)
        seen = max(prod(each.shape) for each in regions)
        columns = 0 if self.by_tap else together * self.terms * most
        sums = together * self.filters * (seen if self.by_tap else most)
        self.image = scratch.take(together * self.channels // self.group * seen, float32)
        self.matrix = scratch.take(columns, float32)
        self.part = scratch.take(sums, float32)
        self.spare = scratch.take(together * seen if self.by_tap else 0, float32)
        self.sums = scratch.take(0 if exact.dtype == float32 else sums, float64)
        self.nbytes = scratch.nbytes

    def step(self, site: BuildContext) -> HostStep:
        """Return the step."""
        positions = prod(self.window.output)
        name = f"{self.chain.title}: {self.filters}x{self.terms}x{positions}{self.exact}"
        return HostStep(name, site, self._record, thread_pool.size(), self.nbytes)

    def _record(self, bound: Bound) -> list[Tape]:
        x, result = bound[self.operands.x], bound[self.chain.output]
        result = result.reshape(self.images, self.group, self.filters, *self.window.output)
        tapes: list[Tape] = []
        channels = self.channels // self.group
        for image, target in zip(x, result, strict=True):
            for box, cut in product(self.boxes, self.cuts):
                some = slice(cut.start * channels, cut.stop * channels)
                tape: Tape = []
                pixels, counts = self._pixels(tape, bound, image[some], box), lengths(box)
                weights = self._weights(bound)[cut]
                if self.by_tap:
                    sums, shown = self._added(tape, bound, pixels, weights, counts)
                else:
                    columns = self._columns(tape, bound, pixels, counts)
                    sums = self._multiplied(tape, bound, weights, columns)
                    shown = methodcaller("reshape", (*sums.shape[:2], *counts))
                self._leave(tape, bound, sums, shown, target[(cut, slice(None), *box)], cut)
                tapes.append(tape)
        work = self.terms * (PRODUCT * self.filters + ELEMENT) + 6 * ELEMENT * self.filters
        columns = self.images * self.group * prod(self.window.output)
        return portions(tapes, work * columns, thread_pool.size())

    def _pixels(self, tape: Tape, bound: Bound, image: Array, box: Block) -> Array:
        """Record the calls that centre the pixels of a box's windows, with zeros around them."""
        covered = region(self.window, image.shape[1:], box)
        pixels = bound.scratch(self.image, (len(image), *covered.shape))
        inside = pixels[(slice(None), *covered.at)]
        if inside.size:
            tape.append(partial(np.copyto, inside, image[(slice(None), *covered.inside)]))
            if (zero := self.operands.x_zero) is not None:
                shift = bound.as_dtype(zero, float32).reshape(())
                if shift.dtype != float32:
                    given, shift = shift, np.empty((), float32)
                    tape.append(partial(np.copyto, shift, given))
                # Gaps, which are filled next, too: a call for each short row would take longer.
                tape.append(partial(np.subtract, pixels, shift, out=pixels))
        tape.extend(partial(gap.fill, 0) for gap in margins(pixels, covered.at))
        return pixels

    def _added(
        self, tape: Tape, bound: Bound, pixels: Array, weights: Array, counts: tuple[int, ...]
    ) -> tuple[Array, View]:
        """Record the calls that add the products of each tap.

        Pixels of a tap are one range from the first to the last window, so that a call, of a column
        of the kernel, has long rows: sums of windows that leave the image at the end of a row are
        not shown.

        Returns:
            The sums [groups, filters, range], and what shows those of the windows.
        """
        groups, size = len(pixels), pixels.itemsize
        steps = [step // size for step in pixels.strides[1:]]
        length = 1 + sum((n - 1) * step for n, step in zip(counts, steps, strict=True))
        *taps, last = (step * n for step, n in zip(steps, self.window.dilations, strict=True))
        *rows, wide = self.window.kernel
        flat = pixels.reshape(groups, -1)
        factors = weights.reshape(groups, self.filters, *rows, wide)
        sums = bound.scratch(self.part, (groups, self.filters, length))
        spare = bound.scratch(self.spare, (groups, length))
        strides = (pixels.strides[0], *(size * tap for tap in taps), size)
        axes = "xy"[: len(rows)]
        for filter, column in product(range(self.filters), range(wide)):
            seen = as_strided(flat[:, column * last :], (groups, *rows, length), strides)
            factor = factors[:, filter, ..., column]
            out = spare if column else sums[:, filter]
            tape.append(summing(f"c{axes}p,c{axes}->cp", seen, factor, out=out))
            if column:
                tape.append(partial(np.add, sums[:, filter], spare, out=sums[:, filter]))

        def shown(array: Array) -> Array:
            moves = [array.itemsize * step for step in steps]
            strides = (*array.strides[:2], *moves)
            return as_strided(array, (groups, self.filters, *counts), strides)

        return sums, shown

    def _multiplied(self, tape: Tape, bound: Bound, weights: Array, columns: Array) -> Array:
        """Record the calls that multiply columns by weights, part by part."""
        shape = (*weights.shape[:2], columns.shape[2])
        found = bound.scratch(self.part, shape)
        if self.exact.dtype == float32:
            tape.append(partial(np.matmul, weights, columns, out=found))
            return found
        sums = bound.scratch(self.sums, shape)
        for i, part in enumerate(self.exact.parts):
            tape.append(partial(np.matmul, weights[..., part], columns[:, part], out=found))
            tape.append(
                partial(np.add, sums, found, out=sums) if i else partial(np.copyto, sums, found)
            )
        return sums

    def _columns(self, tape: Tape, bound: Bound, pixels: Array, counts: tuple[int, ...]) -> Array:
        """Record the calls that fill a matrix [groups, terms, positions] of windows."""
        groups = len(pixels) * self.group // self.channels
        shape = (groups, self.terms, prod(counts))
        if {*self.window.kernel, *self.window.strides} == {1}:
            return pixels.reshape(shape)
        matrix = bound.scratch(self.matrix, shape)
        target = matrix.reshape(len(pixels), *self.window.kernel, *counts)
        tape.append(partial(np.copyto, target, windows(pixels, self.window, counts)))
        return matrix

    def _weights(self, bound: Bound) -> Array:
        """Return centred weights [groups, filters, terms]."""
        w, zero_point = self.operands.w, self.operands.w_zero
        shape = (self.group, self.filters, self.terms)

        def pack(w: Array, zero_point: Array | None = None) -> Array:
            return centred(w, zero_point).reshape(shape)

        sources = (w,) if zero_point is None else (w, zero_point)
        return bound.packed(sources, ("centred", self.group), pack)

    def _leave(
        self, tape: Tape, bound: Bound, sums: Array, shown: View, target: Array, cut: slice
    ) -> None:
        """Record the calls that write sums, rescaled and saturated unless they are the result."""
        if not self.operands.scales:
            tape.append(partial(np.copyto, target, shown(sums), casting="unsafe"))
            return
        by_filter = (self.group, self.filters, 1)
        if (bias := bound.get(self.operands.bias)) is not None:
            addend = bias.astype(sums.dtype).reshape(by_filter)[cut]
            tape.append(partial(np.add, sums, addend, out=sums))
        ratio = sums
        if sums.dtype != float32:
            ratio = bound.scratch(self.part, sums.shape)
            tape.append(partial(np.copyto, ratio, sums, casting="same_kind"))
        of_x, of_w, of_y = (bound[scale].reshape(-1) for scale in self.operands.scales)
        factor = of_x * of_w / of_y
        factor = factor.reshape(by_filter)[cut] if factor.size > 1 else factor.reshape(())
        tape.append(partial(np.multiply, ratio, factor, out=ratio))
        tape.append(partial(np.rint, ratio, out=ratio))
        zero_point = bound.get(self.operands.y_zero)
        if zero_point is not None and zero_point.any():
            shift = zero_point.astype(float32).reshape(())
            tape.append(partial(np.add, ratio, shift, out=ratio))
        tape.extend(saturating(ratio, target, shown(ratio)))
