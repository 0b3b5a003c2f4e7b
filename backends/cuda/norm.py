"""Normalizations: by given statistics, by those of the elements themselves, softmax."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from ...runtime.dtypes import FLOATS, DType, float32, float64
from ...runtime.ops.norm import (
    LRN,
    BatchNormalization,
    GroupNormalization,
    Hardmax,
    InstanceNormalization,
    LayerNormalization,
    LogSoftmax,
    LpNormalization,
    MeanVarianceNormalization,
    RMSNormalization,
    Softmax,
)
from ...runtime.ops.shapes import normalize_axes, normalize_axis
from ...runtime.types import Array
from .compile import arithmetic
from .half_words import half_lrn, pools_words
from .launch import Ints64, Launch, Packed, Tensor
from .layout import Ints, ceil_div, merge, order, strides
from .norm_rows import normalize_rows
from .registry import Answer, Setting, kernel, need_dtypes
from .tail import Tail

THREADS = 128


@kernel(BatchNormalization, tail=True, follows=True, outputs=3)
def batch_normalization(
    op: BatchNormalization,
    y: Tensor | None,
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    more: tuple[Tensor | None, ...] = (),
    tail: Tail,
    setting: Setting,
) -> Answer:
    """Scale and shift every channel by what its statistics come down to."""
    refused = need_dtypes(FLOATS, y, x, scale, b, mean, var)
    if refused:
        return refused
    if op.training_mode:
        return _batch_statistics(op, y, x, (scale, b), (mean, var), more, tail)
    if y is None:
        return "its first output is not read"
    compute = arithmetic(x.dtype)
    channels = x.dims[1] if x.rank > 1 else 1
    inner = 1 if x.is_channels_last else prod(x.dims[2:])
    vector = next(v for v in (4, 2, 1) if (channels if inner == 1 else inner) % v == 0)
    statistics = (scale, b, mean, var)
    values = tuple(operand.value for operand in statistics)
    pack = partial(pack_batch_norm, epsilon=op.epsilon, dtype=compute)
    fixed = all(operand.data is not None for operand in statistics)
    packed = Packed(values, ("batch_norm", op.epsilon, compute.name), pack)
    return Launch(
        "scale.cu",
        "scale" if fixed else "normalize",
        grid=(ceil_div(y.size, THREADS * vector), 1, 1),
        block=THREADS,
        args=(
            *(x, y, *((packed,) if fixed else statistics), *tail.pointers),
            *(np.int64(y.size), np.int32(channels), np.int32(inner)),
            *(np.int32(x.pitch or channels), np.int32(y.pitch or channels)),
            *(() if fixed else (np.float64(op.epsilon),)),
        ),
        types=(("T", x.dtype), ("S", scale.dtype), ("M", mean.dtype), ("A", compute)),
        constants=(("VECTOR", vector), ("CHANNELS_LAST", inner == 1)),
        code=tail.code,
        note=tail.title,
        pitched=(x, y),
    )


def pack_batch_norm(
    scale: Array, b: Array, mean: Array, var: Array, epsilon: float, dtype: DType
) -> Array:
    """Return [c, 2]: by what each channel is multiplied, and what is added then."""
    scale, b, mean, var = (data.astype(float64) for data in (scale, b, mean, var))
    factor = scale / np.sqrt(var + epsilon)
    return np.stack([factor, b - mean * factor], axis=-1).astype(dtype)


# ── by statistics of the elements ────────────────────────────────────────────────────────────────

DEVIATION, DEVIATION_PLUS, SUM, ROOT = range(4)


@dataclass(frozen=True, slots=True)
class Statistic:
    """What `standardize.cu` computes of a group.

    Attributes:
        kind: by what elements are divided: DEVIATION, ROOT, ...
        centred: whether the mean is subtracted.
        epsilon: added to variance or deviation.
        outputs: mean and divisor (or running averages), where somebody reads them.
        running: averages so far that go into `outputs`.
        momentum: their share.
    """

    kind: int = DEVIATION
    centred: bool = True
    epsilon: float = 0.0
    outputs: tuple[Tensor | None, Tensor | None] = (None, None)
    running: tuple[Tensor | None, Tensor | None] = (None, None)
    momentum: float = 0.0


def standardize(
    y: Tensor | None,
    x: Tensor,
    axes: Ints,
    how: Statistic,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    channel: int | None = None,
    sizes: Ints | None = None,
) -> Answer:
    """Return the launch that normalizes groups of elements.

    Args:
        y: the result.
        x: the elements.
        axes: those that a group spans.
        how: what it computes of them.
        scale: what results are multiplied with.
        shift: what is added then.
        channel: the axis that `scale` and `shift` go along; None: the last ones.
        sizes: a shape to take in the place of that of x, in the plain format.
    """
    refused = need_dtypes(FLOATS, y, x, scale, shift, *how.outputs, *how.running)
    if refused:
        return refused
    dims = sizes or x.dims
    moves = x.strides if sizes is None else strides(sizes, x.format)
    along = [_walk([a for a in range(len(dims)) if (a in axes) is inside], dims, moves)
             for inside in (False, True)]  # fmt: skip
    if along[0] is None or along[1] is None:
        return f"groups of {x.value.tensor} over axes {axes}"
    count = prod(dims[a] for a in axes)
    parameters, repeat = 1, 1
    if scale is not None and scale.size != 1:
        place = x.rank - scale.rank if channel is None else channel
        wanted = x.dims[place:] if channel is None else (x.dims[channel],)
        if scale.dims != wanted or (shift is not None and shift.dims != wanted):
            return f"scale of {scale.value.tensor}"
        parameters, repeat = scale.size, x.strides[place] if channel is not None else 1
    elif shift is not None and scale is not None and shift.size != 1:
        return f"scale of {scale.value.tensor}"
    statistics = next((t.dtype for t in (*how.outputs, *how.running) if t is not None), float32)
    warps = 1 if count <= 64 else 8
    groups = prod(dims) // count if count else 0
    return Launch(
        "standardize.cu",
        "standardize",
        grid=(groups, 1, 1),
        block=32 * warps,
        args=(
            *(x, scale, shift, y, *how.outputs, *how.running),
            *map(np.int64, (count, parameters, repeat)),
            *map(np.float64, (how.epsilon, how.momentum)),
            *(Ints64(walk) for walk in along if walk is not None),
        ),
        types=(
            *(("X", x.dtype), ("Y", x.dtype if y is None else y.dtype)),
            *(("S", x.dtype if scale is None else scale.dtype), ("O", statistics)),
            ("A", arithmetic(x.dtype)),
        ),
        constants=(
            *(("WARPS", warps), ("KIND", how.kind), ("CENTRED", how.centred)),
            ("RUNNING", how.running[0] is not None),
        ),
        note=f"{groups} x {count}",
    )


def _walk(axes: list[int], dims: Ints, moves: Ints) -> Ints | None:
    """Return struct `Walk` of these axes; None if two of them do not suffice."""
    sizes, (walk,) = merge([dims[a] for a in axes], [tuple(moves[a] for a in axes)])
    inner, step = sizes[-1], walk[-1]
    if len(sizes) > 2:
        return None
    return (inner, walk[0] if len(sizes) == 2 else 0, step)


def _batch_statistics(
    op: BatchNormalization,
    y: Tensor | None,
    x: Tensor,
    parameters: tuple[Tensor, Tensor],
    running: tuple[Tensor, Tensor],
    more: tuple[Tensor | None, ...],
    tail: Tail,
) -> Answer:
    """Return the batch normalization of training."""
    if tail.title:
        return "training_mode=1 with nodes behind it"
    mean, variance = (*more, None, None)[:2]
    how = Statistic(
        epsilon=op.epsilon, outputs=(mean, variance), running=running, momentum=op.momentum
    )
    axes = tuple(a for a in range(x.rank) if a != 1)
    return standardize(y, x, axes, how, *parameters, channel=1)


@kernel(LayerNormalization, outputs=3)
def layer_normalization(
    op: LayerNormalization,
    y: Tensor | None,
    x: Tensor,
    scale: Tensor,
    b: Tensor | None = None,
    *,
    more: tuple[Tensor | None, ...] = (),
) -> Answer:
    """Normalize the last axes."""
    mean, deviation = (*more, None, None)[:2]
    axis = normalize_axis(op.axis, x.rank)
    if y is not None and mean is None and deviation is None:
        quick = normalize_rows(y, x, scale, b, axis, op.epsilon, centred=True)
        if quick is not None:
            return quick
    how = Statistic(epsilon=op.epsilon, outputs=(mean, deviation))
    return standardize(y, x, _last_axes(op.axis, x.rank), how, scale, b)


@kernel(RMSNormalization)
def rms_normalization(op: RMSNormalization, y: Tensor, x: Tensor, scale: Tensor) -> Answer:
    """Divide the last axes by their root mean square."""
    axis = normalize_axis(op.axis, x.rank)
    quick = normalize_rows(y, x, scale, None, axis, op.epsilon, centred=False)
    if quick is not None:
        return quick
    how = Statistic(centred=False, epsilon=op.epsilon)
    return standardize(y, x, _last_axes(op.axis, x.rank), how, scale)


def _last_axes(axis: int, rank: int) -> Ints:
    return tuple(range(normalize_axis(axis, rank), rank))


@kernel(InstanceNormalization)
def instance_normalization(
    op: InstanceNormalization, y: Tensor, x: Tensor, scale: Tensor, b: Tensor
) -> Answer:
    """Normalize every channel of every image."""
    how = Statistic(epsilon=op.epsilon)
    return standardize(y, x, tuple(range(2, x.rank)), how, scale, b, channel=1)


@kernel(GroupNormalization)
def group_normalization(
    op: GroupNormalization, y: Tensor, x: Tensor, scale: Tensor, bias: Tensor
) -> Answer:
    """Normalize groups of channels of every image."""
    sizes = (x.dims[0], op.num_groups, prod(x.dims[1:]) // op.num_groups)
    how = Statistic(epsilon=op.epsilon)
    return standardize(y, x, (2,), how, scale, bias, channel=1, sizes=sizes)


@kernel(MeanVarianceNormalization)
def mean_variance_normalization(op: MeanVarianceNormalization, y: Tensor, x: Tensor) -> Answer:
    """Subtract the mean and divide by the standard deviation."""
    how = Statistic(DEVIATION_PLUS, epsilon=1e-9)
    return standardize(y, x, normalize_axes(op.axes, x.rank), how)


@kernel(LpNormalization)
def lp_normalization(op: LpNormalization, y: Tensor, x: Tensor) -> Answer:
    """Divide by the norm along an axis."""
    how = Statistic(SUM if op.p == 1 else ROOT, centred=False)
    return standardize(y, x, (normalize_axis(op.axis, x.rank),), how)


# ── along channels, and softmax ──────────────────────────────────────────────────────────────────


@kernel(LRN, follows=True)
def lrn(op: LRN, y: Tensor, x: Tensor) -> Answer:
    """Divide by a power of the squares of neighbouring channels."""
    refused = need_dtypes(FLOATS, y, x)
    if refused:
        return refused
    before = (op.size - 1) // 2
    factors = (op.alpha / op.size, op.beta, op.bias)
    if pools_words(y, x) and op.size <= 16:
        return half_lrn(y, x, (before, op.size - 1 - before), factors)
    sizes = (x.dims[1], x.strides[1], before, op.size - 1 - before)
    return Launch(
        "lrn.cu",
        "lrn",
        grid=(ceil_div(y.size, THREADS), 1, 1),
        block=THREADS,
        args=(
            *(x, y, np.int64(y.size), *map(np.int32, sizes)),
            *map(np.float64, factors),
        ),
        types=(("T", x.dtype), ("A", arithmetic(x.dtype))),
        note=f"size {op.size}",
    )


@kernel(Softmax, LogSoftmax, Hardmax, follows=True)
def softmax(op: Softmax | LogSoftmax | Hardmax, y: Tensor, x: Tensor) -> Answer:
    """Return exponentials over an axis that add up to 1, their logarithms, or their limit."""
    refused = need_dtypes(FLOATS, y, x)
    if refused:
        return refused
    outer, count, inner = fold_to_3d(x, op.axis)
    if max(count, inner) >= 2**31:
        return f"{count} x {inner} elements"
    rows = inner == 1 and not isinstance(op, Hardmax)
    warps = 8 if rows and count > 128 else 1
    entry = "hardmax" if isinstance(op, Hardmax) else "softmax_columns"
    blocks = outer if rows else ceil_div(outer * inner, THREADS)
    sizes = () if rows else (np.int64(outer * inner),)
    return Launch(
        "softmax.cu",
        "softmax_rows" if rows else entry,
        grid=(blocks if count else 0, 1, 1),
        block=32 * warps if rows else THREADS,
        args=(x, y, *sizes, np.int32(count), *(() if rows else (np.int32(inner),))),
        types=(("X", x.dtype), ("A", arithmetic(x.dtype))),
        constants=(("WARPS", warps), ("LOGARITHM", isinstance(op, LogSoftmax))),
        note=f"{outer} x {count}" if inner == 1 else f"{outer} x {count} x {inner}",
    )


def fold_to_3d(x: Tensor, axis: int) -> Ints:
    """Return the sizes in memory outside of, along and inside of an axis."""
    rank = x.rank
    axes = order(rank, x.format)
    place = axes.index(normalize_axis(axis, rank))
    sizes = [x.dims[a] for a in axes]
    return prod(sizes[:place]), sizes[place], prod(sizes[place + 1 :])
