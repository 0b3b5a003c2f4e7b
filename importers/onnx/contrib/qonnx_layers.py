"""Layers that qonnx's transformations write: lowered for FINN, or with the channels last.

QONNX's own implementation defines them. Most are ONNX's operators in the other layout; the
filters of a Conv are [out, …, in].
"""

from __future__ import annotations

from itertools import product

import numpy as np

from .builder import NodeBuilder
from .catalogue import CHANNELS_LAST, QONNX
from .convolution import channels_first, channels_last
from .declaration import Anything, T, contrib

_END = int(np.iinfo(np.int64).max)


@contrib("Conv", domain=CHANNELS_LAST)
def conv(
    b: NodeBuilder,
    x: T,
    w: T,
    bias: T | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> str:
    """Conv of [n, …, channels] and filters [out, …, in]."""
    y = b.Conv(
        channels_first(b, x),
        channels_first(b, w),
        bias,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return channels_last(b, y)


@contrib("BatchNormalization", domain=CHANNELS_LAST)
def batch_normalization(
    b: NodeBuilder,
    x: T,
    scale: T,
    bias: T,
    mean: T,
    variance: T,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> str:
    """BatchNormalization over the last axis."""
    y = b.BatchNormalization(
        channels_first(b, x),
        scale,
        bias,
        mean,
        variance,
        epsilon=epsilon,
        momentum=momentum,
        training_mode=training_mode,
    )
    return channels_last(b, y)


def max_pool(
    b: NodeBuilder,
    x: T,
    *,
    kernel_shape: tuple[int, ...],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    storage_order: int = 0,
    strides: tuple[int, ...] | None = None,
) -> str:
    """MaxPool of [n, …, channels]."""
    y = b.MaxPool(
        channels_first(b, x),
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        dilations=dilations,
        kernel_shape=kernel_shape,
        pads=pads,
        storage_order=storage_order,
        strides=strides,
    )
    return channels_last(b, y)


@contrib("AveragePool", domain=CHANNELS_LAST)
def average_pool(
    b: NodeBuilder,
    x: T,
    *,
    kernel_shape: tuple[int, ...],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> str:
    """AveragePool of [n, …, channels]."""
    y = b.AveragePool(
        channels_first(b, x),
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        dilations=dilations,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return channels_last(b, y)


def im2col(
    b: NodeBuilder,
    x: T,
    *,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    input_shape: str = "",
    pad_amount: tuple[int, ...] = (0, 0, 0, 0),
    pad_value: int = 0,
    depthwise: int = 0,
    dilations: tuple[int, ...] = (1, 1),
) -> str:
    """Windows of [n, height, width, channels] as [n, rows, columns, kernel * channels].

    Within a window, channels vary fastest. `input_shape` and `depthwise` tell FINN how to build it.
    """
    b.rank(x, 4)
    sizes = {len(kernel_size), len(stride), len(dilations), len(pad_amount) // 2}
    if sizes != {2} or len(pad_amount) % 2:
        raise b.error(
            f"kernel_size={kernel_size}, stride={stride}, dilations={dilations} and "
            f"pad_amount={pad_amount} must be of two axes"
        )
    if any(pad_amount):
        top, left, bottom, right = pad_amount
        x = b.Pad(x, b.ints(0, top, left, 0, 0, bottom, right, 0), b.number(pad_value, x))
    axes, steps = b.ints(1, 2), b.ints(*stride)
    parts: list[str] = []
    for at in product(*map(range, kernel_size)):
        starts = [i * d for i, d in zip(at, dilations, strict=True)]
        after = [(k - 1 - i) * d for i, k, d in zip(at, kernel_size, dilations, strict=True)]
        ends = [-n if n else _END for n in after]
        parts.append(b.Slice(x, b.ints(*starts), b.ints(*ends), axes, steps))
    return parts[0] if len(parts) == 1 else b.Concat(*parts, axis=-1)


def quant_avg_pool(
    b: NodeBuilder,
    x: T,
    *,
    kernel: int,
    stride: int,
    ibits: int,
    obits: int,
    signed: int = 0,
    data_layout: str = "NCHW",
) -> str:
    """Sums of windows of integers, shifted to the right so that they fit into `obits` bits."""
    if data_layout not in ("NCHW", "NHWC"):
        raise b.error(f"data_layout='{data_layout}'; expected NCHW or NHWC")
    last = data_layout == "NHWC"
    x = channels_first(b, x) if last else x
    mean = b.AveragePool(x, kernel_shape=(kernel, kernel), strides=(stride, stride))
    total = b.Round(b.scaled(mean, kernel * kernel))
    widest = ((2**ibits - 1) * kernel * kernel).bit_length()
    y = b.Floor(b.scaled(total, 0.5 ** max(widest - obits, 0)))
    return channels_last(b, y) if last else y


def xnor_popcount(b: NodeBuilder, a: T, w: T) -> str:
    """How many of the bits in a row of `a` and a column of `w` are equal."""
    one, two, half = (b.number(n, a) for n in (1, 2, 0.5))
    signs = b.MatMul(b.Sub(b.Mul(a, two), one), b.Sub(b.Mul(w, two), one))
    bits = b.cast(b.size(a, -1), b.dtype(a))
    return b.Mul(b.Add(signs, bits), half)


def debug_marker(b: NodeBuilder, x: Anything, *, export_debug_name: str = "") -> str:
    """The tensor itself, which qonnx also keeps under another name."""
    return b.Identity(x)


contrib("MaxPool", domain=CHANNELS_LAST)(max_pool)
for _domain in QONNX:
    contrib("MaxPoolNHWC", domain=_domain)(max_pool)
    contrib("Im2Col", domain=_domain)(im2col)
    contrib("QuantAvgPool2d", domain=_domain)(quant_avg_pool)
    contrib("XnorPopcountMatMul", domain=_domain)(xnor_popcount)
    contrib("DebugMarker", domain=_domain)(debug_marker)
