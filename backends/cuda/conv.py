"""Convolutions: a menu of ways, of which the first that fits is taken.

Images lie channels last wherever a convolution reads or writes them, so that neighbouring elements
of a window are neighbours in memory. A first layer, of few channels, reads the plain order.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from ...runtime.backend import Format
from ...runtime.dtypes import FLOATS, float32, int32
from ...runtime.ir import Value
from ...runtime.ops.conv import Conv, ConvTranspose
from ...runtime.ops.quantize import ConvInteger, QLinearConv
from ...runtime.ops.window import Window, transposed_window, window
from ...runtime.types import Array, TensorType
from .compile import arithmetic
from .half_conv import half_convolution, half_formats
from .half_words import HALVES
from .launch import Ints32, Launch, Packed, Scratch, Tensor
from .layout import Ints, ceil_div
from .matmul import PIXELS, WINDOWS, Product, multiply, vector_of
from .registry import Answer, Setting, kernel, need_dtypes
from .spatial import geometry, spatial_strides
from .tail import Tail, no_tail
from .windows import image_of, pack_table

THREADS = 128
#: Fewer channels than this are read in the plain order: the vectors would be mostly padding.
LEAST_CHANNELS = 8


def conv_formats(
    op: Conv, y: Tensor, x: Tensor, w: Tensor, b: Tensor | None = None, *, setting: Setting
) -> tuple[Format, Format]:
    """Return the formats of the input and of the result."""
    if setting.options.conv == "naive" or x.rank > 4 or w.data is None:
        return Format.PLAIN, Format.PLAIN
    if x.dtype in HALVES:
        return half_formats(x, w, op.group)
    if x.dtype != float32:
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
    refused = need_dtypes(FLOATS, y, x, w, b)
    if refused:
        return refused
    if x.rank > 5:
        return f"{x.rank - 2} spatial axes"
    view = window(op, x.dims[2:], w.dims[2:])
    plain = x.format is y.format is Format.PLAIN
    if x.dtype in HALVES and not plain:
        return half_convolution(op.group, y, x, w, b, view, tail, setting)
    if plain or x.dtype != float32 or max(x.size, y.size) >= 2**31:
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
        image=image_of(x.dims[2:], y.dims[2:], view, x.strides),
    )
    return multiply(product, tail, setting)


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
    image = image_of(x.dims[2:], y.dims[2:], view, x.strides).values
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
    return _direct("conv_naive", (y, x, w, b), view, sizes, tail.pointers, tail.code, tail.title)


def direct_sums(
    op: ConvInteger | QLinearConv,
    y: Tensor | Scratch,
    dims: Ints,
    x: Tensor,
    w: Tensor,
    zeros: tuple[Tensor | None, Tensor | None],
) -> Launch:
    """Return the convolution of integers less their zero points, in int32.

    Args:
        op: its attributes.
        y: where the sums go.
        dims: their shape.
        x: the input.
        w: the weights.
        zeros: of x, and of all weights or one a filter.
    """
    view = window(op, x.dims[2:], w.dims[2:])
    sizes = (dims[1], dims[1] // op.group, w.dims[1])
    result = Tensor(Value("sums", TensorType(int32, dims)))
    launch = _direct(
        "conv_naive", (result, x, w, None), view, sizes, code=no_tail(int32).code, zeros=zeros
    )
    return replace(launch, args=(x, w, y, *launch.args[3:]))


def _direct(
    entry: str,
    operands: tuple[Tensor, Tensor, Tensor, Tensor | None],
    view: Window,
    sizes: Ints,
    pointers: tuple[Tensor | Packed | None, ...] = (None, None),
    code: str = "",
    title: str = "",
    zeros: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Launch:
    """Return a launch of `conv.cu`; `operands` are y, x, w and the bias."""
    y, x, w, b = operands
    x_zero, w_zero = zeros
    step = 1 if w_zero is not None and w_zero.size > 1 else 0
    return Launch(
        "conv.cu",
        entry,
        grid=(ceil_div(y.size, THREADS), 1, 1),
        block=THREADS,
        args=(
            *(x, w, y, b, *pointers, np.int64(y.size)),
            *map(np.int32, sizes),
            spatial_strides(x),
            geometry(x, y, view),
            *((x_zero, w_zero, np.int32(step)) if entry == "conv_naive" else ()),
        ),
        types=(("X", x.dtype), ("W", w.dtype), ("Y", y.dtype), ("A", arithmetic(y.dtype))),
        constants=(
            *(("CHANNELS_LAST", y.is_channels_last), ("BIAS", b is not None)),
            *(("ZERO_X", x_zero is not None), ("ZERO_W", w_zero is not None)),
        ),
        code=code,
        note=title,
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
    refused = need_dtypes(FLOATS, y, x, w, b)
    if refused:
        return refused
    if x.rank > 5:
        return f"{x.rank - 2} spatial axes"
    view = transposed_window(op, x.dims[2:], w.dims[2:])
    sizes = (y.dims[1], w.dims[1], x.dims[1] // op.group)
    operands = (y, x, w, b)
    return _direct("conv_transposed", operands, view, sizes, tail.pointers, tail.code, tail.title)
