"""Depthwise convolutions of bytes whose results are bytes, in one kernel."""

from __future__ import annotations

from math import prod

import numpy as np

from ....runtime.ir.dtypes import float32
from ....runtime.ir.types import Array
from ....runtime.ops.quantize import QLinearConv
from ....runtime.ops.window import Window, window
from ..codegen.rounding import narrow
from ..gemm.int8 import BYTES, MAX_ELEMENTS, Quantization
from ..recipe.launch import Launch, each
from ..recipe.operands import Packed, Tensor, ceil_div, divisor
from ..recipe.targets import Target

#: Channels of a thread.
CHANNELS = 4
THREADS = 128
#: Taps of a window, which are unrolled, and columns that a thread reads of a row.
MAX_TAPS, MAX_REACH = 49, 32
#: Adjacent pixels of a thread, which reads columns once for all of them, where there are that many
#: threads for each multiprocessor; and columns that are not too many for that. On an H200, layers
#: of 32 images take 12 to 37 % less time then; with windows that are two pixels apart, 8 of them
#: take as long as 4.
RUNS, BUSY, FEW_COLUMNS = (8, 4, 2), 1024, 12


def convolution(
    op: QLinearConv, y: Tensor, x: Tensor, w: Tensor, quantization: Quantization, target: Target
) -> Launch | str:
    """Return the launch, or why another kernel is needed.

    Args:
        op: the operator.
        y: the result, bytes with channels last.
        x: the image, likewise.
        w: constant weights, one filter for each channel.
        quantization: zero points and scales.
        target: the GPU.
    """
    scales, y_zero, (x_zero, _) = quantization.scales, quantization.y_zero, quantization.zeros
    if not {x.dtype, w.dtype, y.dtype} <= BYTES or w.data is None or scales is None:
        return "no constant weights of bytes"
    if not (x.rank == 4 and y.is_channels_last and x.is_channels_last):
        return "images that are not channels last"
    channels = x.dims[1]
    if w.dims[:2] != (channels, 1) or op.group != channels or channels % CHANNELS:
        return f"{op.group} groups of {w.dims[1]} channels"
    if quantization.shifts_b or x_zero is None or y_zero is None:
        return "weights with zero points"
    view = window(op, x.dims[2:], w.dims[2:])
    words, (images, _, height, width) = channels // CHANNELS, y.dims
    most = y.size // CHANNELS // (target.processors * BUSY or 1)
    able = (run for run in RUNS if run <= most and _reach(view, run) <= FEW_COLUMNS)
    run = next(able, 1)
    if prod(view.kernel) > MAX_TAPS or _reach(view, run) > MAX_REACH:
        return f"{view.kernel[0]} x {view.kernel[1]} taps"
    if max(x.size, y.size) >= MAX_ELEMENTS:
        return f"{max(x.size, y.size)} elements"
    (x_scale, w_scale, y_scale), bias = scales, quantization.bias
    runs = ceil_div(width, run)
    image = {
        **{"words": words, "runs": runs, "in_h": x.dims[2], "in_w": x.dims[3]},
        **{"out_h": height, "out_w": width},
        **{"pad_h": view.pads_begin[0], "pad_w": view.pads_begin[1]},
        **{"by_words": divisor(words), "by_runs": divisor(runs), "by_rows": divisor(height)},
    }
    count = images * height * runs * words
    return each(
        "conv/depthwise_bytes.cu",
        "depthwise_bytes",
        count,
        {
            **{"x": x, "weights": Packed((w.value,), "taps of bytes", taps), "bias": bias},
            **{"x_scale": x_scale, "w_scale": w_scale, "y_scale": y_scale},
            **{"x_zero": x_zero, "y_zero": y_zero, "y": y},
            **{"count": count, "image": image},
        },
        block=THREADS,
        types=(("X", x.dtype), ("Y", y.dtype), ("U", w.dtype), ("S", x_scale.dtype)),
        constants=(
            *(("KH", view.kernel[0]), ("KW", view.kernel[1])),
            *(("STEP_H", view.strides[0]), ("STEP_W", view.strides[1])),
            *(("DILATION_H", view.dilations[0]), ("DILATION_W", view.dilations[1])),
            *(("RUN", run), ("BIAS", bias is not None), ("BY_CHANNEL", w_scale.size > 1)),
        ),
        code=narrow(y.dtype, float32),
    )


def _reach(view: Window, run: int) -> int:
    """Return how many columns the windows of adjacent pixels cover."""
    return (run - 1) * view.strides[1] + (view.kernel[1] - 1) * view.dilations[1] + 1


def taps(w: Array) -> Array:
    """Return filters [c, 1, kh, kw] as [kh * kw, c]."""
    return np.ascontiguousarray(w.reshape(w.shape[0], -1).T)
