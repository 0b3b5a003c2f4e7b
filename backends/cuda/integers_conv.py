"""Convolutions of bytes as matrix products on tensor cores.

Images lie channels last. One whose channels are not whole words of four, the first layer's, is
packed into such first.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from ...runtime.backend import Format
from ...runtime.ops.quantize import ConvInteger, QLinearConv
from ...runtime.ops.window import Window, window
from ...runtime.types import Array
from .compile import Target
from .half import PIXELS, WINDOWS
from .half_conv import MOST_EXTENT, pack_filters
from .half_first import packed_image
from .integers import (
    KINDS,
    VECTORS,
    IntegerProduct,
    Quantization,
    in_sixteens,
    multiply_integers,
    need_bytes,
)
from .launch import Ints32, Launch, Packed, Scratch, Tensor
from .layout import Ints, ceil_div, strides
from .menu import LAST, PLAIN, Formats
from .windows import divisor, image_of, pack_table

Convolution = ConvInteger | QLinearConv


def integer_formats(op: Convolution, x: Tensor, w: Tensor) -> Formats:
    """Return the formats of the input and of the result: channels last where it pays.

    A filter of one channel, which has no product of matrices, takes either.
    """
    if w.data is None or x.rank not in (3, 4) or not {x.dtype, w.dtype} <= KINDS.keys():
        return PLAIN
    channels = w.dims[1]
    if op.group == 1:
        return LAST if channels % VECTORS[-1] == 0 else (Format.PLAIN, Format.CHANNELS_LAST)
    return LAST if channels == 1 or channels % VECTORS[0] == 0 else PLAIN


def integer_convolution(
    op: Convolution, y: Tensor, x: Tensor, w: Tensor, quantization: Quantization, target: Target
) -> tuple[Launch, ...] | str:
    """Return a convolution of integers less their zero points, or why it needs another kernel.

    Args:
        op: its attributes.
        y: the result: int32, or bytes where there are scales; channels last.
        x: the input; channels last where its channels are whole words.
        w: constant weights.
        quantization: what the integers stand for.
        target: the GPU.
    """
    refused = need_bytes(x, w, y, quantization)
    if refused:
        return refused
    if w.data is None or x.rank not in (3, 4) or not y.is_channels_last:
        return "weights of run time, or an image that does not lie channels last"
    if max(x.dims[2:]) > MOST_EXTENT:
        return f"an image of {' x '.join(map(str, x.dims[2:]))}"
    channels = w.dims[1]
    if op.group > 1 and channels % VECTORS[0]:
        return f"groups of {channels} channels"
    packing: tuple[Launch, ...] = ()
    image: Tensor | Scratch = x
    moves = x.strides
    if channels % VECTORS[-1]:
        if quantization.shifts_b or x.is_channels_last:
            return f"{channels} channels of weights with zero points"
        channels = 4 if channels < 4 else ceil_div(channels, 8) * 8
        image, launch = packed_image(x, channels, x.dims[-1], 0)
        moves = strides((x.dims[0], channels, *x.dims[2:]), Format.CHANNELS_LAST)
        packing = (launch,)
    elif not x.is_channels_last:
        return "an image that does not lie channels last"
    view = window(op, x.dims[2:], w.dims[2:])
    product = _product(op.group, channels, (y, x, w), view, moves, quantization)
    last = multiply_integers(replace(product, a=image), target)
    return (*packing, last)


def _product(
    group: int,
    channels: int,
    operands: tuple[Tensor, Tensor, Tensor],
    view: Window,
    moves: Ints,
    quantization: Quantization,
) -> IntegerProduct:
    """Return a convolution as a product.

    Args:
        group: number of groups.
        channels: of one of them, as they lie in memory.
        operands: y, x and w.
        view: the windows.
        moves: strides of the image in memory.
        quantization: what the integers stand for.
    """
    y, x, w = operands
    taps, filters = prod(view.kernel), w.dims[0] // group
    ldb = ceil_div(taps * channels, VECTORS[0]) * VECTORS[0]
    pixels = taps == 1 and not any(view.pads_begin + view.pads_end)
    vector = next(v for v in VECTORS if channels % v == 0)
    output = y.dims[2:]
    image = image_of(x.dims[2:], output, view, moves)
    table = ("table", channels, view.kernel, view.dilations, moves[1:], vector)
    pack = partial(
        pack_table,
        channels=channels,
        kernel=view.kernel,
        dilations=view.dilations,
        moves=moves[1:],
        vector=vector,
    )
    return IntegerProduct(
        y=y,
        a=x,
        b=Packed(
            (w.value,),
            ("integer filters", group, channels),
            partial(pack_integer_filters, groups=group, channels=channels),
        ),
        sums=Packed((w.value,), "sums of filters", sums_of_filters),
        types=(x.dtype, w.dtype),
        shape=(prod(y.dims) // y.dims[1], filters, taps * channels),
        lda=0,
        ldb=ldb,
        ldc=y.row,
        quantization=quantization,
        batch=(group, channels, filters * ldb, filters),
        rows=PIXELS if pixels else WINDOWS,
        vector=vector,
        table=None if pixels else Packed((w.value,), table, pack),
        image=Ints32((*image.values, *divisor(prod(output)), *divisor(output[-1]))),
    )


# ── packing, on the host ─────────────────────────────────────────────────────────────────────────


def pack_integer_filters(w: Array, groups: int, channels: int) -> Array:
    """Return weights as `pack_filters` does, in rows of sixteens."""
    return in_sixteens(pack_filters(w, groups, channels))


def sums_of_filters(w: Array) -> Array:
    """Return the sums of weights [m, c, *kernel] of each filter, modulo 2**32."""
    return w.reshape(w.shape[0], -1).sum(1, dtype=np.int64).astype(np.int32)
