"""Convolutions of float32 on tensor cores, with each number as a sum of two others; see `f32`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf

from ....runtime.plan.format import Format
from ..algorithms.registry import Answer
from ..algorithms.selection import Formats
from ..recipe.launch import Launch
from ..recipe.operands import ceil_div
from .atoms import F16X3
from .convolution import ConvProblem
from .f16x3 import filter_refusal, in_halves, scales_of
from .f32 import Arithmetic, fastest, filter_arithmetic, form_of, packed_product, time_of, tried
from .joined_groups import batch_of
from .pack import STEP
from .pack_filters import packing_time
from .pack_image import MOST_PER_PIXEL, padded_channels
from .problem import GemmArguments, Problem, RowKind, image_source, packed_filters
from .schedules import boxes, swap_f16x3, wgmma_rs_tma
from .tile import TimedConfig

#: Kernels compute pixel addresses with 31 bits.
MAX_ELEMENTS = 2**30
#: Factor of the estimates of `swap_f16x3.cu` where algorithms are compared for few pixels: with it,
#: MobileNetV2 takes 3 % less time at batch 1 on an H200, MobileNetV4 5 %.
FEW = 1.5
#: Share of the estimate of other kernels that windows whose pixels are cut once must be estimated
#: to take: of 31 in networks on an H200, two that were estimated to take 0.94 and 0.99 take longer.
BOXED = 0.92
#: Factor of their estimates where they are compared with other algorithms, unless others run beside
#: them: with it, VGG-16 takes 2.3 % less time at batch 1 on an H200, as Winograd computes images of
#: 14x14 pixels. GoogLeNet would take 1.2 % more with it beside others, HRNet-W18 0.7 %.
BOXES_FACTOR = 1.15


def formats_of(conv: ConvProblem) -> Formats | str:
    """Return the formats of input and result, or why tensor cores do not apply."""
    refused = conv.need_float32() or conv.need_plane() or conv.need_weights()
    if refused:
        return refused
    if conv.own and conv.group > 1:
        return "groups of images with filters of their own"
    if not conv.setting.target.has_tf32:
        return f"{conv.setting.target.arch} has no tensor cores for float32"
    if not conv.x.size or not conv.y.size:
        return "no elements"
    if max(conv.x.size, conv.y.size) >= MAX_ELEMENTS:
        return f"{max(conv.x.size, conv.y.size)} elements, not fewer than 2^30"
    if conv.is_long:
        return f"an extent of {max(conv.x.dims[2:])}"
    if conv.channels % 4 and conv.group > 1:
        return f"{conv.channels} channels per group, not a multiple of 4"
    by_pixels = conv.channels % 4 > 0 and conv.channels <= MOST_PER_PIXEL
    return (Format.CONTIGUOUS if by_pixels else Format.CHANNELS_LAST), Format.CHANNELS_LAST


def convolution(conv: ConvProblem, variant: str = "") -> Answer:
    """Return the convolution of tensors in the formats of `formats_of`.

    An image whose channels are not a multiple of four, as in the first layer, is packed or padded
    first.
    """
    y, setting = conv.y, conv.setting
    if conv.pooled is not None and not setting.target.has_wgmma:
        return f"{setting.target.arch} has no wgmma"
    if conv.epilogue.halves and (refused := _halves_refusal(conv)):
        return refused
    problem = _problem(conv)
    if conv.epilogue.halves:
        arithmetic = Arithmetic(F16X3)
    else:
        arithmetic = filter_arithmetic(setting, problem, conv.w, conv.group)
    image, packing = image_source(conv.x, conv.w, conv.view, y.dims[2:], (4,))
    image = replace(image, squares=conv.pooled is not None)
    groups = conv.group * conv.apart
    b, scales = arithmetic.packed(partial(packed_filters, conv.w, groups, image.channels))
    gemm = GemmArguments(
        a=image,
        b=b,
        c=conv.stored,
        shape=(conv.pixels // conv.apart, conv.filters, image.terms),
        ldb=0,
        ldc=conv.stored.row,
        batch=batch_of(conv, conv.group, image, (conv.filters, 0)),
        bias=conv.b,
        scales=scales,
    )
    if not packing and (boxed := _in_boxes(conv, gemm, problem, variant)):
        return boxed
    form = variant or form_of(gemm, conv.epilogue, problem, arithmetic.atom, setting.target)
    return packed_product(packing, gemm, conv.epilogue, setting, arithmetic, form)


def _patches(conv: ConvProblem) -> boxes.Patches | None:
    """Return the windows whose pixels may be cut once for all taps; None if there are none."""
    view = conv.view
    if not conv.boxed or conv.group * conv.apart > 1 or conv.pooled is not None:
        return None
    if conv.x.rank != 4:
        return None
    if conv.setting.options.precision == "tf32" or conv.w.data is None:
        return None
    overlap = any(e > s for e, s in zip(view.extent, view.strides, strict=True))
    if not overlap or conv.channels % 4:
        return None
    images, output = conv.x.dims[0], conv.y.dims[2:]
    return boxes.Patches(images, output, view.kernel, view.dilations, view.strides)


def _box_ways(conv: ConvProblem) -> tuple[TimedConfig, ...]:
    """Return the forms that cut each pixel once for all taps, fastest first."""
    setting, patches = conv.setting, _patches(conv)
    if patches is None:
        return ()
    shape = conv.pixels, conv.filters, conv.taps * ceil_div(conv.channels, STEP) * STEP
    return boxes.ways_of(shape, patches, setting.target, others=setting.others)


def _in_boxes(
    conv: ConvProblem, gemm: GemmArguments, problem: Problem, form: str
) -> tuple[Launch, ...]:
    """Return the launch that cuts each pixel once for all taps; none if others are faster."""
    ways, patches = _box_ways(conv), _patches(conv)
    if form:
        ways = tuple(w for w in ways if f"{swap_f16x3.PREFIX}{w.config}" == form)
    elif ways and ways[0].microseconds > BOXED * time_of(problem, True, conv.setting):
        ways = ()
    if not ways or patches is None or conv.w.data is None or filter_refusal(conv.w.data, 1):
        return ()
    channels = ceil_div(conv.channels, STEP) * STEP
    pack = partial(packed_filters, conv.w, 1, channels)
    boxed = replace(
        gemm,
        **{"b": pack("in halves", in_halves), "scales": pack("scales", scales_of)},
        shape=(*gemm.shape[:2], conv.taps * channels),
    )
    return (boxes.launch(boxed, conv.epilogue, ways[0].config, patches, conv.setting.target),)


def _halves_refusal(conv: ConvProblem) -> str:
    """Return why results of a convolution cannot be in halves; empty if they can."""
    setting = conv.setting
    if conv.group > 1 or conv.pooled is not None:
        return "groups or pooling, whose results are not in halves"
    if setting.options.precision == "tf32" or not setting.target.has_wgmma or conv.w.data is None:
        return "no float16 products"
    return filter_refusal(conv.w.data, conv.group)


def convolution_time(conv: ConvProblem) -> float:
    """Return the estimate of `convolution`."""
    time = time_by_tiles(conv)
    ways = () if conv.is_cut else _box_ways(conv)
    if not ways or ways[0].microseconds > BOXED * time:
        return time
    factor = 1.0 if conv.setting.concurrent else BOXES_FACTOR
    return min(time, factor * ways[0].microseconds)


def time_by_tiles(conv: ConvProblem) -> float:
    """Return the estimate of `convolution` if pixels are not cut once for all taps."""
    packing = 0.0 if conv.channels % 4 == 0 else 1.5 + 4 * 2.5 * conv.x.size / 3e6
    problem, setting = _problem(conv), conv.setting
    constant = conv.w.data is not None
    time = time_of(problem, constant, setting)
    if fastest(problem, constant, setting) is F16X3:
        time = min(time, wgmma_rs_tma.time_of(problem, setting.target))
    if constant and conv.is_pointwise and not any(s > 1 for s in conv.view.strides):
        time = min(time, _few_time(conv, problem, time))
    return packing + time + packing_time(conv.w)


def _few_time(conv: ConvProblem, problem: Problem, other: float) -> float:
    """Return the estimate of few pixels as rows that blocks cut, beside that of other kernels."""
    if problem.concurrent or problem.batch > 1 or conv.setting.options.precision == "tf32":
        return inf
    few = swap_f16x3.time_of(problem, conv.setting.target)
    return FEW * few if few < swap_f16x3.most_of(other) else inf


def variants(conv: ConvProblem) -> tuple[str, ...]:
    """Return the tiles with the K splits worth trying."""
    problem = _problem(conv)
    atom = fastest(problem, conv.w.data is not None, conv.setting)
    boxed = (f"{swap_f16x3.PREFIX}{way.config}" for way in _box_ways(conv)[: swap_f16x3.MOST])
    return *tried(problem, atom, conv.setting.target), *boxed


def _problem(conv: ConvProblem) -> Problem:
    channels = conv.channels if conv.channels % 4 == 0 else padded_channels(conv.channels)
    rows = RowKind.PIXELS if conv.is_pointwise else RowKind.WINDOWS
    shape = conv.pixels // conv.apart, conv.filters, conv.taps * channels
    return Problem(*shape, conv.group * conv.apart, rows, concurrent=conv.setting.concurrent)
