"""Convolutions of bytes with constant weights, as products of floats that are exact."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import cast

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, float32, float64
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
from .columns import margins, region, windows

#: Bytes of columns and sums per block, sized for the cache.
COLUMNS = 1 << 19
#: The largest magnitude of a difference of bytes.
BYTE = 255


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

    def exact(self) -> DType | None:
        """Return a dtype in which no sum is rounded or wraps; None if there is none, or unknown.

        All operands but the image and its zero point must be constant.
        """
        fixed = (self.w, self.w_zero, self.bias, *self.scales, self.y_zero)
        if any(value is not None and value.data is None for value in fixed):
            return None
        assert self.w.data is not None
        weights = centred(self.w.data, None if self.w_zero is None else self.w_zero.data)
        most = np.abs(weights).reshape(len(weights), -1).sum(1, dtype=float64) * BYTE
        if self.bias is not None and self.bias.data is not None:
            most = most + np.abs(self.bias.data.astype(float64))
        greatest = most.max(initial=0)
        return float32 if greatest <= 1 << 24 else float64 if greatest < 1 << 31 else None


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
        dtype: of the sums, see `IntegerConvOperands.exact`.
    """

    def __init__(self, chain: Chain, operands: IntegerConvOperands, dtype: DType) -> None:
        self.chain, self.operands, self.dtype = chain, operands, dtype
        self.group = cast(QLinearConv | ConvInteger, chain.head.op).group
        x, w = operands.x.tensor, operands.w.tensor
        self.images, self.channels, *_ = x.dims
        self.filters, self.terms = w.dims[0] // self.group, prod(w.dims[1:])
        self.window = window(chain.head.op, x.dims[2:], w.dims[2:])
        column = self.group * (self.terms + 2 * self.filters) * dtype.itemsize
        self.boxes = list(blocks(self.window.output, max(1, COLUMNS // column)))
        regions = [region(self.window, x.dims[2:], box) for box in self.boxes]
        scratch, most = ScratchLayout(), max(prod(lengths(box)) for box in self.boxes)
        self.image = scratch.take(self.channels * max(prod(r.shape) for r in regions), dtype)
        self.matrix = scratch.take(self.group * self.terms * most, dtype)
        self.sums = scratch.take(w.dims[0] * most, dtype)
        self.ratio = scratch.take(w.dims[0] * most, float32)
        self.nbytes = scratch.nbytes

    def step(self, site: BuildContext) -> HostStep:
        """Return the step."""
        positions = prod(self.window.output)
        name = f"{self.chain.title}: {self.filters}x{self.terms}x{positions} in {self.dtype.name}"
        return HostStep(name, site, self._record, thread_pool.size(), self.nbytes)

    def _record(self, bound: Bound) -> list[Tape]:
        x, result = bound[self.operands.x], bound[self.chain.output]
        result = result.reshape(self.images, self.group, self.filters, *self.window.output)
        tapes: list[Tape] = []
        for image, target in zip(x, result, strict=True):
            for box in self.boxes:
                tape: Tape = []
                columns = self._columns(tape, bound, image, box)
                sums = bound.scratch(self.sums, (self.group, self.filters, columns.shape[2]))
                tape.append(partial(np.matmul, self._weights(bound), columns, out=sums))
                part = target[:, :, *box]
                self._leave(tape, bound, sums, part)
                tapes.append(tape)
        work = self.terms * (PRODUCT * self.filters + ELEMENT) + 6 * ELEMENT * self.filters
        columns = self.images * self.group * prod(self.window.output)
        return portions(tapes, work * columns, thread_pool.size())

    def _columns(self, tape: Tape, bound: Bound, image: Array, box: Block) -> Array:
        """Record the calls that fill a matrix [groups, terms, positions] of centred pixels."""
        covered, counts = region(self.window, image.shape[1:], box), lengths(box)
        pixels = bound.scratch(self.image, (len(image), *covered.shape))
        inside = pixels[(slice(None), *covered.at)]
        if inside.size:
            tape.append(partial(np.copyto, inside, image[(slice(None), *covered.inside)]))
            zero_point = bound.get(self.operands.x_zero)
            if zero_point is not None:
                shift = zero_point.reshape(())
                tape.append(partial(np.subtract, inside, shift, out=inside))
        tape.extend(partial(gap.fill, 0) for gap in margins(pixels, covered.at))
        shape = (self.group, self.terms, prod(counts))
        if {*self.window.kernel, *self.window.strides} == {1}:
            return pixels.reshape(shape)
        matrix = bound.scratch(self.matrix, shape)
        target = matrix.reshape(len(image), *self.window.kernel, *counts)
        tape.append(partial(np.copyto, target, windows(pixels, self.window, counts)))
        return matrix

    def _weights(self, bound: Bound) -> Array:
        """Return centred weights [groups, filters, terms]."""
        w, zero_point = self.operands.w, self.operands.w_zero
        shape = (self.group, self.filters, self.terms)

        def pack(w: Array, zero_point: Array | None = None) -> Array:
            return centred(w, zero_point).astype(self.dtype).reshape(shape)

        sources = (w,) if zero_point is None else (w, zero_point)
        return bound.packed(sources, ("centred", self.group, self.dtype), pack)

    def _leave(self, tape: Tape, bound: Bound, sums: Array, target: Array) -> None:
        """Record the calls that write sums, rescaled and saturated unless they are the result."""
        found = sums.reshape(target.shape)
        if not self.operands.scales:
            tape.append(partial(np.copyto, target, found, casting="unsafe"))
            return
        by_filter = (self.group, self.filters, *[1] * len(self.window.output))
        if (bias := bound.get(self.operands.bias)) is not None:
            addend = bias.astype(self.dtype).reshape(by_filter)
            tape.append(partial(np.add, found, addend, out=found))
        ratio = found
        if self.dtype != float32:
            ratio = bound.scratch(self.ratio, target.shape)
            tape.append(partial(np.copyto, ratio, found, casting="same_kind"))
        of_x, of_w, of_y = (bound[scale].reshape(-1) for scale in self.operands.scales)
        factor = of_x * of_w / of_y
        factor = factor.reshape(by_filter if factor.size > 1 else ())
        tape.append(partial(np.multiply, ratio, factor, out=ratio))
        tape.append(partial(np.rint, ratio, out=ratio))
        zero_point = bound.get(self.operands.y_zero)
        if zero_point is not None and zero_point.any():
            shift = zero_point.astype(float32).reshape(())
            tape.append(partial(np.add, ratio, shift, out=ratio))
        limits = np.iinfo(target.dtype)
        tape.append(partial(np.fmax, ratio, np.float32(limits.min), out=ratio))
        tape.append(partial(np.fmin, ratio, np.float32(limits.max), out=ratio))
        tape.append(partial(np.copyto, target, ratio, casting="unsafe"))
