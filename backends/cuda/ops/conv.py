"""Convolutions: the selectors of Conv and ConvTranspose; see docs/algorithms.md.

Convolutions read and write channels-last images, so that adjacent elements of a window are adjacent
in memory. A first layer with few channels reads contiguous NCHW.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf

from ....runtime.ir.dtypes import float16, float32, name_of
from ....runtime.ops.conv import Conv, ConvTranspose
from ..algorithms.registry import Answer
from ..algorithms.selection import CONTIGUOUS, Algorithm, Formats, Selector
from ..conv.computed_filters import packing_first
from ..conv.depthwise import depthwise, depthwise_variants
from ..conv.depthwise import transposed as depthwise_transposed
from ..conv.direct import naive, naive_transposed
from ..conv.estimates import (
    MIN_CHANNELS,
    depthwise_formats,
    depthwise_time,
    depthwise_transposed_formats,
    explicit_formats,
    explicit_time,
    fft_formats,
    fft_time,
    fused_time,
    grouped_formats,
    naive_formats,
    naive_time,
    nonfused_time,
    pointwise_formats,
    precomputed_time,
    transposed_formats,
    transposed_time,
    window_formats,
    winograd_formats,
)
from ..conv.few_channels import few_channels, few_channels_formats, few_channels_time
from ..conv.few_channels_mma import (
    few_channels_mma,
    few_channels_mma_formats,
    few_channels_mma_time,
)
from ..conv.fft import fft
from ..conv.im2col import explicit_gemm, transposed_gemm
from ..conv.implicit_gemm import (
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
from ..conv.implicit_precomp_gemm import precomputed, tile_variants
from ..conv.subpixel import subpixel, subpixel_formats, subpixel_time
from ..conv.volume import volume, volume_formats, volume_time
from ..conv.winograd import fused, nonfused
from ..gemm import conv_f16, conv_f32, image_halves
from ..gemm.atoms import HALVES
from ..gemm.convolution import ConvProblem, problem_of
from ..gemm.f16 import HALF_SUMS
from ..gemm.tile import LAUNCH, MEMORY
from ..recipe.operands import ceil_div

# ── tensor cores: 16-bit floats, and float32 in parts ────────────────────────────────────────────


def _tensor_formats(conv: ConvProblem) -> Formats | str:
    if conv.is_depthwise:
        return "one channel per group, which is not a matrix product"
    return conv_f16.formats_of(conv) if conv.x.dtype in HALVES else conv_f32.formats_of(conv)


def _tensor_cores(conv: ConvProblem, variant: str = "") -> Answer:
    by_dtype = conv_f16.convolution if conv.x.dtype in HALVES else conv_f32.convolution
    return by_dtype(conv, variant)


def _tensor_time(conv: ConvProblem) -> float:
    halves = conv.x.dtype in HALVES
    return conv_f16.convolution_time(conv) if halves else conv_f32.convolution_time(conv)


def _tensor_variants(conv: ConvProblem) -> tuple[str, ...]:
    if conv.x.dtype not in HALVES:
        return conv_f32.variants(conv)
    formats = _tensor_formats(conv)
    if isinstance(formats, str):
        return ()
    return tuple(form.title for form in conv_f16.convolution_forms(conv.within(formats)))


def _half_sums_formats(conv: ConvProblem) -> Formats | str:
    if conv.x.dtype != float16:
        return f"dtype {name_of(conv.x.dtype)}; sums in float16 are for float16"
    return _tensor_formats(conv)


def _half_sums(conv: ConvProblem, variant: str = "") -> Answer:
    return conv_f16.convolution(replace(conv, setting=replace(conv.setting, algorithm=HALF_SUMS)))


# ── floors of estimates, known without the files of the algorithms ─────────


def _gemm_floor(conv: ConvProblem) -> float:
    """Return a lower bound for `gemm/simt.cu`: the throughput of the best tile."""
    if conv.x.dtype != float32:
        return inf
    return 2.3 + conv.macs / (2e5 * conv.setting.target.processors)


def _winograd_floor(conv: ConvProblem) -> float:
    """Return a lower bound: one launch with one step, or both transforms of an image."""
    return 4.0 if conv.x.dtype == float32 and conv.view.kernel == (3, 3) else inf


def _fft_floor(conv: ConvProblem) -> float:
    """Return a lower bound: both transforms, for tiles without overlap."""
    if conv.x.dtype != float32:
        return inf
    return 6.0 + 8 * conv.pixels * (conv.channels + conv.filters) / 2.4e6


def _explicit_floor(conv: ConvProblem) -> float:
    """Return a lower bound: writing and reading the im2col matrix."""
    elements = conv.pixels * conv.taps * conv.channels
    return 2.0 + 2 * elements * conv.x.dtype.itemsize / 3.4e6


def _depthwise_floor(conv: ConvProblem) -> float:
    """Return 0, or infinity unless every channel has a filter of its own."""
    return inf if conv.need_depthwise() else 0.0


def _few_channels_floor(conv: ConvProblem) -> float:
    """Return a lower bound, or infinity for more channels than a first layer has."""
    return 3.0 if conv.channels <= 4 else inf


def _volume_floor(conv: ConvProblem) -> float:
    """Return 0, or infinity for other than three spatial axes."""
    return 0.0 if conv.x.rank == 5 else inf


def _textbook_floor(conv: ConvProblem) -> float:
    """Return a lower bound: the steps of one block; for a transposed convolution, its launch."""
    if isinstance(conv.op, ConvTranspose):
        return 3.0
    return 3.0 + 2.05 * ceil_div(conv.taps * conv.channels, 16)


def _direct_floor(conv: ConvProblem) -> float:
    """Return a lower bound: the elements of one window."""
    return 3.0 + 0.18 * conv.taps * conv.channels


def _naive_floor(conv: ConvProblem) -> float:
    """Return a lower bound: the elements of one window."""
    return 3.0 + 0.07 * conv.taps * conv.channels


def _in_halves_floor(conv: ConvProblem) -> float:
    """Return a lower bound: nothing if the kernel before can store halves."""
    return 0.0 if conv.is_cut else inf


def _nhwc_floor(conv: ConvProblem) -> float:
    """Return a lower bound: the elements of one window."""
    return 10.0 + 0.5 * conv.taps * conv.channels if conv.x.dtype == float32 else inf


# ── the selectors ─────────────


def _winograd(
    name: str, make: Callable[..., Answer], time: Callable[..., float], out: int
) -> Algorithm[ConvProblem]:
    estimate = partial(time, out=out)
    return Algorithm(
        name, partial(make, out=out), winograd_formats, estimate, floor=_winograd_floor
    )


def _precomputed(
    name: str, formats: Callable[[ConvProblem], Formats | str]
) -> Algorithm[ConvProblem]:
    return Algorithm(
        *(name, precomputed, formats, precomputed_time, tile_variants), floor=_gemm_floor
    )


def _beside(time: Callable[[ConvProblem], float]) -> Callable[[ConvProblem], float]:
    """Return an estimate that includes memory traffic and reformats for contiguous formats.

    Images are channels-last between convolutions, so an algorithm that needs them contiguous causes
    reformats.
    """

    def estimate(conv: ConvProblem) -> float:
        size = conv.x.dtype.itemsize
        read, written = size * conv.x.size, size * conv.y.size
        minimum = max(time(conv), LAUNCH + (read + written) / MEMORY)
        if conv.formats != CONTIGUOUS:
            return minimum
        moved = written + (read if conv.x.dims[1] >= MIN_CHANNELS else 0)
        return minimum + 2 * LAUNCH + 2 * moved / MEMORY

    return estimate


_IMPLICIT_GEMM = Algorithm(
    *("implicit_gemm", implicit_gemm, implicit_formats, _beside(implicit_time)),
    anywhere=True,
    floor=_textbook_floor,
)

CONV = Selector(
    "Conv",
    (
        Algorithm(
            *("tensor_cores", packing_first(_tensor_cores), _tensor_formats, _tensor_time),
            _tensor_variants,
        ),
        Algorithm(
            *("in_halves", image_halves.make, image_halves.formats, image_halves.time),
            image_halves.variants,
            floor=_in_halves_floor,
        ),
        Algorithm(
            *("depthwise", packing_first(depthwise), depthwise_formats, depthwise_time),
            depthwise_variants,
            floor=_depthwise_floor,
        ),
        Algorithm(
            *("few_channels", few_channels, few_channels_formats, few_channels_time),
            floor=_few_channels_floor,
        ),
        Algorithm(
            *("few_channels_mma", few_channels_mma, few_channels_mma_formats),
            few_channels_mma_time,
            floor=_few_channels_floor,
        ),
        _precomputed("gemm_1x1", pointwise_formats),
        _precomputed("grouped", grouped_formats),
        _precomputed("implicit_precomp_gemm", window_formats),
        _winograd("winograd_f4", fused, fused_time, 4),
        _winograd("winograd_f2", fused, fused_time, 2),
        _winograd("winograd_f4_nonfused", nonfused, nonfused_time, 4),
        _winograd("winograd_f2_nonfused", nonfused, nonfused_time, 2),
        Algorithm("fft", fft, fft_formats, fft_time, floor=_fft_floor),
        Algorithm(
            *("explicit_gemm", explicit_gemm, explicit_formats, explicit_time),
            floor=_explicit_floor,
        ),
        Algorithm("volume", volume, volume_formats, volume_time, floor=_volume_floor),
        _IMPLICIT_GEMM,
        Algorithm(
            *("direct", direct, direct_formats, _beside(direct_time)),
            anywhere=True,
            floor=_direct_floor,
        ),
        Algorithm(
            *("naive", naive, naive_formats, _beside(naive_time)),
            anywhere=True,
            floor=_naive_floor,
        ),
        Algorithm("naive_nhwc", naive_nhwc, nhwc_formats, nhwc_time, floor=_nhwc_floor),
        Algorithm(
            *(HALF_SUMS, packing_first(_half_sums), _half_sums_formats, conv_f16.convolution_time),
            by_name=True,
        ),
    ),
    problem_of,
)

CONV_TRANSPOSE = Selector(
    "ConvTranspose",
    (
        Algorithm(
            *("depthwise", packing_first(depthwise_transposed)),
            *(depthwise_transposed_formats, depthwise_time),
            floor=_depthwise_floor,
        ),
        _IMPLICIT_GEMM,
        Algorithm(
            *("explicit_gemm", packing_first(transposed_gemm)),
            *(transposed_formats, transposed_time),
        ),
        Algorithm("subpixel", subpixel, subpixel_formats, subpixel_time),
        Algorithm("naive", naive_transposed, naive_formats, _beside(naive_time), anywhere=True),
    ),
    problem_of,
)

CONV.register(Conv)
CONV_TRANSPOSE.register(ConvTranspose)
