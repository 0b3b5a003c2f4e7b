"""Normalizations: batch-norm (where it was not folded), LRN, softmax."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from ...runtime.dtypes import float32
from ...runtime.ops.norm import LRN, BatchNormalization, LogSoftmax, Softmax
from ...runtime.ops.shapes import normalize_axis
from ...runtime.types import Array
from .launch import Launch, Packed, Tensor
from .layout import Ints, ceil_div, order
from .registry import Answer, Setting, kernel, need_float32
from .tail import Tail

THREADS = 128


@kernel(BatchNormalization, tail=True, follows=True)
def batch_normalization(
    op: BatchNormalization,
    y: Tensor,
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    tail: Tail,
    setting: Setting,
) -> Answer:
    """Scale and shift every channel by what its statistics come down to."""
    refused = need_float32(y, x, scale, b, mean, var)
    if refused:
        return refused
    if op.training_mode:
        return "training_mode=1"
    channels = x.dims[1] if x.rank > 1 else 1
    inner = 1 if x.is_channels_last else prod(x.dims[2:])
    vector = next(v for v in (4, 2, 1) if (channels if inner == 1 else inner) % v == 0)
    statistics = (scale, b, mean, var)
    values = tuple(operand.value for operand in statistics)
    pack = partial(pack_batch_norm, epsilon=op.epsilon)
    fixed = all(operand.data is not None for operand in statistics)
    own = (Packed(values, ("batch_norm", op.epsilon), pack),) if fixed else statistics
    return Launch(
        "scale.cu",
        "scale" if fixed else "normalize",
        grid=(ceil_div(y.size, THREADS * vector), 1, 1),
        block=THREADS,
        args=(
            *(x, y, *own, *tail.pointers),
            *(np.int64(y.size), np.int32(channels), np.int32(inner)),
            *(() if fixed else (np.float32(op.epsilon),)),
        ),
        types=(("T", float32),),
        constants=(("VECTOR", vector), ("CHANNELS_LAST", inner == 1)),
        code=tail.code,
        note=tail.title,
    )


def pack_batch_norm(scale: Array, b: Array, mean: Array, var: Array, epsilon: float) -> Array:
    """Return [c, 2]: by what each channel is multiplied, and what is added then."""
    factor = scale.astype(np.float64) / np.sqrt(var.astype(np.float64) + epsilon)
    return np.stack([factor, b - mean * factor], axis=-1).astype(scale.dtype)


@kernel(LRN, follows=True)
def lrn(op: LRN, y: Tensor, x: Tensor) -> Answer:
    """Divide by a power of the squares of neighbouring channels."""
    refused = need_float32(y, x)
    if refused:
        return refused
    before = (op.size - 1) // 2
    sizes = (x.dims[1], x.strides[1], before, op.size - 1 - before)
    return Launch(
        "lrn.cu",
        "lrn",
        grid=(ceil_div(y.size, THREADS), 1, 1),
        block=THREADS,
        args=(
            *(x, y, np.int64(y.size), *map(np.int32, sizes)),
            *map(np.float32, (op.alpha / op.size, op.beta, op.bias)),
        ),
        types=(("T", float32),),
        note=f"size {op.size}",
    )


@kernel(Softmax, LogSoftmax, follows=True)
def softmax(op: Softmax | LogSoftmax, y: Tensor, x: Tensor) -> Answer:
    """Return exponentials over an axis that add up to 1, or their logarithms."""
    refused = need_float32(y, x)
    if refused:
        return refused
    outer, count, inner = fold_to_3d(x, op.axis)
    if max(count, inner) >= 2**31:
        return f"{count} x {inner} elements"
    logarithm = isinstance(op, LogSoftmax)
    warps = 1 if count <= 128 else 8
    if inner == 1:
        return Launch(
            "softmax.cu",
            "softmax_rows",
            grid=(outer if count else 0, 1, 1),
            block=32 * warps,
            args=(x, y, np.int32(count)),
            types=(("T", float32),),
            constants=(("WARPS", warps), ("LOGARITHM", logarithm)),
            note=f"{outer} x {count}",
        )
    return Launch(
        "softmax.cu",
        "softmax_columns",
        grid=(ceil_div(outer * inner, THREADS) if count else 0, 1, 1),
        block=THREADS,
        args=(x, y, np.int64(outer * inner), np.int32(count), np.int32(inner)),
        types=(("T", float32),),
        constants=(("WARPS", 1), ("LOGARITHM", logarithm)),
        note=f"{outer} x {count} x {inner}",
    )


def fold_to_3d(x: Tensor, axis: int) -> Ints:
    """Return the sizes in memory outside of, along and inside of an axis."""
    rank = x.rank
    axes = order(rank, x.format)
    place = axes.index(normalize_axis(axis, rank))
    sizes = [x.dims[a] for a in axes]
    return prod(sizes[:place]), sizes[place], prod(sizes[place + 1 :])
