"""Convolutions without a matrix: one thread a result, and one filter a channel."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from ...runtime.backend import Format
from ...runtime.dtypes import float32, int32
from ...runtime.ir import Value
from ...runtime.ops.quantize import ConvInteger, QLinearConv
from ...runtime.ops.window import Window, window
from ...runtime.types import Array, TensorType
from .compile import arithmetic
from .convolution import Convolution
from .launch import Ints32, Launch, Packed, Scratch, Tensor
from .layout import Ints, ceil_div
from .menu import LAST, PLAIN, Formats
from .registry import Answer
from .spatial import geometry, spatial_strides
from .tail import Tail, no_tail
from .windows import image_of

THREADS = 128


# ── naive ────────────────────────────────────────────────────────────────────────────────────────


def naive_formats(conv: Convolution) -> Formats:
    """Return the plain order; `naive` takes others too."""
    return PLAIN


def naive(conv: Convolution, variant: str = "") -> Launch:
    """Return the baseline: one thread, one result. It takes weights of run time too."""
    return _by_threads(
        "conv_naive", (conv.y, conv.x, conv.w, conv.b), conv.view, _sizes(conv), conv.tail
    )


def naive_transposed(conv: Convolution, variant: str = "") -> Launch:
    """Return the transposed baseline: each thread collects what arrives at one result."""
    operands = (conv.y, conv.x, conv.w, conv.b)
    return _by_threads("conv_transposed", operands, conv.view, _sizes(conv), conv.tail)


def _sizes(conv: Convolution) -> Ints:
    return conv.y.dims[1], conv.filters, conv.channels


def naive_time(conv: Convolution) -> float:
    """Return the microseconds that one thread a result is expected to take."""
    return 3.0 + conv.macs / 1.75e6 + 0.07 * conv.taps * conv.channels


def direct_sums(
    op: ConvInteger | QLinearConv,
    y: Tensor | Scratch,
    dims: Ints,
    x: Tensor,
    w: Tensor,
    zeros: tuple[Tensor | None, Tensor | None],
    format: Format = Format.PLAIN,
) -> Launch:
    """Return the convolution of integers less their zero points, in int32.

    Args:
        op: its attributes.
        y: where the sums go.
        dims: their shape.
        x: the input.
        w: the weights.
        zeros: of x, and of all weights or one a filter.
        format: of the sums.
    """
    view = window(op, x.dims[2:], w.dims[2:])
    sizes = (dims[1], dims[1] // op.group, w.dims[1])
    result = Tensor(Value("sums", TensorType(int32, dims)), format)
    launch = _by_threads("conv_naive", (result, x, w, None), view, sizes, no_tail(int32), zeros)
    return replace(launch, args=(x, w, y, *launch.args[3:]))


def _by_threads(
    entry: str,
    operands: tuple[Tensor, Tensor, Tensor, Tensor | None],
    view: Window,
    sizes: Ints,
    tail: Tail,
    zeros: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Launch:
    """Return a launch of `conv.cu`.

    Args:
        entry: its function.
        operands: y, x, w and the bias.
        view: the windows.
        sizes: channels of the result, those of a group of it, and those of a group of the input.
        tail: applied to every result.
        zeros: zero points of x, and of all weights or one a filter.
    """
    y, x, w, b = operands
    x_zero, w_zero = zeros
    step = 1 if w_zero is not None and w_zero.size > 1 else 0
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
            *((x_zero, w_zero, np.int32(step)) if entry == "conv_naive" else ()),
        ),
        types=(("X", x.dtype), ("W", w.dtype), ("Y", y.dtype), ("A", arithmetic(y.dtype))),
        constants=(
            *(("CHANNELS_LAST", y.is_channels_last), ("BIAS", b is not None)),
            *(("ZERO_X", x_zero is not None), ("ZERO_W", w_zero is not None)),
        ),
        code=tail.code,
        note=tail.title,
    )


# ── depthwise ────────────────────────────────────────────────────────────────────────────────────


def depthwise_formats(conv: Convolution) -> Formats | str:
    """Return the formats of `depthwise`, or why it cannot be used."""
    if conv.group == 1:
        return "one group"
    if not conv.is_depthwise:
        return f"groups of {conv.channels} channels and {conv.filters} filters, not 1 and 1"
    return conv.need_float32() or conv.need_plane() or conv.need_constants() or LAST


def depthwise(conv: Convolution, variant: str = "") -> Answer:
    """Return the convolution of each channel with a filter of its own, in float32."""
    x, y, view = conv.x, conv.y, conv.view
    flat = x.rank == 3
    vector = 4 if x.is_channels_last and y.is_channels_last and x.dims[1] % 4 == 0 else 1
    kernel_h, kernel_w = (1, *view.kernel) if flat else view.kernel
    dilations = (1, *view.dilations) if flat else view.dilations
    image = image_of(x.dims[2:], y.dims[2:], view, x.strides).values
    plane = Ints32(
        (
            *(x.dims[1], *image[:6], *dilations, *image[6:8]),
            *(x.strides[0], x.strides[1], *image[9:], y.row),
        )
    )
    return Launch(
        "depthwise.cu",
        "depthwise",
        grid=(ceil_div(y.size, THREADS * vector), 1, 1),
        block=THREADS,
        args=(
            *(x, Packed((conv.w.value,), "depthwise", pack_depthwise), y, conv.b),
            *(*conv.tail.pointers, np.int32(y.size), plane),
        ),
        types=(("T", float32),),
        constants=(
            *(("KH", kernel_h), ("KW", kernel_w), ("VECTOR", vector)),
            *(("CHANNELS_LAST", y.is_channels_last), ("BIAS", conv.b is not None)),
        ),
        code=conv.tail.code,
        note=f"{kernel_h}x{kernel_w} {conv.tail.title}".strip(),
        pitched=(x, y),
    )


def depthwise_time(conv: Convolution) -> float:
    """Return the microseconds that the memory and the arithmetic of `depthwise` take."""
    traffic = conv.x.dtype.itemsize * (prod(conv.x.dims) + conv.y.size)
    return 1.5 + max(traffic / 3e6, conv.macs / 6e6)


def pack_depthwise(w: Array) -> Array:
    """Return weights [c, 1, *kernel] as [kernel, c]."""
    return np.ascontiguousarray(w.reshape(w.shape[0], -1).T)
