"""Normalizations; statistics of half floats are computed in float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ....runtime.ir.dtypes import FLOATS, DType, bfloat16, float16, float32, float64
from ....runtime.ir.graph import Value
from ....runtime.ir.types import Array
from ....runtime.ops.norm import (
    LRN,
    BatchNormalization,
    Dropout,
    Hardmax,
    LpNormalization,
    MeanVarianceNormalization,
)
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine import thread_pool
from ..engine.blocking import Frame, blocks, cut, lengths, shares
from ..engine.chain import Chain
from ..engine.cost import ELEMENT, blocks_worth
from ..engine.registry import builder, kernel
from ..engine.step import Bound, HostStep, Piece, ScratchLayout, Tape, portions
from ..numerics.halves import store, widened

#: Elements per block for several calls.
BLOCK = 1 << 15


def _is_half(dtype: DType) -> bool:
    return dtype in (float16, bfloat16)


# ── with given statistics ────────────────────────────────────────────────────────────────────────


@builder(BatchNormalization, fuses=True, in_place=True, dtypes=FLOATS)
def batch_normalization(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Scale and shift each channel, with fused elementwise nodes."""
    op, x = chain.head.op, chain.head.inputs[0]
    assert isinstance(op, BatchNormalization)
    assert x is not None
    if op.training_mode:
        return HostStep(chain.title, site, partial(_record_training, chain, op))
    count = thread_pool.size()
    return HostStep(chain.title, site, partial(_record_batchnorm, chain, op, count), count)


def _given(chain: Chain) -> tuple[Value, ...]:
    return tuple(value for value in chain.head.inputs if value is not None)


def _record_batchnorm(
    chain: Chain, op: BatchNormalization, workers: int, bound: Bound
) -> list[Tape]:
    x, *parameters = _given(chain)
    frame = chain.frame((0, 1, 2)[: len(x.tensor.dims)])
    source, target = frame.view(bound[x]), frame.view(bound[chain.output])
    finish = chain.finish(frame, bound)
    tapes: list[Tape] = []
    first, pair = _affine(op, x.tensor.dtype, tuple(parameters), bound)
    by_channel = [1] * len(frame.shape)
    by_channel[1:2] = [-1]
    factor, addend = (data.reshape(by_channel) for data in pair)
    scale = _scale_wide if _is_half(source.dtype) else _scale
    nanoseconds = ELEMENT * (2 + len(chain.stages)) * x.tensor.size
    count = 1 if first is not None else blocks_worth(nanoseconds, workers)
    for share in shares(frame.shape, count, BLOCK):
        tape: Tape = [] if first is None else [first]
        for block in share:
            arrays = [cut(data, block) for data in (source, factor, addend, target)]
            tape.append(partial(scale, *arrays))
            finish(tape, block)
        tapes.append(tape)
    return tapes


def _affine(
    op: BatchNormalization, kind: DType, parameters: tuple[Value, ...], bound: Bound
) -> tuple[Callable[[], None] | None, Array]:
    """Return scale and shift [2, channels], and the calls that compute them if needed."""
    dtype = float64 if kind == float64 else float32

    def pack(scale: Array, shift: Array, mean: Array, variance: Array) -> Array:
        with np.errstate(all="ignore"):
            factor = scale.astype(float64) / np.sqrt(variance.astype(float64) + op.epsilon)
            return np.stack([factor, shift - mean * factor]).astype(dtype)

    if all(value.is_constant for value in parameters):
        return None, bound.packed(parameters, ("batchnorm", op.epsilon, dtype), pack)
    pair = np.empty((2, parameters[0].tensor.dims[0]), dtype)
    arrays = [bound[value] for value in parameters]
    return lambda: np.copyto(pair, pack(*arrays)), pair


def _scale(x: Array, factor: Array, addend: Array, out: Array) -> None:
    np.multiply(x, factor, out=out)
    np.add(out, addend, out=out)


def _scale_wide(x: Array, factor: Array, addend: Array, out: Array) -> None:
    wide = widened(x)
    np.multiply(wide, factor, out=wide)
    np.add(wide, addend, out=wide)
    store(out, wide)


def _record_training(chain: Chain, op: BatchNormalization, bound: Bound) -> list[Tape]:
    arrays = [bound[value] for value in _given(chain)]
    outputs = [bound.get(v) for v in (chain.output, *chain.head.outputs[1:])]
    frame = Frame.finest(chain.output.tensor.dims)
    tape: Tape = [lambda: _train(op, arrays, outputs)]
    for block in blocks(frame.shape, chain.output.tensor.size):
        chain.finish(frame, bound)(tape, block)
    return [tape]


def _train(op: BatchNormalization, arrays: list[Array], outputs: list[Array | None]) -> None:
    """Normalize by the batch's own statistics and update the running ones."""
    x, scale, shift, *running = arrays
    axes = (0, *range(2, x.ndim))
    wide = widened(x)
    by_channel = (1, -1, *[1] * (x.ndim - 2))
    mean, variance = wide.mean(axes), wide.var(axes)
    factor = widened(scale) / np.sqrt(variance + op.epsilon)
    y, *updated = outputs
    if y is not None:
        centred = wide - mean.reshape(by_channel)
        result = centred * factor.reshape(by_channel) + shift.reshape(by_channel)
        np.copyto(y, result, casting="same_kind")
    for out, old, new in zip(updated, running, (mean, variance), strict=False):
        if out is not None:
            result = old * op.momentum + new * (1 - op.momentum)
            np.copyto(out, result, casting="same_kind")


@builder(LRN, dtypes=FLOATS)
def lrn(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Divide by a power of the sum of squares over neighbouring channels, block by block."""
    op, (x,) = chain.head.op, _given(chain)
    assert isinstance(op, LRN)
    type_ = x.tensor
    n, channels = type_.dims[:2]
    positions = type_.size // max(1, n * channels)
    dtype, count = float64 if type_.dtype == float64 else float32, thread_pool.size()
    width = BLOCK // max(1, channels)
    if options.workspace is not None:
        column = (2 * channels + op.size) * dtype.itemsize
        width = min(width, options.workspace // count // column)
    width = max(1, min(positions, width))
    scratch = ScratchLayout()
    squares = scratch.take((channels + op.size - 1) * width, dtype)
    sums = scratch.take(channels * width, dtype)
    record = partial(_record_lrn, chain, op, (squares, sums), width, count)
    return HostStep(f"{chain.title} {op.size}", site, record, count, scratch.nbytes)


def _record_lrn(
    chain: Chain, op: LRN, pieces: tuple[Piece, Piece], width: int, workers: int, bound: Bound
) -> list[Tape]:
    (x,) = _given(chain)
    n, channels = x.tensor.dims[:2]
    source, out = (bound[v].reshape(n, channels, -1) for v in (x, chain.output))
    before = (op.size - 1) // 2
    tapes: list[Tape] = []
    for image in range(n):
        for (part,) in blocks(source.shape[2:], width):
            (count,) = lengths((part,))
            squares = bound.scratch(pieces[0], (channels + op.size - 1, count))
            sums = bound.scratch(pieces[1], (channels, count))
            data = source[image, :, part]
            inner = squares[before : before + channels]
            tapes.append(
                [
                    partial(squares[:before].fill, 0),
                    partial(squares[before + channels :].fill, 0),
                    partial(np.multiply, data, data, out=inner, dtype=inner.dtype),
                    partial(_sum_rows, squares, op.size, sums),
                    partial(_respond, data, sums, inner, op, out[image, :, part]),
                ]
            )
    return portions(tapes, ELEMENT * (op.size + 6) * x.tensor.size, workers)


def _sum_rows(rows: Array, size: int, out: Array) -> None:
    """Sum `size` adjacent rows for each row of `out`."""
    if size == 1:
        np.copyto(out, rows)
        return
    np.add(rows[: len(out)], rows[1 : 1 + len(out)], out=out)
    for first in range(2, size):
        np.add(out, rows[first : first + len(out)], out=out)


def _respond(x: Array, sums: Array, work: Array, op: LRN, out: Array) -> None:
    """Return x / (bias + alpha / size * sums) ** beta."""
    np.multiply(sums, op.alpha / op.size, out=sums)
    np.add(sums, op.bias, out=sums)
    if op.beta == 0.75:
        np.sqrt(sums, out=sums)
        np.sqrt(sums, out=work)
        np.multiply(sums, work, out=sums)
    else:
        np.power(sums, op.beta, out=sums)
    np.true_divide(x, sums, out=out)


# ── others ───────────────────────────────────────────────────────────────────────────────────────


@kernel(LpNormalization)
def lp_normalization(op: LpNormalization, x: Array) -> Array:
    """Divide by the norm along an axis; 0 where it is 0."""
    wide = widened(x)
    if op.p == 1:
        norm = np.abs(wide).sum(op.axis, keepdims=True)
    else:
        norm = np.sqrt(np.square(wide).sum(op.axis, keepdims=True))
    return np.where(norm == 0, 0, wide / norm).astype(x.dtype)


@kernel(MeanVarianceNormalization)
def mean_variance_normalization(op: MeanVarianceNormalization, x: Array) -> Array:
    """Subtract the mean and divide by the standard deviation."""
    wide = widened(x)
    centred = wide - wide.mean(op.axes, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(op.axes, keepdims=True))
    return (centred / (deviation + 1e-9)).astype(x.dtype)


@kernel(Hardmax)
def hardmax(op: Hardmax, x: Array, *, out: Array) -> None:
    """Return 1 at the first largest element along an axis, 0 elsewhere."""
    out.fill(0)
    if x.size:
        np.put_along_axis(out, x.argmax(op.axis, keepdims=True), 1, op.axis)


@kernel(Dropout)
def dropout(
    op: Dropout, x: Array, ratio: Array | None = None, training: Array | None = None
) -> tuple[Array, Array]:
    """Return the input and a mask of ones; in training, drop elements at random."""
    share = 0.5 if ratio is None else float(ratio.reshape(-1)[0])
    if training is None or not training.reshape(-1)[0] or share == 0:
        return x, np.ones(x.shape, bool)
    mask = np.random.RandomState(op.generator_seed).uniform(size=x.shape) >= share
    kept = widened(x) * mask / (1 - share) if share < 1 else np.zeros(x.shape)
    return kept.astype(x.dtype), mask
