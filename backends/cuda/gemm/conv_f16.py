"""Convolutions of 16-bit floats: selection of the schedule.

Images are channels-last, so that a word holds eight adjacent channels. An image with few channels,
in the first layer, is packed into words first; see `first_layer`.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod

from ....runtime.base.record import record
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer
from ..algorithms.selection import CHANNELS_LAST, Formats
from ..codegen.epilogue import Epilogue
from ..recipe.launch import Launch, sharing
from ..recipe.operands import Tensor
from ..recipe.targets import Target
from .convolution import ConvProblem
from .f16 import HALF_SUMS, VECTORS
from .first_layer import rows_of_windows, strips
from .forms import (
    Form,
    Source,
    by_multistage,
    by_persistent,
    by_stationary,
    by_tma,
    named,
    tma_tile,
    worth_measuring,
)
from .joined_groups import JoinedGroups, joinable
from .pack_filters import packing_time
from .pack_image import MOST_PER_PIXEL
from .problem import GemmArguments, RowKind, image_source, in_plane
from .schedules import multistage, stationary, tma, tma_persistent, tma_staging
from .tile import LAUNCH, MARGIN, MEMORY, TimedConfig
from .tma_choice import persistent

#: How much longer convolutions of packed images take than estimated, as their windows have few
#: terms. With it, `few_channels_mma` is chosen in 24 first layers on an H200 (1 and 32 images, 1 to
#: 4 channels, 16 to 320 filters): it takes up to 25 % less time in 23, and 2 % more in one.
PACKED = 1.45


def formats_of(conv: ConvProblem) -> Formats | str:
    """Return the formats of input and result, or why tensor cores do not apply.

    Channels are read in words of at least two. A first layer's are packed, an odd number is padded;
    groups with an odd number of channels are joined in twos or more.
    """
    refused = conv.need_halves() or conv.need_plane() or conv.need_weights()
    refused = refused or _computed_refusal(conv)
    if refused:
        return refused
    if conv.group == 1:
        first = Format.CONTIGUOUS if is_packed(conv.channels) else Format.CHANNELS_LAST
        return first, Format.CHANNELS_LAST
    if not joinable(conv):
        return f"{conv.group} groups of {conv.channels} channels, which do not fill words"
    return CHANNELS_LAST


def _computed_refusal(conv: ConvProblem) -> str:
    """Return why filters that are computed cannot be packed by a kernel; empty if they can."""
    if conv.w.data is not None:
        return ""
    if conv.group == 1 and is_packed(conv.channels):
        return f"computed filters of {conv.channels} channels"
    return "groups of images with filters of their own" if conv.own and conv.group > 1 else ""


def is_packed(channels: int) -> bool:
    """Whether an image of this many channels is packed by pixels first, unless in groups."""
    return channels < VECTORS[0] or (channels % 2 == 1 and channels <= MOST_PER_PIXEL)


def _quickest(conv: ConvProblem) -> JoinedGroups:
    """Return a convolution with the number of joined groups estimated to be fastest."""
    alone = JoinedGroups(conv)
    if conv.group == 1 or conv.formats != CHANNELS_LAST or conv.w.dims[0] % conv.group:
        return alone
    ways = [replace(alone, joined=count) for count in joinable(conv)]
    return min(ways, key=lambda way: multistage.time_of(_gemm(way)[0], conv.setting.target))


def convolution(conv: ConvProblem, variant: str = "") -> Answer:
    """Return the convolution of tensors in the formats of `formats_of`.

    Args:
        conv: the convolution.
        variant: one of `convolution_forms`; empty for the one estimated to be fastest.
    """
    x, setting, epilogue = conv.x, conv.setting, conv.epilogue
    target, half_sums = setting.target, setting.algorithm == HALF_SUMS
    if max(x.size, conv.y.size) >= 2**29:
        return f"{max(x.size, conv.y.size)} elements"
    if conv.is_long:
        fed = None if variant or half_sums else _by_tma(conv)
        return fed.launches(epilogue, target) if fed else f"an extent of {max(x.dims[2:])}"
    if variant:
        return named(convolution_forms(conv), variant)
    gemm, packing = _gemm(_quickest(conv))
    other = multistage.time_of(gemm, target, epilogue)
    fed = None if half_sums else _by_tma(conv)
    heavy, least = epilogue.is_heavy, other
    if fed and not heavy:  # deep tiles take longer in networks than estimated
        least = min(other, fed.choice.microseconds / (MARGIN if fed.choice.tile.deep else 1))
    pays = heavy or tma_persistent.pays(conv.pixels, least, concurrent=conv.setting.concurrent)
    if pays and not half_sums and _is_matrix(conv, gemm):
        found = persistent(gemm, epilogue, target, least)
        if found is not None:
            return found
    if fed and fed.choice.microseconds < MARGIN * other:
        return fed.launches(epilogue, target)
    used = max((launch.scratch for launch in packing), default=0)
    last = multistage.multiply_halves(gemm, epilogue, target, used, half_sums=half_sums)
    return sharing(*packing, *last)


def convolution_forms(conv: ConvProblem) -> tuple[Form, ...]:
    """Return the forms of `convolution` that are worth measuring."""
    if conv.is_long:
        return ()
    gemm, packing = _gemm(_quickest(conv))
    target, epilogue = conv.setting.target, conv.epilogue
    kernels = [by_multistage(Source(gemm, packing), epilogue, target)]
    fed = _tma_products(conv)
    kernels += [by_tma(fed, epilogue, target), by_stationary(fed, epilogue, target)]
    if _is_matrix(conv, gemm) and gemm.shape[2] % 8 == 0:
        kernels.append(by_persistent(gemm, epilogue, target))
    return worth_measuring(*kernels)


def _is_matrix(conv: ConvProblem, gemm: GemmArguments) -> bool:
    """Whether a convolution is one product of the pixels as they are."""
    pixels = gemm.a.rows is RowKind.PIXELS and gemm.a.data is conv.x
    return pixels and conv.group == prod(conv.view.strides) == 1


def convolution_time(conv: ConvProblem) -> float:
    """Return the estimate of `convolution` in microseconds."""
    x, y = conv.x, conv.y
    if max(x.size, y.size) >= 2**29:
        return LAUNCH + 2 * (x.size + y.size) / MEMORY
    fed = _by_tma(conv)
    if conv.is_long:
        return inf if fed is None else fed.choice.microseconds
    gemm, packing = _gemm(_quickest(conv))
    time = multistage.time_of(gemm, conv.setting.target)
    time = time if fed is None else min(fed.choice.microseconds, time)
    time += packing_time(conv.w)
    if not packing:
        return time
    return (PACKED if is_packed(conv.channels) else 1.0) * (time + _image_time(conv))


def _image_time(conv: ConvProblem) -> float:
    """Return the estimate for packing the image, in microseconds."""
    return LAUNCH + 4 * conv.x.size * conv.x.dtype.itemsize / MEMORY


def _gemm(groups: JoinedGroups) -> tuple[GemmArguments, tuple[Launch, ...]]:
    """Return a convolution by `multistage.cu`, and the launches that pack the image."""
    conv = groups.conv
    x, w, view = conv.x, conv.w, conv.view
    few = w.dims[1] <= 4 and x.rank == 4 and view.strides[1] % 2 == 0 and view.dilations[1] == 1
    if few and not x.is_channels_last:
        image, weights, launch = strips(x, w, view)
        return groups.gemm(image, weights), (launch,)
    image, packing = image_source(x, w, view, conv.y.dims[2:], VECTORS, groups.joined)
    return groups.gemm(image, groups.filters(image.channels)), packing


@record
class _Fed:
    """A convolution by `tma.cu`, or `stationary.cu`.

    Attributes:
        choice: the tile with its estimate.
        product: the product.
        staging: how A is staged in shared memory; None if weights stay there.
        packing: launches that pack the image.
    """

    choice: TimedConfig
    product: tma_staging.TmaProduct
    staging: tma_staging.Staging | None
    packing: tuple[Launch, ...]

    def launches(self, epilogue: Epilogue, target: Target) -> tuple[Launch, ...]:
        """Return the recipe."""
        product, config = self.product, self.choice.config
        if self.staging is None:
            last = stationary.multiply(product, epilogue, config.tile, target)
        else:
            last = tma.multiply(product, epilogue, config, self.staging, target)
        return sharing(*self.packing, last)


def _by_tma(conv: ConvProblem, pooled: Tensor | None = None) -> _Fed | None:
    """Return how TMA feeds a convolution, optionally pooled; None if it cannot."""
    along, ways = conv.epilogue.reads_along, _tma_products(conv, pooled)
    found = tma_tile(
        [product for product, _ in ways],
        conv.setting,
        *(conv.signature, *conv.formats, conv.x.row, along, pooled is not None),
        along=along,
    )
    if found is None:
        return None
    number, choice, staging = found
    product, packing = ways[number]
    # Estimates of first layers, whose image is packed, are not comparable with those of others.
    kept = None if packing else stationary.choose(product, conv.setting.target)
    if kept is not None and kept.microseconds < choice.microseconds:
        choice, staging = kept, None
    return _Fed(choice, product, staging, packing)


def _tma_products(
    conv: ConvProblem, pooled: Tensor | None = None
) -> list[tuple[tma_staging.TmaProduct, tuple[Launch, ...]]]:
    """Return the products by which `tma.cu` can convolve, with the launches before each."""
    x, w, target, view = conv.x, conv.w, conv.setting.target, conv.view
    if not target.has_wgmma or x.rank > 4 or not conv.y.is_channels_last or conv.own:
        return []
    if x.is_channels_last:
        even = x.row % 8 == 0 and w.dims[0] % conv.group == 0
        padded = conv.group == 1 and w.dims[1] % 2 == 1
        counts = (1,) if conv.group == 1 else joinable(conv)
        fitting = [n for n in counts if padded or (even and n * w.dims[1] % 8 == 0)]
        ways: list[tuple[tma_staging.TmaProduct, tuple[Launch, ...]]] = []
        for groups in (JoinedGroups(conv, n) for n in fitting):
            source, packing = image_source(x, w, view, conv.y.dims[2:], VECTORS, groups.joined)
            image = in_plane(source)
            gemm = groups.gemm(image, groups.filters(image.channels))
            ways.append((tma_staging.TmaProduct(gemm, pooled, conv.setting.concurrent), packing))
        return ways
    if pooled is None and conv.group == 1 and (made := rows_of_windows(x, w, view)) is not None:
        image, weights, launch = made
        return [(tma_staging.TmaProduct(JoinedGroups(conv).gemm(image, weights)), (launch,))]
    return []


def pooled_convolution(conv: ConvProblem, y: Tensor) -> Answer:
    """Return a convolution fused with 2 x 2 max pooling, whose result is `y`."""
    if conv.formats != CHANNELS_LAST:
        return "images not in channels-last format"
    fed = _by_tma(conv, y)
    apart = convolution_time(conv) + 2 * (conv.y.size + y.size) / MEMORY
    if fed is None or fed.choice.microseconds > apart:
        return "fusing the pooling takes longer, or is not possible"
    return fed.launches(conv.epilogue, conv.setting.target)
