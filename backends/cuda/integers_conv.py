"""Convolutions of bytes as matrix products on tensor cores.

Images lie channels last. One whose channels are not whole words of four, the first layer's, is
packed into such first.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    BYTES,
    MOST_ELEMENTS,
    VECTORS,
    IntegerProduct,
    Quantization,
    in_sixteens,
    multiply_integers,
    need_bytes,
)
from .launch import Launch
from .layout import Ints, ceil_div, strides
from .menu import LAST, PLAIN, Formats
from .operands import Packed, Scratch, Tensor
from .windows import divided_image, pack_table

Convolution = ConvInteger | QLinearConv


def integer_formats(op: Convolution, x: Tensor, w: Tensor) -> Formats:
    """Return the formats of the input and of the result: channels last where it pays.

    A filter of one channel, which has no product of matrices, takes either.
    """
    if w.data is None or x.rank not in (3, 4) or not {x.dtype, w.dtype} <= BYTES:
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
    refused = need_bytes((y, x, w), quantization, target) or _need_image(op, y, x, w)
    if refused:
        return refused
    image = _Image(x, w.dims[1], x.strides)
    if w.dims[1] % VECTORS[-1]:
        if quantization.shifts_b:
            return f"{w.dims[1]} channels, of weights with zero points"
        image = _packed(x, w)
    view = window(op, x.dims[2:], w.dims[2:])
    product = _product(op.group, (y, x, w), image, view, quantization)
    return (*image.launches, multiply_integers(product, target))


def _need_image(op: Convolution, y: Tensor, x: Tensor, w: Tensor) -> str:
    """Return what does not suit `mma_integer.cu`; empty where all does."""
    channels = w.dims[1]
    if w.data is None or x.rank not in (3, 4):
        return "weights of run time" if w.data is None else f"{x.rank - 2} spatial axes"
    if not y.is_channels_last or x.is_channels_last != (channels % VECTORS[-1] == 0):
        return "an image in another format"
    if op.group > 1 and channels % VECTORS[0]:
        return f"groups of {channels} channels"
    size = x.size // channels * ceil_div(channels, 8) * 8
    if max(x.dims[2:]) > MOST_EXTENT or size >= MOST_ELEMENTS:
        return f"an image of {' x '.join(map(str, x.dims))}"
    return ""


@dataclass(frozen=True, slots=True)
class _Image:
    """An image as it is read.

    Attributes:
        a: where it lies.
        channels: of one group, in memory.
        moves: its strides: image, channel, spatial axes.
        launches: what brings it there.
    """

    a: Tensor | Scratch
    channels: int
    moves: Ints
    launches: tuple[Launch, ...] = ()

    @property
    def vector(self) -> int:
        """Channels that are copied at once."""
        return next(v for v in VECTORS if self.channels % v == 0)

    def table(self, w: Tensor, view: Window) -> Packed:
        """Return where the elements of a window lie, see `pack_table`."""
        order = (self.channels, view.kernel, view.dilations, self.moves[1:], self.vector)
        names = ("channels", "kernel", "dilations", "moves", "vector")
        pack = partial(pack_table, **dict(zip(names, order, strict=True)))
        return Packed((w.value,), ("table", *order), pack)


def _packed(x: Tensor, w: Tensor) -> _Image:
    """Return an image whose channels are filled up to whole words, which meet zeros."""
    channels = 4 if w.dims[1] < 4 else ceil_div(w.dims[1], 8) * 8
    packed, launch = packed_image(x, channels, x.dims[-1], 0)
    moves = strides((x.dims[0], channels, *x.dims[2:]), Format.CHANNELS_LAST)
    return _Image(packed, channels, moves, (launch,))


def _product(
    group: int,
    operands: tuple[Tensor, Tensor, Tensor],
    image: _Image,
    view: Window,
    quantization: Quantization,
) -> IntegerProduct:
    """Return a convolution as a product.

    Args:
        group: number of groups.
        operands: y, x and w.
        image: how x is read.
        view: the windows.
        quantization: what the integers stand for.
    """
    y, x, w = operands
    output, filters = y.dims[2:], w.dims[0] // group
    terms = prod(view.kernel) * image.channels
    ldb = ceil_div(terms, VECTORS[0]) * VECTORS[0]
    pixels = prod(view.kernel) == 1 and not any(view.pads_begin + view.pads_end)
    pack = partial(pack_integer_filters, groups=group, channels=image.channels)
    return IntegerProduct(
        y=y,
        a=image.a,
        b=Packed((w.value,), ("integer filters", group, image.channels), pack),
        sums=Packed((w.value,), "sums of filters", sums_of_filters),
        types=(x.dtype, w.dtype),
        shape=(prod(y.dims) // y.dims[1], filters, terms),
        lda=0,
        ldb=ldb,
        ldc=y.row,
        quantization=quantization,
        batch=(group, image.channels, filters * ldb, filters),
        rows=PIXELS if pixels else WINDOWS,
        vector=image.vector,
        table=None if pixels else image.table(w, view),
        image=divided_image(x.dims[2:], output, view, image.moves),
    )


# ── packing, on the host ─────────────────────────────────────────────────────────────────────────


def pack_integer_filters(w: Array, groups: int, channels: int) -> Array:
    """Return weights as `pack_filters` does, in rows of sixteens."""
    return in_sixteens(pack_filters(w, groups, channels))


def sums_of_filters(w: Array) -> Array:
    """Return the sums of weights [m, c, *kernel] of each filter, modulo 2**32."""
    return w.reshape(w.shape[0], -1).sum(1, dtype=np.int64).astype(np.int32)
