"""Convolutions: two menus, of ways to run Conv and ConvTranspose; see docs/algorithms.md.

Images lie channels last wherever a convolution reads or writes them, so that neighbouring elements
of a window are neighbours in memory. A first layer, of few channels, reads the plain order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...runtime.dtypes import float16, name_of
from ...runtime.ops.conv import Conv, ConvTranspose
from .convolution import Convolution, convolution
from .depthwise import depthwise, depthwise_formats, depthwise_time, depthwise_variants
from .direct import (
    naive,
    naive_formats,
    naive_time,
    naive_transposed,
)
from .fft import fft, fft_formats, fft_time
from .half import HALF_SUMS
from .half_conv import half_convolution, half_formats, half_time
from .half_tiles import LAUNCH, MEMORY
from .half_words import HALVES
from .im2col import (
    explicit_formats,
    explicit_gemm,
    explicit_time,
    transposed_formats,
    transposed_gemm,
    transposed_time,
)
from .implicit import (
    LEAST_CHANNELS,
    grouped_formats,
    pointwise_formats,
    precomputed,
    precomputed_time,
    tile_variants,
    window_formats,
)
from .menu import PLAIN, Formats, Menu, Way
from .registry import Answer, kernel
from .split_conv import split_convolution, split_formats, split_time, split_variants
from .textbook import (
    direct,
    direct_formats,
    direct_time,
    implicit_formats,
    implicit_gemm,
    implicit_time,
    naive_nhwc,
    nhwc_formats,
    nhwc_time,
)
from .winograd import fused, fused_time, nonfused, nonfused_time, winograd_formats

# ── 16-bit floats ────────────────────────────────────────────────────────────────────────────────


def _half_formats(conv: Convolution) -> Formats | str:
    refused = conv.need_halves() or conv.need_plane() or conv.need_constants()
    if refused:
        return refused
    formats = half_formats(conv.x, conv.w, conv.group)
    if formats == PLAIN:
        return f"{conv.group} groups of {conv.channels} channels, which fill no words"
    return formats


def _half_depthwise_formats(conv: Convolution) -> Formats | str:
    return _half_formats(conv) if conv.is_depthwise else depthwise_formats(conv)


def _half(conv: Convolution, variant: str = "") -> Answer:
    return half_convolution(
        conv.group, conv.y, conv.x, conv.w, conv.b, conv.view, conv.tail, conv.setting
    )


def _half_time(conv: Convolution) -> float:
    return half_time(conv.group, conv.y, conv.x, conv.w, conv.view, conv.setting)


def _depthwise_formats(conv: Convolution) -> Formats | str:
    halves = conv.x.dtype in HALVES
    return _half_depthwise_formats(conv) if halves else depthwise_formats(conv)


# ── tensor cores: 16-bit floats, and float32 in parts ────────────────────────────────────────────


def _tensor_formats(conv: Convolution) -> Formats | str:
    if conv.is_depthwise:
        return "one channel a group, which is no matrix product"
    return _half_formats(conv) if conv.x.dtype in HALVES else split_formats(conv)


def _tensor_cores(conv: Convolution, variant: str = "") -> Answer:
    return _half(conv) if conv.x.dtype in HALVES else split_convolution(conv, variant)


def _tensor_time(conv: Convolution) -> float:
    return _half_time(conv) if conv.x.dtype in HALVES else split_time(conv)


def _tensor_variants(conv: Convolution) -> tuple[str, ...]:
    return () if conv.x.dtype in HALVES else split_variants(conv)


def _half_sums_formats(conv: Convolution) -> Formats | str:
    if conv.x.dtype != float16:
        return f"dtype {name_of(conv.x.dtype)}; sums in float16 are for float16"
    return _tensor_formats(conv)


def _half_sums(conv: Convolution, variant: str = "") -> Answer:
    return _half(replace(conv, setting=replace(conv.setting, way=HALF_SUMS)))


# ── the menus ────────────────────────────────────────────────────────────────────────────────────


def _winograd(
    name: str, make: Callable[..., Answer], time: Callable[..., float], out: int
) -> Way[Convolution]:
    return Way(name, partial(make, out=out), winograd_formats, partial(time, out=out))


def _beside(time: Callable[[Convolution], float]) -> Callable[[Convolution], float]:
    """Return an estimate that counts the memory, too, and what a plain way costs its neighbours.

    Images lie channels last between convolutions: a way that wants them plain brings reformats.
    """

    def estimate(conv: Convolution) -> float:
        size = conv.x.dtype.itemsize
        read, written = size * conv.x.size, size * conv.y.size
        least = max(time(conv), LAUNCH + (read + written) / MEMORY)
        if conv.formats != PLAIN:
            return least
        moved = written + (read if conv.x.dims[1] >= LEAST_CHANNELS else 0)
        return least + 2 * LAUNCH + 2 * moved / MEMORY

    return estimate


_TEXTBOOK = Way(
    "implicit_gemm", implicit_gemm, implicit_formats, _beside(implicit_time), anywhere=True
)

CONV = Menu(
    "Conv",
    (
        Way("tensor_cores", _tensor_cores, _tensor_formats, _tensor_time, _tensor_variants),
        Way("depthwise", depthwise, _depthwise_formats, depthwise_time, depthwise_variants),
        Way("gemm_1x1", precomputed, pointwise_formats, precomputed_time, tile_variants),
        Way("grouped", precomputed, grouped_formats, precomputed_time, tile_variants),
        Way("implicit_precomp_gemm", precomputed, window_formats, precomputed_time, tile_variants),
        _winograd("winograd_f4", fused, fused_time, 4),
        _winograd("winograd_f2", fused, fused_time, 2),
        _winograd("winograd_f4_nonfused", nonfused, nonfused_time, 4),
        _winograd("winograd_f2_nonfused", nonfused, nonfused_time, 2),
        Way("fft", fft, fft_formats, fft_time),
        Way("explicit_gemm", explicit_gemm, explicit_formats, explicit_time),
        _TEXTBOOK,
        Way("direct", direct, direct_formats, _beside(direct_time), anywhere=True),
        Way("naive", naive, naive_formats, _beside(naive_time), anywhere=True),
        Way("naive_nhwc", naive_nhwc, nhwc_formats, nhwc_time),
        Way(HALF_SUMS, _half_sums, _half_sums_formats, _half_time, by_name=True),
    ),
    convolution,
)

CONV_TRANSPOSE = Menu(
    "ConvTranspose",
    (
        _TEXTBOOK,
        Way("explicit_gemm", transposed_gemm, transposed_formats, transposed_time),
        Way("naive", naive_transposed, naive_formats, _beside(naive_time), anywhere=True),
    ),
    convolution,
)

kernel(Conv, tail=True, formats=CONV.formats, menu=CONV)(CONV.recipe)
kernel(ConvTranspose, tail=True, formats=CONV_TRANSPOSE.formats, menu=CONV_TRANSPOSE)(
    CONV_TRANSPOSE.recipe
)
