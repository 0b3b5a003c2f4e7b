"""Quantization, and integer products as exact float sums, as BLAS has no integers.

A sum of n products of two differences of bytes is below n * 255 * 255 in magnitude. float32 is
exact up to 2**24, float64 up to 2**53.
"""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from ....runtime.ir.dtypes import (
    INTEGERS,
    DType,
    float8e8m0,
    float32,
    float64,
    int32,
    int64,
    uint8,
)
from ....runtime.ir.graph import Value
from ....runtime.ir.types import Array
from ....runtime.ops.quantize import (
    ConvInteger,
    DequantizeLinear,
    MatMulInteger,
    QLinearConv,
    QLinearMatMul,
    QuantizeLinear,
)
from ....runtime.ops.window import window
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine import thread_pool
from ..engine.apply import BLOCK, left_to_kernel
from ..engine.blocking import Frame, cut, lengths, shares
from ..engine.chain import Chain
from ..engine.cost import ELEMENT, FETCH, PRODUCT, blocks_worth
from ..engine.registry import builder, kernel
from ..engine.step import Bound, HostStep, Piece, ScratchLayout, Tape, portions
from ..numerics.convert import SHORT, convert, round_to_integer, saturating
from ..numerics.products import is_small
from ..windows.columns import windows

# ── to integers and back ─────────────────────────────────────────────────────────────────────────


def _spread(parameter: Array, shape: tuple[int, ...], axis: int, block_size: int) -> Array:
    """Return a scale or zero point in a shape that broadcasts to `shape`."""
    if parameter.size == 1 and not block_size:
        return parameter.reshape(())
    axis = 0 if len(shape) == 1 else axis % len(shape)
    if not block_size:
        return parameter.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.take(parameter, np.arange(shape[axis]) // block_size, axis)


def _aligned(
    x: Array, axis: int, block_size: int, *parameters: Array | None
) -> tuple[Array, tuple[Array | None, ...]]:
    """Return `x` and parameters in shapes that broadcast; blocks are an axis of their own."""
    if not block_size or x.shape[axis] % block_size:
        shape = x.shape
        spread = (p if p is None else _spread(p, shape, axis, block_size) for p in parameters)
        return x, tuple(spread)
    axis %= x.ndim
    split = (*x.shape[:axis], -1, block_size, *x.shape[axis + 1 :])
    blocks = x.reshape(split) if x.size else x.reshape(*split[:axis], 0, *split[axis + 1 :])
    return blocks, tuple(p if p is None else np.expand_dims(p, axis + 1) for p in parameters)


def _saturated(ratio: Array, zero_point: Array | None, to: DType, saturate: bool = True) -> Array:
    """Return round(ratio) + zero_point saturated to `to`; floats are not rounded first."""
    wide = ratio if ratio.dtype == float64 else ratio.astype(float32, copy=False)
    if to in INTEGERS:
        wide = np.rint(wide)
    if zero_point is not None:
        wide = wide + zero_point.astype(wide.dtype, copy=False)
    return round_to_integer(wide, to) if to in INTEGERS else convert(wide, to, saturate=saturate)


@kernel(QuantizeLinear)
def quantize_linear(
    op: QuantizeLinear, x: Array, scale: Array, zero_point: Array | None = None
) -> Array:
    """Return saturate(round(x / scale) + zero_point)."""
    to = op.output_dtype or (uint8 if zero_point is None else zero_point.dtype)
    dtype = op.precision or scale.dtype
    dtype = {float8e8m0: float32, int32: float64}.get(dtype, dtype)
    blocks, (divisor, shift) = _aligned(x, op.axis, op.block_size, scale, zero_point)
    assert divisor is not None
    ratio = blocks.astype(dtype, copy=False) / divisor.astype(dtype, copy=False)
    return _saturated(ratio, shift, to, bool(op.saturate)).reshape(x.shape)


@kernel(DequantizeLinear)
def dequantize_linear(
    op: DequantizeLinear, x: Array, scale: Array, zero_point: Array | None = None
) -> Array:
    """Return (x - zero_point) * scale."""
    blocks, (factor, shift) = _aligned(x, op.axis, op.block_size, scale, zero_point)
    assert factor is not None
    wide = blocks if x.dtype in INTEGERS else blocks.astype(float32)
    if shift is not None:
        wide = wide.astype({int32: int64}.get(x.dtype, int32) if x.dtype in INTEGERS else float32)
        wide = wide - shift.astype(wide.dtype)
    found = wide.astype(float32, copy=False) * factor.astype(float32, copy=False)
    return convert(found, op.output_dtype or scale.dtype).reshape(x.shape)


# ── the same in blocks ───────────────────────────────────────────────────────────────────────────

#: Approximate number of calls per element.
CALLS = 6


@builder(QuantizeLinear)
def quantize_in_blocks(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Quantize float32 in cache blocks; everything else is left to the plain function."""
    op, (x, scale, *_) = chain.head.op, chain.head.inputs
    assert isinstance(op, QuantizeLinear)
    assert x is not None
    assert scale is not None
    is_plain = x.tensor.dtype == scale.tensor.dtype == float32 and op.precision in (None, float32)
    if not is_plain or op.block_size or chain.output.tensor.dtype not in SHORT:
        return left_to_kernel(chain, site)
    scratch, workers = ScratchLayout(), thread_pool.size()
    piece = scratch.take(BLOCK, float32)
    record = partial(_record_quantize, chain, op.axis, piece, workers)
    return HostStep(chain.title, site, record, workers, scratch.nbytes)


@builder(DequantizeLinear)
def dequantize_in_blocks(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Dequantize narrow integers in blocks; everything else is left to the plain function."""
    op, (x, scale, *_) = chain.head.op, chain.head.inputs
    assert isinstance(op, DequantizeLinear)
    assert x is not None
    assert scale is not None
    is_plain = x.tensor.dtype in SHORT and scale.tensor.dtype == float32
    if not is_plain or op.block_size or chain.output.tensor.dtype != float32:
        return left_to_kernel(chain, site)
    workers = thread_pool.size()
    return HostStep(
        chain.title, site, partial(_record_dequantize, chain, op.axis, workers), workers
    )


def _parameters(chain: Chain, axis: int, bound: Bound) -> tuple[Frame, Array, Array | None]:
    """Return the frame of blocks, with scale and zero point as float32 in it; None for zeros."""
    _, scale, zero_point, *_ = (*chain.head.inputs, None)
    dims = chain.output.tensor.dims
    given = [value for value in (scale, zero_point) if value is not None]
    starts: tuple[int, ...] = (0,)
    if any(value.tensor.size > 1 for value in given):
        axis = 0 if len(dims) == 1 else axis % len(dims)
        starts = tuple(sorted({0, axis, min(axis + 1, len(dims) - 1)}))
    frame = Frame(dims, starts)
    spread = [frame.view(_spread(bound.as_dtype(v, float32), dims, axis, 0)) for v in given]
    if zero_point is None or (zero_point.data is not None and not zero_point.data.any()):
        return frame, spread[0], None
    return frame, spread[0], spread[1]


def _record_quantize(
    chain: Chain, axis: int, piece: Piece, workers: int, bound: Bound
) -> list[Tape]:
    frame, scale, zero_point = _parameters(chain, axis, bound)
    out = bound[chain.output]
    x, target = (frame.view(each) for each in (bound[chain.nodes[0].distinct_reads[0]], out))
    tapes: list[Tape] = []
    count = blocks_worth(ELEMENT * CALLS * out.size, workers)
    for share in shares(frame.shape, count, BLOCK):
        tape: Tape = []
        for block in share:
            found = bound.scratch(piece, lengths(block))
            tape.append(partial(np.divide, cut(x, block), cut(scale, block), out=found))
            tape.append(partial(np.rint, found, out=found))
            if zero_point is not None:
                tape.append(partial(np.add, found, cut(zero_point, block), out=found))
            tape.extend(saturating(found, cut(target, block)))
        tapes.append(tape)
    return tapes


def _record_dequantize(chain: Chain, axis: int, workers: int, bound: Bound) -> list[Tape]:
    frame, scale, zero_point = _parameters(chain, axis, bound)
    x, target = (frame.view(bound[v]) for v in (chain.nodes[0].distinct_reads[0], chain.output))
    tapes: list[Tape] = []
    count = blocks_worth(ELEMENT * CALLS / 2 * target.size, workers)
    for share in shares(frame.shape, count, BLOCK):
        tape: Tape = []
        for block in share:
            out = cut(target, block)
            tape.append(partial(np.copyto, out, cut(x, block)))
            if zero_point is not None:
                tape.append(partial(np.subtract, out, cut(zero_point, block), out=out))
            tape.append(partial(np.multiply, out, cut(scale, block), out=out))
        tapes.append(tape)
    return tapes


# ── products ─────────────────────────────────────────────────────────────────────────────────────


def _exact(rows: int) -> DType:
    """Return a dtype that holds sums of `rows` products of bytes exactly."""
    return float32 if rows * 255 * 255 <= 1 << 24 else float64


def _exact_with(weights: Array, axis: int | tuple[int, ...]) -> DType:
    """Return a dtype that holds sums of these weights times bytes, along some axes, exactly."""
    greatest = np.abs(weights).sum(axis).max(initial=0) * 255
    return float32 if greatest <= 1 << 24 else float64


def _centred(x: Array, zero_point: Array | None, dtype: DType) -> Array:
    """Return x - zero_point."""
    wide = x.astype(dtype)
    return wide if zero_point is None else wide - zero_point.astype(dtype)


def _wrapped(sums: Array) -> Array:
    """Return exact sums as int32 with wrap-around."""
    return sums.astype(int32) if sums.dtype == float32 else sums.astype(int64).astype(int32)


def _by_filter(parameter: Array | None, rank: int) -> Array | None:
    """Return one element, or one per filter, shaped to broadcast to weights of `rank` axes."""
    return None if parameter is None else parameter.reshape(-1, *[1] * (rank - 1))


def _convolved(
    op: QLinearConv | ConvInteger,
    x: Array,
    w: Array,
    x_zero_point: Array | None,
    w_zero_point: Array | None,
) -> Array:
    """Return the convolution of x - x_zero_point with w - w_zero_point, exactly."""
    weights = _centred(w, _by_filter(w_zero_point, w.ndim), float32)
    weights = weights.reshape(op.group, len(w) // op.group, prod(w.shape[1:]))
    dtype = _exact_with(weights, 2)
    weights = weights.astype(dtype, copy=False)
    geometry = window(op, x.shape[2:], w.shape[2:])
    borders = zip(geometry.pads_begin, geometry.pads_end, strict=True)
    x_zero_point = None if x_zero_point is None else x_zero_point.reshape(())
    padded = _centred(x, x_zero_point, dtype)
    if any(geometry.pads_begin + geometry.pads_end):
        padded = np.pad(padded, [(0, 0), (0, 0), *borders])
    result = np.empty((len(x), *weights.shape[:2], prod(geometry.output)), dtype)
    for image, target in zip(padded, result, strict=True):
        columns = windows(image, geometry, geometry.output)
        np.matmul(weights, columns.reshape(op.group, weights.shape[2], -1), out=target)
    return result.reshape(len(x), len(w), *geometry.output)


@kernel(ConvInteger)
def conv_integer(
    op: ConvInteger,
    x: Array,
    w: Array,
    x_zero_point: Array | None = None,
    w_zero_point: Array | None = None,
) -> Array:
    """Integer convolution with int32 results."""
    return _wrapped(_convolved(op, x, w, x_zero_point, w_zero_point))


@kernel(QLinearConv)
def qlinear_conv(
    op: QLinearConv,
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    w: Array,
    w_scale: Array,
    w_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    b: Array | None = None,
) -> Array:
    """Quantized convolution."""
    sums = _wrapped(_convolved(op, x, w, x_zero_point, w_zero_point))
    if b is not None:
        sums += b.reshape(-1, *[1] * (x.ndim - 2))
    by_filter = w_scale.reshape(-1, *[1] * (x.ndim - 2))
    factor = x_scale.reshape(()) * by_filter / y_scale.reshape(())
    return _saturated(sums.astype(float32) * factor, y_zero_point, y_zero_point.dtype)


def _by_row(parameter: Array) -> Array:
    """Return one element, or one per row, shaped to broadcast to matrices."""
    return parameter.reshape(-1, 1) if parameter.ndim == 1 else parameter


def _product(a: Array, b: Array, a_zero_point: Array | None, b_zero_point: Array | None) -> Array:
    """Return the matrix product of a - a_zero_point and b - b_zero_point, exactly for integers."""
    dtype = _exact(a.shape[-1])
    rows = None if a_zero_point is None else _by_row(a_zero_point)
    wide = _centred(a, rows, dtype).reshape(a.shape), _centred(b, b_zero_point, dtype)
    return np.matmul(*wide)


@kernel(MatMulInteger)
def matmul_integer(
    op: MatMulInteger,
    a: Array,
    b: Array,
    a_zero_point: Array | None = None,
    b_zero_point: Array | None = None,
) -> Array:
    """Integer matrix product with int32 results."""
    return _wrapped(_product(a, b, a_zero_point, b_zero_point))


#: Products of bytes whose sums are exact in float32.
EXACT = 256
#: Columns of weights converted at a time, and maximum rows of the other operand.
COLUMNS, ROWS = 1 << 10, 256
#: Maximum rows for which several products that BLAS finds small are faster than one.
FEW = 16
#: Granularity of columns.
GROUP = 16


@builder(MatMulInteger)
def matmul_integer_in_blocks(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Multiply by constant weights, converted to floats some columns at a time."""
    a, b, a_zero_point, b_zero_point, *_ = (*chain.head.inputs, None, None)
    assert a is not None
    assert b is not None
    shifts = [v for v in (a_zero_point, b_zero_point) if v is not None]
    is_plain = b.data is not None and b.data.ndim == 2 and len(a.tensor.dims) > 1
    if not is_plain or any(len(v.tensor.dims) > 1 for v in shifts):
        return left_to_kernel(chain, site)
    if a_zero_point is not None and a_zero_point.tensor.size != 1:
        return left_to_kernel(chain, site)
    if b_zero_point is not None and b_zero_point.data is None:
        return left_to_kernel(chain, site)
    assert b.data is not None
    return _IntegerProduct(chain, b, b_zero_point).step(site)


class _IntegerProduct:
    """Rows of integers times constant weights [length, columns], exactly.

    BLAS adds as many products as float32 holds exactly; their sums are added as integers.
    """

    def __init__(self, chain: Chain, b: Value, b_zero_point: Value | None) -> None:
        assert b.data is not None
        self._node, self._b, self._b_zero_point = chain.head, b, b_zero_point
        self._length, self._columns = b.data.shape
        self._rows = chain.output.tensor.size // max(1, self._columns)
        self._nanoseconds = b.data.size * (FETCH + self._rows * PRODUCT)
        count = blocks_worth(self._nanoseconds, thread_pool.size())
        share = -(-self._columns // count)
        self._wide = max(1, min(COLUMNS, -(-share // GROUP) * GROUP, self._columns))
        few, terms = min(ROWS, self._rows), min(EXACT, self._length)
        self._together = terms
        while self._rows <= FEW and not is_small(few, self._together, self._wide):
            if self._together % 2 or self._together < FEW or few == 1:
                break
            self._together //= 2
        stack = terms // max(1, self._together)
        self._scratch = ScratchLayout()
        self._weights = self._scratch.take(terms * self._wide, float32)
        self._left = self._scratch.take(few * self._length, float32)
        self._stack = self._scratch.take(stack * few * self._wide, float32)
        self._sums = self._scratch.take(few * self._wide, float32)
        self._parts = self._scratch.take(few * self._wide, int32)

    def step(self, site: BuildContext) -> HostStep:
        """Return the step."""
        name = f"{self._node.kind}: {self._length}x{self._columns}"
        return HostStep(name, site, self._record, thread_pool.size(), self._scratch.nbytes)

    def _record(self, bound: Bound) -> list[Tape]:
        a = bound.get(self._node.inputs[0])
        assert a is not None
        a, out = a.reshape(self._rows, -1), bound[self._node.outputs[0]]
        out = out.reshape(self._rows, self._columns)
        tapes: list[Tape] = []
        for some in _ranges(self._columns, self._wide):
            tape: Tape = []
            for rows in _ranges(self._rows, ROWS):
                left = self._centred_rows(tape, bound, a[rows])
                self._multiply(tape, bound, left, some, out[rows, some])
            tapes.append(tape)
        return portions(tapes, self._nanoseconds, thread_pool.size())

    def _centred_rows(self, tape: Tape, bound: Bound, rows: Array) -> Array:
        """Record the calls that convert rows and subtract their zero point."""
        left = bound.scratch(self._left, rows.shape)
        tape.append(partial(np.copyto, left, rows))
        zero_point = self._node.inputs[2] if len(self._node.inputs) > 2 else None
        if zero_point is not None:
            tape.append(partial(np.subtract, left, bound[zero_point], out=left))
        return left

    def _multiply(self, tape: Tape, bound: Bound, left: Array, some: slice, out: Array) -> None:
        """Record the calls that multiply rows by some columns."""
        shape = out.shape
        if not self._length:
            tape.append(partial(out.fill, 0))
        for terms in _ranges(self._length, EXACT):
            packed = bound[self._b][terms, some]
            weights = bound.scratch(self._weights, packed.shape)
            tape.append(partial(np.copyto, weights, packed))
            if (shift := self._b_zero_point) is not None and shift.data is not None:
                shifts = shift.data.astype(float32)
                part = shifts[some] if shifts.size > 1 else shifts
                if part.any():
                    tape.append(partial(np.subtract, weights, part, out=weights))
            sums = bound.scratch(self._sums, shape)
            self._add_up(tape, bound, left[:, terms], weights, sums)
            if not terms.start:
                tape.append(partial(np.copyto, out, sums, casting="unsafe"))
                continue
            whole = bound.scratch(self._parts, shape)
            tape.append(partial(np.copyto, whole, sums, casting="unsafe"))
            tape.append(partial(np.add, out, whole, out=out))

    def _add_up(self, tape: Tape, bound: Bound, left: Array, weights: Array, sums: Array) -> None:
        """Record the calls of a product, or of several that are added."""
        stack, rest = divmod(len(weights), max(1, self._together))
        if stack < 2 or rest:
            tape.append(partial(np.matmul, left, weights, out=sums))
            return
        every = bound.scratch(self._stack, (stack, *sums.shape))
        lefts = left.reshape(len(left), stack, -1).swapaxes(0, 1)
        tape.append(partial(np.matmul, lefts, weights.reshape(stack, -1, sums.shape[1]), out=every))
        tape.append(partial(np.add.reduce, every, 0, out=sums))


def _ranges(size: int, step: int) -> list[slice]:
    """Return ranges of at most `step` that cover `size`."""
    return [slice(first, min(first + step, size)) for first in range(0, size, step)]


@kernel(QLinearMatMul)
def qlinear_matmul(
    op: QLinearMatMul,
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
) -> Array:
    """Quantized matrix product."""
    sums = _product(a, b, a_zero_point, b_zero_point)
    if a.dtype in INTEGERS and b.dtype in INTEGERS:
        sums = _wrapped(sums)
    scales = (_by_row(a_scale), b_scale, _by_row(y_scale))
    of_a, of_b, of_y = (scale.astype(float32) for scale in scales)
    ratio = sums.astype(float32) * (of_a * of_b / of_y)
    shifted = _saturated(ratio, _by_row(y_zero_point), y_zero_point.dtype)
    return shifted.reshape(sums.shape)
