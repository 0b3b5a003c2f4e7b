"""Softmax, and normalizations of rows and of channels, in blocks of independent rows.

Sums over a row are dot products, with ones or with itself: BLAS sums a row several times as fast as
a reduction, and in an order independent of other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np

from ....runtime.ir.dtypes import FLOATS, DType, float32, float64
from ....runtime.ir.types import Array
from ....runtime.ops.norm import (
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    LogSoftmax,
    RMSNormalization,
    Softmax,
)
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine import thread_pool
from ..engine.blocking import Frame, blocks, cut, full_block
from ..engine.chain import Chain
from ..engine.cost import ELEMENT
from ..engine.registry import builder
from ..engine.step import Bound, HostStep, Tape, portions
from ..numerics.halves import in_dtype, store, widened
from ..numerics.short_rows import reduced, takes_columns

#: Elements per block for several calls.
BLOCK = 1 << 15
#: Approximate number of calls per element.
CALLS = 5


def _arithmetic(*dtypes: DType) -> DType:
    return float64 if float64 in dtypes else float32


def _sums(x: Array, y: Array) -> Array:
    """Return the sum of x·y over the last axis, kept as 1."""
    return np.vecdot(x, y)[..., np.newaxis]


def _total(x: Array) -> Array:
    """Return the sum along axis 1, kept as 1."""
    return _sums(x, np.ones(x.shape[1], x.dtype)) if x.ndim == 2 else x.sum(1, keepdims=True)


def _peaks(x: Array) -> Array:
    """Return the maxima along axis 1, kept as 1."""
    if x.ndim == 2:
        return reduced(np.maximum, x, initial=-np.inf)
    return x.max(1, keepdims=True, initial=-np.inf)


@builder(Softmax, LogSoftmax, in_place=True, dtypes=FLOATS)
def softmax(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Return exp(x - max) / sum of that, or its logarithm, along an axis."""
    count = thread_pool.size()
    return HostStep(chain.title, site, partial(_record_softmax, chain, count), count)


def _record_softmax(chain: Chain, workers: int, bound: Bound) -> list[Tape]:
    op, (x, *_), dims = chain.head.op, chain.head.inputs, chain.output.tensor.dims
    assert isinstance(op, Softmax | LogSoftmax)
    assert x is not None
    axis = op.axis % len(dims)
    outer, size, inner = prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :])
    shape = (outer, size, inner) if inner > 1 else (outer, size)
    source, target = (bound[value].reshape(shape) for value in (x, chain.output))
    function = _softmax if isinstance(op, Softmax) else _log_softmax
    parts = blocks((outer, inner), max(1, BLOCK // size))
    ones, tapes = np.ones(size, source.dtype), list[Tape]()
    for rows, columns in parts:
        place = (rows, slice(None), columns)[: len(shape)]
        if function is _softmax and _has_long_rows(source[place]):
            tapes.append(_softmax_tape(source[place], target[place], ones))
        else:
            tapes.append([partial(function, source[place], target[place])])
    return portions(tapes, CALLS * ELEMENT * source.size, workers)


def _has_long_rows(x: Array) -> bool:
    """Whether there are rows of float32 or float64 that `reduced` takes one by one."""
    is_plain = x.ndim == 2 and x.dtype in (float32, float64)
    return is_plain and not takes_columns(np.maximum, x.shape, x.dtype)


def _softmax_tape(x: Array, out: Array, ones: Array) -> Tape:
    """Return the calls of `_softmax` for long rows, given as many ones as a row has elements."""
    peak, total = np.empty((2, len(x), 1), x.dtype)
    return [
        partial(np.maximum.reduce, x, -1, x.dtype, peak, keepdims=True, initial=-np.inf),
        partial(np.subtract, x, peak, out),
        partial(np.exp, out, out),
        partial(np.vecdot, out, ones, total[:, 0]),
        partial(np.true_divide, out, total, out),
    ]


def _softmax(x: Array, out: Array) -> None:
    """Compute softmax; half floats are rounded after each node of ONNX's function definition.

    ONNX's own suite demands it (`test_attention_4d_causal_fp16_expanded`), though float32 between
    them would be nearer to float64.
    """
    wide = widened(x)
    work = out if wide is x else wide
    np.subtract(wide, _peaks(wide), out=work)
    np.exp(work, out=work)
    if wide is not x:
        store(out, work)
        store(work, out)
    total = widened(in_dtype(_total(work), x.dtype))
    np.true_divide(work, total, out=work)
    if wide is not x:
        store(out, work)


def _log_softmax(x: Array, out: Array) -> None:
    wide = widened(x)
    work = np.subtract(wide, _peaks(wide))
    np.subtract(work, np.log(_total(np.exp(work))), out=work)
    store(out, work)


@builder(LayerNormalization, RMSNormalization, fuses=True, dtypes=FLOATS)
def layer_normalization(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Normalize over the last axes, with fused elementwise nodes."""
    count = thread_pool.size()
    return HostStep(chain.title, site, partial(_record_norm, chain, count), count)


def _record_norm(chain: Chain, workers: int, bound: Bound) -> list[Tape]:
    op, (x, *others), dims = chain.head.op, chain.head.inputs, chain.output.tensor.dims
    assert isinstance(op, LayerNormalization | RMSNormalization)
    assert x is not None
    axis, dtype = op.axis % len(dims), _arithmetic(x.tensor.dtype, op.stash_type)
    frame, setup = Frame(dims, (0, axis)), list[Tape]()
    given: list[Array] = []
    for value in others:
        if value is not None:
            data = bound.as_dtype(value, dtype)
            if not frame.fits(data.shape):
                whole = np.empty(dims, data.dtype)
                setup.append([partial(np.copyto, whole, data)])
                data = whole
            given.append(frame.view(data))
    rows, size = frame.shape
    source, target = frame.view(bound[x]), frame.view(bound[chain.output])
    kept = [bound.get(value) for value in chain.head.outputs[1:]]
    by_row, ones = chain.frame(frame.starts), np.ones(size, dtype)
    finish = chain.finish(by_row, bound)
    normalize = _layer_norm if isinstance(op, LayerNormalization) else _rms_norm
    tapes: list[Tape] = []
    for (part,) in blocks((rows,), max(1, BLOCK // max(1, size))):
        block = (part, slice(0, size))
        parameters = [cut(data, block) for data in given]
        statistics = [None if data is None else data.reshape(rows, 1)[part] for data in kept]
        tape: Tape = []
        if not source.dtype == target.dtype == dtype:
            call = partial(normalize, op.epsilon, dtype, source[part], parameters)
            tape.append(partial(call, target[part], statistics))
        elif isinstance(op, LayerNormalization):
            some = source[part], ones, parameters, target[part], statistics
            tape += _layer_norm_tape(op.epsilon, *some)
        else:
            tape += _rms_norm_tape(op.epsilon, source[part], parameters[0], target[part])
        tapes.append(tape)
        if by_row == frame:
            finish(tapes[-1], block)
    if by_row == frame and not setup:
        return portions(tapes, CALLS * ELEMENT * source.size, workers)
    tape = [call for each in (*setup, *tapes) for call in each]
    if by_row != frame:
        finish(tape, full_block(dims))
    return [tape]


def _layer_norm_tape(
    epsilon: float,
    x: Array,
    ones: Array,
    parameters: Sequence[Array],
    out: Array,
    statistics: Sequence[Array | None],
) -> Tape:
    """Return the calls of `_layer_norm` for arrays in its dtype, given a row of ones."""
    mean, inverse = np.empty((2, len(x), 1), x.dtype)
    count, one = np.array([x.shape[1], 1], x.dtype)[:, np.newaxis]
    tape: Tape = [
        partial(np.vecdot, x, ones, mean[:, 0]),
        partial(np.divide, mean, count, mean),
        partial(np.subtract, x, mean, out),
        *_root_mean_squares(out, epsilon, inverse),
        partial(np.divide, one, inverse, inverse),
        partial(np.multiply, out, inverse, out),
        partial(np.multiply, out, parameters[0], out),
        *(partial(np.add, out, shift, out) for shift in parameters[1:]),
    ]
    pairs = zip(statistics, (mean, inverse), strict=False)
    return [*tape, *(partial(np.copyto, data, found) for data, found in pairs if data is not None)]


def _layer_norm(
    epsilon: float,
    dtype: DType,
    x: Array,
    parameters: Sequence[Array],
    out: Array,
    statistics: Sequence[Array | None],
) -> None:
    """Compute (x - mean) / sqrt(var + epsilon) * scale + shift into `out`, in `dtype`."""
    wide, size = in_dtype(x, dtype), x.shape[1]
    work = out if out.dtype == dtype else np.empty(x.shape, dtype)
    mean = _total(wide) / size
    np.subtract(wide, mean, out=work)
    inverse = 1 / np.sqrt(_sums(work, work) / size + epsilon)
    np.multiply(work, inverse, out=work)
    np.multiply(work, parameters[0], out=work)
    if len(parameters) > 1:
        np.add(work, parameters[1], out=work)
    if work is not out:
        store(out, work)
    for target, data in zip(statistics, (mean, inverse), strict=False):
        if target is not None:
            np.copyto(target, data, casting="same_kind")


def _rms_norm_tape(epsilon: float, x: Array, scale: Array, out: Array) -> Tape:
    """Return the calls of `_rms_norm` for arrays in its dtype."""
    root = np.empty((len(x), 1), x.dtype)
    return [
        *_root_mean_squares(x, epsilon, root),
        partial(np.true_divide, x, root, out),
        partial(np.multiply, out, scale, out),
    ]


def _root_mean_squares(x: Array, epsilon: float, out: Array) -> Tape:
    """Return the calls that compute sqrt(mean(x²) + epsilon) of each row into `out`, [rows, 1]."""
    count, small = np.array([x.shape[1], epsilon], x.dtype)[:, np.newaxis]
    return [
        partial(np.vecdot, x, x, out[:, 0]),
        partial(np.divide, out, count, out),
        partial(np.add, out, small, out),
        partial(np.sqrt, out, out),
    ]


def _rms_norm(
    epsilon: float,
    dtype: DType,
    x: Array,
    parameters: Sequence[Array],
    out: Array,
    statistics: Sequence[Array | None],
) -> None:
    """Compute x / sqrt(mean(x²) + epsilon) * scale into `out`, in `dtype`."""
    wide = in_dtype(x, dtype)
    work = out if out.dtype == dtype else np.empty(x.shape, dtype)
    root = np.sqrt(_sums(wide, wide) / x.shape[1] + epsilon)
    np.true_divide(wide, root, out=work)
    np.multiply(work, parameters[0], out=work)
    if work is not out:
        store(out, work)


@builder(InstanceNormalization, GroupNormalization, fuses=True, dtypes=FLOATS)
def channel_normalization(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Normalize each channel or group of channels of an image, with fused elementwise nodes."""
    count = thread_pool.size()
    return HostStep(chain.title, site, partial(_record_channels, chain, count), count)


def _record_channels(chain: Chain, workers: int, bound: Bound) -> list[Tape]:
    op, (x, scale, shift), dims = chain.head.op, chain.head.inputs, chain.output.tensor.dims
    assert isinstance(op, InstanceNormalization | GroupNormalization)
    assert x is not None
    assert scale is not None
    assert shift is not None
    images, channels = dims[:2]
    is_grouped = isinstance(op, GroupNormalization)
    groups = op.num_groups if is_grouped else channels
    dtype = _arithmetic(x.tensor.dtype, op.stash_type if is_grouped else float32)
    together = channels // groups
    source, target = (bound[v].reshape(images, groups, together, -1) for v in (x, chain.output))
    by_channel = groups, together, 1
    factors, addends = (bound.as_dtype(v, dtype).reshape(by_channel) for v in (scale, shift))
    size = together * source.shape[3]
    ones = np.ones(size, dtype)
    frame = chain.frame((0, 1, 2)[: len(dims)])
    finish = chain.finish(frame, bound)
    tapes: list[Tape] = []
    for some, part in blocks((images, groups), max(1, BLOCK // size)):
        given = ones, source[some, part], factors[part], addends[part]
        tape: Tape = [partial(_channel_norm, op.epsilon, *given, target[some, part])]
        channel = slice(part.start * together, part.stop * together)
        finish(tape, frame.block((some, channel, *(slice(0, n) for n in dims[2:]))))
        tapes.append(tape)
    return portions(tapes, CALLS * ELEMENT * source.size, workers)


def _channel_norm(
    epsilon: float, ones: Array, x: Array, scale: Array, shift: Array, out: Array
) -> None:
    """Compute (x - mean) / sqrt(var + epsilon) * scale + shift in the dtype of `ones`.

    Args:
        epsilon: added to the variance.
        ones: as many as a group has elements.
        x: groups [images, groups, channels of a group, positions].
        scale: by channel [groups, channels of a group, 1].
        shift: the same.
        out: the result.
    """
    rows = in_dtype(x.reshape(*x.shape[:2], len(ones)), ones.dtype)
    work = out if out.dtype == ones.dtype else np.empty(x.shape, ones.dtype)
    centred = work.reshape(rows.shape)
    np.subtract(rows, _sums(rows, ones) / len(ones), out=centred)
    inverse = 1 / np.sqrt(_sums(centred, centred) / len(ones) + epsilon)
    np.multiply(work, inverse[..., np.newaxis] * scale, out=work)
    np.add(work, shift, out=work)
    if work is not out:
        store(out, work)
