"""Convolutions of images of few channels, such as first layers, on CUDA cores."""

from __future__ import annotations

import numpy as np

from ....runtime.ir.types import Array
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer
from ..algorithms.selection import Formats
from ..gemm.atoms import HALVES
from ..gemm.convolution import MAX_ELEMENTS, ConvProblem
from ..recipe.launch import Launch
from ..recipe.operands import Ints, Packed, by_axis, ceil_div, sizes

#: Maximum channels of the image, elements of a window, and stride.
MAX_CHANNELS, MAX_TERMS, MAX_STRIDE = 4, 160, 4
#: Maximum filters of a block, its threads, its pixels in a row, and those of a thread.
MAX_FILTERS, THREADS, COLUMNS, PIXELS = 64, 256, 32, 4
#: Bytes of shared memory that a kernel may declare.
DECLARED = 48 << 10
#: Microseconds of a launch with one wave of blocks, and products per microsecond of all others.
#: Measured on an H200 over the first layers of MobileNetV2 and ResNet-50; the least of them.
BEGIN, RATE = 6.5, 6.5e6


def need_windows(conv: ConvProblem, channels: int, *, volumes: bool = False) -> str:
    """Return why a convolution is not one of an image's windows without gaps, or nothing.

    Args:
        conv: the convolution.
        channels: that an image may have at most.
        volumes: whether the image may be a volume.
    """
    if conv.x.rank not in ((4, 5) if volumes else (4,)):
        return f"{conv.x.rank - 2} spatial axes, not 2"
    if conv.channels > channels:
        return f"{conv.channels} channels, not up to {channels}"
    if conv.view.is_dilated or max(conv.view.strides) > MAX_STRIDE:
        return "windows with gaps"
    return ""


def few_channels_formats(conv: ConvProblem) -> Formats | str:
    """Return the formats of `few_channels`, or why it does not apply."""
    refused = conv.need_one_group() or conv.need_constants()
    refused = refused or (conv.need_halves() if conv.x.dtype in HALVES else conv.need_float32())
    if refused:
        return refused
    refused = need_windows(conv, MAX_CHANNELS)
    if refused:
        return refused
    if _filters(conv) == 0:
        return f"{conv.filters} filters, not a multiple of 8"
    if conv.taps * conv.channels > MAX_TERMS or _declared(conv, *_tile(conv)) > DECLARED:
        return f"windows of {conv.taps * conv.channels} elements"
    return Format.CONTIGUOUS, Format.CHANNELS_LAST


def _filters(conv: ConvProblem) -> int:
    """Return the filters per block, 0 if there are none."""
    counts = range(MAX_FILTERS, 0, -8)
    return next((n for n in counts if conv.filters % n == 0), 0)


def _tile(conv: ConvProblem) -> Ints:
    """Return the rows and columns of pixels of a block, as many as fit."""
    columns = min(COLUMNS, ceil_div(conv.view.output[1], PIXELS) * PIXELS)
    rows = max(1, THREADS // (_filters(conv) // 8 * columns // PIXELS))
    while rows > 1 and _declared(conv, rows, columns) > DECLARED:
        rows //= 2
    return rows, columns


def _declared(conv: ConvProblem, rows: int, columns: int) -> int:
    """Return the bytes of shared memory of a block with this many pixels."""
    (kernel_h, kernel_w), (step_h, step_w) = conv.view.kernel, conv.view.strides
    span = ceil_div((PIXELS - 1) * step_w + kernel_w, 4) * 4
    line = (columns - PIXELS) * step_w + span
    image = conv.channels * ((rows - 1) * step_h + kernel_h) * line
    return 4 * (image + conv.taps * conv.channels * _filters(conv))


def few_channels(conv: ConvProblem, variant: str = "") -> Answer:
    """Return the launch of a convolution of few channels; it has no variants."""
    x, y, view, epilogue = conv.x, conv.y, conv.view, conv.epilogue
    if max(x.size, y.size) >= MAX_ELEMENTS or not y.is_channels_last or y.row % 8:
        return f"{max(x.size, y.size)} elements"
    rows, columns = _tile(conv)
    filters = _filters(conv)
    down, across = ceil_div(view.output[0], rows), ceil_div(view.output[1], columns)
    members = {
        **{"filters": conv.filters, **sizes("", x.dims[2:]), **sizes("out_", view.output)},
        **by_axis(pad=view.pads_begin),
        **{"row_y": y.row, "down": down, "across": across},
    }
    weights = Packed((conv.w.value,), "terms by filters", pack_terms)
    return Launch(
        "conv/few_channels.cu",
        "few_channels",
        grid=(down * across * x.dims[0], conv.filters // filters, 1),
        block=filters // 8 * (columns // PIXELS) * rows,
        args={
            **{"x": x, "w": weights, "y": y, "bias": conv.b, **epilogue.args, "p": members},
        },
        types=(("S", x.dtype), ("T", x.dtype), *epilogue.aliases),
        constants=(
            *(("CHANNELS", conv.channels), *zip(("KH", "KW"), view.kernel, strict=True)),
            *zip(("STEP_H", "STEP_W"), view.strides, strict=True),
            *(("TILE_H", rows), ("TILE_W", columns), ("PIXELS", PIXELS), ("FILTERS", filters)),
            *(("VECTOR_C", 8), *epilogue.flags(conv.b)),
        ),
        code=epilogue.code,
        note=f"{rows}x{columns} {epilogue.title}".strip(),
        pitched=() if epilogue.along else (y,),
    )


def pack_terms(w: Array) -> Array:
    """Return weights [m, c, *kernel] as [c, *kernel, m]."""
    return np.ascontiguousarray(w.reshape(w.shape[0], -1).T)


def few_channels_time(conv: ConvProblem) -> float:
    """Return the estimate of `few_channels`."""
    return BEGIN + conv.macs * 132 / (RATE * conv.setting.target.processors)
