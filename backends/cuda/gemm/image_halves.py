"""Convolutions of float32 images that arrive in halves (Hopper).

The kernels are `image_halves.cu` and, for few pixels, `swap_f16x3.cu`.

`f32` reads float32, which it cuts into halves in registers, for each tile of filters and each tap
of the windows. Where the kernel before stores halves, there is nothing to convert.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial

from ....runtime.ops.conv import Conv
from ....runtime.plan.format import HALVES_BLOCK, Format
from ..algorithms.registry import Answer
from ..algorithms.selection import Formats
from ..recipe.operands import ceil_div, strides
from ..recipe.targets import Target
from .conv_f32 import formats_of
from .convolution import ConvProblem
from .f16x3 import filter_refusal, in_halves, scales_of
from .problem import GemmArguments, Image, Problem, RowKind, packed_filters
from .schedules import halves, image_halves, swap_f16x3
from .tables.f16x3 import IMAGE_HALVES
from .tile import MAX_KEPT, MEMORY, Config, TimedConfig

#: Results that are cut per microsecond, while nothing else is done; measured on an H100.
CUTTING = 2e6
#: Factors by which these convolutions must be estimated to be faster, of windows and of single
#: pixels, which memory limits. With less for pixels, ResNet-50 at batch 32 takes 1 to 3 % longer
#: on an H100, although its kernels alone take 7 to 10 % less.
MARGIN, MARGIN_PIXELS = 1.1, 1.25
#: Microseconds that forms of `swap_f16x3.cu` whose blocks share sums take longer than estimated,
#: beside those of `image_halves.cu`: as measured in 13 convolutions of ResNet-50 on an H200.
LONGER = 1.0
#: Microseconds from which on they are considered, windows and others. On an H100 at batch 1,
#: ResNet-50 takes 7 % less with images of its windows in halves, and 12 % more with all of them;
#: GoogLeNet, where convolutions run beside others, 1 % more, as does MobileNetV2 at batch 32.
MIN_TIME, MIN_TIME_OTHERS = 7.0, 35.0
#: Microseconds that tensor maps take more than the kernel that cuts pixels, where these are few.
#: With none, EfficientNet-B0 takes 2 % more time at batch 1 on an H200, with sums of 192 terms.
MAPS = 0.6


def formats(conv: ConvProblem) -> Formats | str:
    """Return the formats that `make` needs, or why it does not apply."""
    setting = conv.setting
    if not isinstance(conv.op, Conv) or conv.x.rank != 4:
        return "not a convolution of images"
    refused = conv.need_constants() or formats_of(conv)
    if isinstance(refused, str):
        return refused
    if not setting.target.has_wgmma:
        return f"{setting.target.arch} has no wgmma"
    if setting.options.precision == "tf32":
        return "precision tf32"
    if conv.group > 1 or conv.channels % HALVES_BLOCK:
        wanted = f"a multiple of {HALVES_BLOCK} in one"
        return f"{conv.channels} channels in {conv.group} groups, not {wanted}"
    if not conv.is_cut and not setting.asked:
        return "no kernel before that stores halves"
    if refused := image_halves.refusal(_image(conv)):
        return refused
    return Format.PIXEL_HALVES, Format.CHANNELS_LAST


def time(conv: ConvProblem) -> float:
    """Return the estimate in microseconds."""
    problem, target = _problem(conv), conv.setting.target
    best = ways_of(problem, target)[0].microseconds
    few = swap_f16x3.fastest(problem, target, ready=True)
    return min(best, compared(few, problem)) if few else best


def gain(conv: ConvProblem, apart: float) -> float:
    """Return how much less time a convolution takes if its image is in halves, in microseconds.

    Args:
        conv: the convolution.
        apart: the estimate of the fastest algorithm otherwise, boxes aside: these are for images
            that are not in halves.
    """
    setting, pointwise = conv.setting, conv.is_pointwise
    few = _would_be_cut(_problem(conv)) and not setting.concurrent
    least = MIN_TIME_OTHERS if pointwise or setting.concurrent else MIN_TIME
    if setting.asked or (apart < least and not few) or isinstance(formats(_cut(conv)), str):
        return 0.0
    if few:
        cut = swap_f16x3.time_of(_problem(conv), setting.target)
        return min(apart, cut) - time(conv) - MAPS
    return apart - (MARGIN_PIXELS if pointwise else MARGIN) * time(conv)


def cost(size: int, both: bool) -> float:
    """Return the microseconds that it takes to store results in halves.

    Args:
        size: their number.
        both: whether they are stored as they are as well.
    """
    return size / CUTTING + (4 * size / MEMORY if both else 0.0)


def _cut(conv: ConvProblem) -> ConvProblem:
    """Return a convolution whose image can be in halves."""
    cut = {conv.x.value: Format.PIXEL_HALVES}
    return replace(conv, setting=replace(conv.setting, cut=cut))


def variants(conv: ConvProblem) -> tuple[str, ...]:
    """Return the tiles with the splits worth trying."""
    problem, target = _problem(conv), conv.setting.target
    ways = ways_of(problem, target)
    found = (str(way.config) for way in ways if way.microseconds < 1.5 * ways[0].microseconds)
    return *found, *swap_f16x3.tried(problem, target, ready=True)


def make(conv: ConvProblem, variant: str = "") -> Answer:
    """Return the convolution of tensors in the formats that `formats` returns."""
    assert conv.w.data is not None
    if refused := filter_refusal(conv.w.data, 1):
        return refused
    target, epilogue, problem = conv.setting.target, conv.epilogue, _problem(conv)
    if conv.x.format is not Format.PIXEL_HALVES:
        return "an image that is not in halves"
    if conv.pooled is not None and (conv.filters % HALVES_BLOCK or conv.view.strides != (1, 1)):
        return f"pooling of {conv.filters} filters"
    image = _image(conv)
    pack = partial(packed_filters, conv.w, 1, conv.channels)
    gemm = GemmArguments(
        a=image,
        b=pack("in halves", in_halves),
        c=conv.stored,
        shape=(conv.pixels, conv.filters, image.terms),
        ldb=ceil_div(conv.filters, 8) * 8,
        ldc=conv.stored.row,
        bias=conv.b,
        scales=pack("scales", scales_of),
    )
    swapped = swap_f16x3.named(variant, gemm, target, ready=True)
    if variant and swapped is None:
        return image_halves.multiply(gemm, epilogue, Config.parse(variant, IMAGE_HALVES), target)
    whole = epilogue.halves is not None or conv.pooled is not None
    best = ways_of(problem, target, whole=whole)[0]
    few = swap_f16x3.choose(gemm, target, ready=True)
    if swapped is None and few and compared(few, problem) < best.microseconds:
        swapped = few.config
    if swapped is not None:
        return swap_f16x3.launch(gemm, epilogue, swapped, target, ready=True)
    return image_halves.multiply(gemm, epilogue, best.config, target)


def compared(few: TimedConfig, problem: Problem) -> float:
    """Return the estimate of a form of `swap_f16x3.cu` beside those of `image_halves.cu`."""
    longer = few.config.splits > 1 and not _would_be_cut(problem)
    return few.microseconds + (LONGER if longer else 0.0)


def _would_be_cut(problem: Problem) -> bool:
    """Whether `swap_f16x3.cu` could cut these pixels, if they were not in halves."""
    return not problem.windows and problem.m <= swap_f16x3.MAX_CUT_ROWS


def _image(conv: ConvProblem) -> Image:
    moves = strides(conv.x.dims, Format.CHANNELS_LAST)
    return Image(
        *(conv.x, conv.x.dims[2:], moves, conv.channels, conv.view, conv.y.dims[2:], 4),
        images=conv.x.dims[0],
        squares=conv.pooled is not None,
    )


def _problem(conv: ConvProblem) -> Problem:
    rows = RowKind.PIXELS if conv.is_pointwise else RowKind.WINDOWS
    read = conv.x.size if not conv.is_pointwise else conv.pixels * conv.channels
    traffic = 4 * (read + conv.y.size + conv.w.size)
    return Problem(conv.pixels, conv.filters, conv.taps * conv.channels, 1, rows, traffic=traffic)


# ── which tile ───────────────────────────────────────────────────────────────────────────────────


@lru_cache(MAX_KEPT)
def ways_of(problem: Problem, target: Target, *, whole: bool = False) -> tuple[TimedConfig, ...]:
    """Return all configurations with their estimates, fastest first; see `halves.timed_configs`."""
    return halves.timed_configs(IMAGE_HALVES, problem, target, whole=whole)
