"""Convolutions: a menu of ways, of which the first that fits is taken.

Images lie channels last wherever a convolution reads or writes them, so that neighbouring elements
of a window are neighbours in memory. A first layer, of few channels, reads the plain order.
"""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from ...runtime.backend import Format
from ...runtime.dtypes import float32
from ...runtime.ops.conv import Conv, ConvTranspose
from ...runtime.ops.window import Window, transposed_window, window
from ...runtime.types import Array
from .launch import Ints32, Launch, Packed, Tensor
from .layout import Ints, ceil_div
from .matmul import PIXELS, WINDOWS, Product, multiply, vector_of
from .registry import Answer, Setting, kernel, need_float32
from .spatial import geometry, spatial_strides
from .tail import Tail

THREADS = 128
#: Fewer channels than this are read in the plain order: the vectors would be mostly padding.
LEAST_CHANNELS = 8


def conv_formats(
    op: Conv, y: Tensor, x: Tensor, w: Tensor, b: Tensor | None = None, *, setting: Setting
) -> tuple[Format, Format]:
    """Return the formats of the input and of the result."""
    if setting.options.conv == "naive" or x.rank > 4 or w.data is None:
        return Format.PLAIN, Format.PLAIN
    few = x.dims[1] < LEAST_CHANNELS
    return Format.PLAIN if few else Format.CHANNELS_LAST, Format.CHANNELS_LAST


@kernel(Conv, tail=True, formats=conv_formats)
def conv(
    op: Conv,
    y: Tensor,
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    tail: Tail,
    setting: Setting,
) -> Answer:
    """Convolve by the first way that fits: naive where asked for, depthwise, implicit GEMM."""
    refused = need_float32(y, x, w, b)
    if refused:
        return refused
    if x.rank > 5:
        return f"{x.rank - 2} spatial axes"
    if max(x.size, y.size) >= 2**31:
        return f"{max(x.size, y.size)} elements"
    view = window(op, x.dims[2:], w.dims[2:])
    if x.format is y.format is Format.PLAIN:
        return naive(op, y, x, w, b, view, tail)
    if _is_depthwise(op, x, w):
        return depthwise(y, x, w, b, view, tail)
    return implicit_gemm(op, y, x, w, b, view, tail, setting)


# ── implicit GEMM ────────────────────────────────────────────────────────────────────────────────


def implicit_gemm(
    op: Conv,
    y: Tensor,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    view: Window,
    tail: Tail,
    setting: Setting,
) -> Answer:
    """Return the convolution as a matrix product: output pixels x filters, summed over windows."""
    groups, filters, channels = op.group, w.dims[0] // op.group, w.dims[1]
    taps = prod(view.kernel)
    is_row = prod(view.kernel) == 1 and not any(view.pads_begin + view.pads_end)
    pixels = is_row and x.is_channels_last
    ldb = ceil_div(filters, 4) * 4
    vector = vector_of(channels, x.dims[1]) if x.is_channels_last else 1
    product = Product(
        a=x,
        b=Packed((w.value,), ("windows", groups), partial(pack_windows, groups=groups)),
        c=y,
        m=prod(y.dims) // y.dims[1],
        n=filters,
        k=taps * channels,
        lda=0,
        ldb=ldb,
        ldc=y.dims[1],
        batch=(groups, channels * x.strides[1], taps * channels * ldb, filters),
        bias=b,
        rows=PIXELS if pixels else WINDOWS,
        vector_a=vector,
        across=not x.is_channels_last,
        table=None if pixels else _table(w, x, view, channels, vector),
        image=_image(x, y, view),
    )
    return multiply(product, tail, setting)


def _image(x: Tensor, y: Tensor, view: Window) -> Ints32:
    """Return the struct `Image` of gemm.cu; one spatial axis counts as the width."""
    flat = x.rank == 3
    one = (1,) if flat else ()
    height, width = (*one, *x.dims[2:])
    out_height, out_width = (*one, *y.dims[2:])
    stride_h, stride_w = (*one, *view.strides)
    pad_h, pad_w = (*(0 for _ in one), *view.pads_begin)
    moves = x.strides
    row, column = (0, moves[2]) if flat else moves[2:]
    sizes = (height, width, out_height, out_width)
    return Ints32((*sizes, stride_h, stride_w, pad_h, pad_w, moves[0], row, column))


def _table(w: Tensor, x: Tensor, view: Window, channels: int, vector: int) -> Packed:
    """Return the array of struct `Window` of gemm.cu: where the elements of a window lie."""
    moves = x.strides
    layout = ("table", channels, view.kernel, view.dilations, moves[1:], vector)
    pack = partial(
        pack_table, channels=channels, kernel=view.kernel, dilations=view.dilations,
        moves=moves[1:], vector=vector,
    )  # fmt: skip
    return Packed((w.value,), layout, pack)


def pack_windows(w: Array, groups: int) -> Array:
    """Return weights [m, c, *kernel] as [group, kernel * c, m / group], padded to fours."""
    filters, channels = w.shape[0] // groups, w.shape[1]
    taps = prod(w.shape[2:])
    packed = np.zeros((groups, taps * channels, ceil_div(filters, 4) * 4), w.dtype)
    ordered = w.reshape(groups, filters, channels, taps).transpose(0, 3, 2, 1)
    packed[..., :filters] = ordered.reshape(groups, taps * channels, filters)
    return packed


def pack_table(
    w: Array, channels: int, kernel: Ints, dilations: Ints, moves: Ints, vector: int
) -> Array:
    """Return (offset, row | column << 16) of every `vector`-th element of a window, int32.

    Args:
        w: the weights, whose elements play no part.
        channels: of one group.
        kernel: the window.
        dilations: distances of its elements.
        moves: strides of the input: channel, then the spatial axes.
        vector: elements that are copied at once, neighbouring channels.
    """
    places = np.indices(kernel).reshape(len(kernel), -1) * np.array(dilations)[:, None]
    steps = np.array(moves[1:])[:, None]
    offsets = (places * steps).sum(0)[:, None] + np.arange(0, channels, vector) * moves[0]
    rows, columns = places if len(kernel) == 2 else (np.zeros_like(places[0]), places[0])
    corner = np.broadcast_to((rows | columns << 16)[:, None], offsets.shape)
    return np.stack([offsets, corner], axis=-1).astype(np.int32).reshape(-1, 2)


# ── other ways ───────────────────────────────────────────────────────────────────────────────────


def _is_depthwise(op: Conv, x: Tensor, w: Tensor) -> bool:
    return 1 < op.group == x.dims[1] == w.dims[0] and x.rank <= 4


def depthwise(
    y: Tensor, x: Tensor, w: Tensor, b: Tensor | None, view: Window, tail: Tail
) -> Launch:
    """Return the convolution of each channel with filters of its own."""
    flat = x.rank == 3
    vector = 4 if x.is_channels_last and y.is_channels_last and x.dims[1] % 4 == 0 else 1
    kernel_h, kernel_w = (1, *view.kernel) if flat else view.kernel
    dilations = (1, *view.dilations) if flat else view.dilations
    image = _image(x, y, view).values
    plane = Ints32(
        (x.dims[1], *image[:6], *dilations, *image[6:8], x.strides[0], x.strides[1], *image[9:])
    )
    weights = Packed((w.value,), "depthwise", pack_depthwise)
    return Launch(
        "depthwise.cu",
        "depthwise",
        grid=(ceil_div(y.size, THREADS * vector), 1, 1),
        block=THREADS,
        args=(x, weights, y, b, *tail.pointers, np.int32(y.size), plane),
        types=(("T", float32),),
        constants=(
            *(("KH", kernel_h), ("KW", kernel_w), ("VECTOR", vector)),
            *(("CHANNELS_LAST", y.is_channels_last), ("BIAS", b is not None)),
        ),
        code=tail.code,
        note=f"{kernel_h}x{kernel_w} {tail.title}".strip(),
    )


def pack_depthwise(w: Array) -> Array:
    """Return weights [c, 1, *kernel] as [kernel, c]."""
    return np.ascontiguousarray(w.reshape(w.shape[0], -1).T)


def naive(
    op: Conv, y: Tensor, x: Tensor, w: Tensor, b: Tensor | None, view: Window, tail: Tail
) -> Launch:
    """Return the baseline: one thread, one result. It takes weights of run time too."""
    sizes = (y.dims[1], y.dims[1] // op.group, w.dims[1])
    return _direct("conv_naive", y, x, w, b, view, tail, sizes)


def _direct(
    entry: str,
    y: Tensor,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    view: Window,
    tail: Tail,
    sizes: Ints,
) -> Launch:
    return Launch(
        "conv.cu",
        entry,
        grid=(ceil_div(y.size, THREADS), 1, 1),
        block=THREADS,
        args=(
            *(x, w, y, b, *tail.pointers, np.int64(y.size)),
            *map(np.int32, sizes),
            spatial_strides(x),
            geometry(x, y, view),
        ),
        types=(("T", float32),),
        constants=(("CHANNELS_LAST", y.is_channels_last), ("BIAS", b is not None)),
        code=tail.code,
        note=tail.title,
    )


@kernel(ConvTranspose, tail=True)
def conv_transpose(
    op: ConvTranspose,
    y: Tensor,
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    tail: Tail,
    setting: Setting,
) -> Answer:
    """Collect, for each result, what arrives there; one thread a result."""
    refused = need_float32(y, x, w, b)
    if refused:
        return refused
    if x.rank > 5:
        return f"{x.rank - 2} spatial axes"
    view = transposed_window(op, x.dims[2:], w.dims[2:])
    sizes = (y.dims[1], w.dims[1], x.dims[1] // op.group)
    return _direct("conv_transposed", y, x, w, b, view, tail, sizes)
