"""Products of quantized matrices, as products of floats that are exact.

A QLinearConv of images of one pixel is such a product: images are rows.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise, product
from math import prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32, float64, int8, uint8
from ....runtime.ir.graph import Node, Value
from ....runtime.ir.types import Array
from ....runtime.ops.quantize import ConvInteger, QLinearConv, QLinearMatMul
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine import thread_pool
from ..engine.apply import left_to_kernel
from ..engine.chain import Chain
from ..engine.cost import ELEMENT, PRODUCT
from ..engine.registry import builder
from ..engine.step import Bound, HostStep, ScratchLayout, Tape, portions
from ..numerics.convert import saturating
from ..numerics.exact_sums import ExactSums, farthest
from ..windows.integer_convolution import IntegerConvolution, IntegerConvOperands

#: Maximum rows and elements of the right matrix of a block.
ROWS, ELEMENTS = 256, 1 << 18
#: Granularity of columns.
GROUP = 16
#: Calls for each of the sums.
CALLS = 6


@record
class QuantizedOperands:
    """The operands of a product of bytes with one scale for each of `a` and the result.

    Attributes:
        a: the left matrices, or images of one pixel.
        b: the right ones, or constant filters, a row for each column of the result.
        a_zero, b_zero, y_zero: zero points; that of `b` may be one for each column.
        factor: what sums are multiplied with, one or one for each column.
        bias: added to sums, one for each column; or None.
        exact: how sums are exact.
    """

    a: Value
    b: Value
    a_zero: Array
    b_zero: Array
    y_zero: Array
    factor: Array
    bias: Array | None
    exact: ExactSums

    @classmethod
    def of(cls, node: Node) -> QuantizedOperands | None:
        """Return those of a node; None for others."""
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero, *more = node.operands
        numbers = [v.data for v in (a_scale, a_zero, b_scale, b_zero, y_scale, y_zero, *more)]
        if min(len(a.tensor.dims), len(b.tensor.dims)) < 2 or not a.tensor.size:
            return None
        if any(data is None or data.ndim > 1 for data in numbers):
            return None
        of_a, zero_a, of_b, zero_b, of_y, zero_y, *added = (np.asarray(data) for data in numbers)
        if any(data.size != 1 for data in (of_a, zero_a, of_y, zero_y)) or not b.tensor.size:
            return None
        if not {zero_a.dtype, zero_b.dtype, zero_y.dtype} <= {int8, uint8}:
            return None
        if {of_a.dtype, of_b.dtype, of_y.dtype} != {np.dtype(float32)}:
            return None
        zero_b = zero_b.reshape(-1).astype(float32)
        bias = added[0].astype(float64) if added else None
        products = _greatest(node, a, a_zero, b, b_zero, zero_b)
        exact = ExactSums.of(products, None if bias is None else np.abs(bias))
        if exact is None:
            return None
        factor = of_a.reshape(()) * of_b.reshape(-1) / of_y.reshape(())
        less, shift = (data.reshape(-1).astype(float32) for data in (zero_a, zero_y))
        return cls(a, b, less, zero_b, shift, factor, bias, exact)


def _greatest(node: Node, a: Value, a_zero: Value, b: Value, b_zero: Value, less: Array) -> Array:
    """Return the greatest magnitudes of products, [terms, columns]."""
    most = farthest(a, a_zero)
    if b.data is None:
        return np.full((b.tensor.dims[-2], 1), most * farthest(b, b_zero), float64)
    found = np.abs(_right(node, b.data) - less) * most
    return found.max(tuple(range(found.ndim - 2)), initial=0)


def _right(node: Node, b: Array) -> Array:
    """Return constant right matrices as floats; filters as the columns of one."""
    if isinstance(node.op, QLinearConv):
        b = b.reshape(len(b), -1).T
    return b.astype(float32, order="C")


@builder(QLinearConv, ConvInteger)
def convolve_in_blocks(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Convolve with constant weights, converted to floats once."""
    op, x = chain.head.op, chain.head.inputs[0]
    operands = IntegerConvOperands.of(chain.head)
    exact = operands.exact() if x is not None and x.tensor.size else None
    is_single = operands.x_zero is None or operands.x_zero.tensor.size == 1
    if exact is None or not is_single or any(s.tensor.dtype != float32 for s in operands.scales):
        return left_to_kernel(chain, site)
    if isinstance(op, QLinearConv) and _is_of_pixels(op, operands):
        found = product_of(chain, site)
        if found is not None:
            return found
    return IntegerConvolution(chain, operands, exact).step(site)


def _is_of_pixels(op: QLinearConv, operands: IntegerConvOperands) -> bool:
    """Whether images and filters of a QLinearConv have one pixel."""
    sizes = (*operands.x.tensor.dims[2:], *operands.w.tensor.dims[2:])
    return op.group == 1 and {*sizes} == {1} and not any(op.pads or ())


@builder(QLinearMatMul)
def qlinear_matmul_in_blocks(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Multiply quantized matrices block by block."""
    return product_of(chain, site) or left_to_kernel(chain, site)


def product_of(chain: Chain, site: BuildContext) -> HostStep | None:
    """Return the step of a product of bytes, None if some operands are no constants or vectors.

    Args:
        chain: a QLinearMatMul, or a QLinearConv of images of one pixel by constant filters.
        site: of the step.
    """
    operands = QuantizedOperands.of(chain.head)
    return None if operands is None else _QuantizedProduct(chain, operands).step(site)


class _QuantizedProduct:
    """Products of stacks of matrices [rows, terms] and [terms, columns], cut into blocks."""

    def __init__(self, chain: Chain, operands: QuantizedOperands) -> None:
        self._chain, self._operands = chain, operands
        a, b = operands.a.tensor.dims, operands.b.tensor.dims
        if isinstance(chain.head.op, QLinearConv):
            a, b = a[:2], b[1::-1]
        self._is_one = prod(b[:-2]) == 1
        self._stack = () if self._is_one else chain.output.tensor.dims[:-2]
        self._terms, self._columns = b[-2:]
        self._rows = prod(a[:-1]) if self._is_one else a[-2]
        has_packed, few = operands.b.data is not None, min(ROWS, self._rows)
        size = ELEMENTS // max(1, few if has_packed else self._terms)
        share = -(-self._columns // thread_pool.size()) if has_packed else self._columns
        self._wide = min(max(GROUP, min(size, share) // GROUP * GROUP), self._columns)
        self._scratch = ScratchLayout()
        self._left = self._scratch.take(few * self._terms, float32)
        self._right = self._scratch.take(0 if has_packed else self._terms * self._wide, float32)
        self._found = self._scratch.take(few * self._wide, float32)
        is_split = operands.exact.dtype != float32
        self._sums = self._scratch.take(few * self._wide if is_split else 0, float64)
        count = prod(self._stack) * self._rows
        self._nanoseconds = count * self._columns * (self._terms * PRODUCT + CALLS * ELEMENT)

    def step(self, site: BuildContext) -> HostStep:
        """Return the step."""
        name = f"{self._chain.title}: {self._rows}x{self._terms}x{self._columns}"
        name += str(self._operands.exact)
        return HostStep(name, site, self._record, thread_pool.size(), self._scratch.nbytes)

    def _record(self, bound: Bound) -> list[Tape]:
        a, out = bound[self._operands.a], bound[self._chain.output]
        b = self._packed(bound)
        if self._is_one:
            a, out = a.reshape(self._rows, -1), out.reshape(self._rows, -1)
            b = b.reshape(self._terms, -1)
        else:
            a = np.broadcast_to(a, (*self._stack, *a.shape[-2:]))
            b = np.broadcast_to(b, (*self._stack, *b.shape[-2:]))
        columns = pairwise([*range(0, self._columns, self._wide), self._columns])
        tapes: list[Tape] = []
        for at, (first, last) in product(np.ndindex(*self._stack), [*columns]):
            some = slice(first, last)
            tape: Tape = []
            right = self._right_of(tape, bound, b[at][:, some], some)
            for top, bottom in pairwise([*range(0, self._rows, ROWS), self._rows]):
                rows = slice(top, bottom)
                self._multiply(tape, bound, a[at][rows], right, some, out[at][rows, some])
            tapes.append(tape)
        return portions(tapes, self._nanoseconds, thread_pool.size())

    def _packed(self, bound: Bound) -> Array:
        """Return the right matrices: constant ones as floats less their zero points."""
        b, zero = self._operands.b, self._operands.b_zero
        if b.data is None:
            return bound[b]
        node = self._chain.head
        layout = ("less", node.kind, zero.tobytes())
        return bound.packed((b,), layout, lambda data: _right(node, data) - zero)

    def _right_of(self, tape: Tape, bound: Bound, b: Array, some: slice) -> Array:
        """Record the calls that convert some columns; constant ones are."""
        if self._operands.b.data is not None:
            return b
        right = bound.scratch(self._right, b.shape)
        tape.append(partial(np.copyto, right, b))
        zero = self._operands.b_zero
        if zero.any():
            part = zero[some] if zero.size > 1 else zero
            tape.append(partial(np.subtract, right, part, out=right))
        return right

    def _multiply(
        self, tape: Tape, bound: Bound, a: Array, right: Array, some: slice, target: Array
    ) -> None:
        """Record the calls of one block of rows and columns."""
        operands = self._operands
        left = bound.scratch(self._left, a.shape)
        tape.append(partial(np.copyto, left, a))
        if operands.a_zero.any():
            tape.append(partial(np.subtract, left, operands.a_zero, out=left))
        found = bound.scratch(self._found, target.shape)
        if operands.exact.dtype == float32:
            tape.append(partial(np.matmul, left, right, out=found))
            if operands.bias is not None:
                addend = operands.bias[some].astype(float32)
                tape.append(partial(np.add, found, addend, out=found))
        else:
            sums = bound.scratch(self._sums, target.shape)
            tape.append(partial(sums.fill, 0))
            for part in operands.exact.parts:
                tape.append(partial(np.matmul, left[:, part], right[part], out=found))
                tape.append(partial(np.add, sums, found, out=sums))
            if operands.bias is not None:
                tape.append(partial(np.add, sums, operands.bias[some], out=sums))
            tape.append(partial(np.copyto, found, sums, casting="same_kind"))
        factor = operands.factor[some] if operands.factor.size > 1 else operands.factor
        tape.append(partial(np.multiply, found, factor, out=found))
        tape.append(partial(np.rint, found, out=found))
        if operands.y_zero.any():
            tape.append(partial(np.add, found, operands.y_zero, out=found))
        tape.extend(saturating(found, target))
