"""Products and convolutions of 16-bit floats: selection of the schedule.

Images are channels-last, so that a word holds eight adjacent channels. An image with few channels,
in the first layer, is packed into words first; see `first_layer`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf, prod

from ....runtime.base.record import record
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer, Setting
from ..algorithms.selection import CHANNELS_LAST, Formats
from ..codegen.copies import transposition
from ..codegen.epilogue import Epilogue
from ..recipe.launch import Launch, sharing
from ..recipe.operands import Ints, Packed, Scratch, Tensor, ceil_div, words_of
from ..recipe.targets import Target
from .convolution import ConvProblem
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
from .multiplication import stack_of, stacks
from .pack import EIGHTS
from .pack_filters import packing_time
from .pack_image import MOST_PER_PIXEL
from .problem import (
    Batch,
    GemmArguments,
    Linear,
    Matrix,
    RowKind,
    image_source,
    in_plane,
    packed_matrix,
    widest,
)
from .schedules import multistage, stationary, swap_ab, tma, tma_persistent, tma_staging
from .tile import LAUNCH, MARGIN, MEMORY, TimedConfig
from .tma_choice import computed, fed_by_tma, persistent

#: For `swap_ab.cu`, which reads weights once and rows of A often: the factor by which estimates of
#: other kernels are below their times for few rows of A and large weights; see `swap_ab.FEW_ROWS`.
#: On an H100, a decoding step of 16 sequences takes 18 % less time with it (Llama 1B and 8B), of 32
#: sequences 4 and 12 %. Maximum rows for more blocks than run at once, two per multiprocessor: the
#: scores of 32 rows (128256 by 2048 weights) take 3 % less time on an H100, 25 % on an H200.
SWAP_MARGIN, ROWS_OF_PAIRS = 1.2, 32
#: Maximum rows of A for `swap_ab.cu` where these are more than few: its blocks have up to 128, so
#: that products of many terms can be split more often. On an H200 at batch 1, ViT-B takes 3 % less
#: time with it, layers 1024 wide with 160 and 197 rows 22 and 13 %, 2048 wide with 128 rows 7 %;
#: with normalizations in products transformers 768 and 1024 wide take 22 and 27 % less with 257
#: rows, 768 wide 14 % with 394.
MORE_ROWS = 512
#: How much longer convolutions of packed images take than estimated, as their windows have few
#: terms. With it, `few_channels_mma` is chosen in 24 first layers on an H200 (1 and 32 images, 1 to
#: 4 channels, 16 to 320 filters): it takes up to 25 % less time in 23, and 2 % more in one.
PACKED = 1.45
#: The algorithm with float16 accumulators.
HALF_SUMS = "half_sums"
#: Elements of A per copy.
VECTORS = (8, 4, 2)
#: Maximum number of blocks along other grid axes than the first.
MAX_STACKED = 65535
#: Throughput of `transpose.cu` on an H200 in bytes per microsecond.
TRANSPOSED = 1.7e6


# ── matrix products ──────────────────────────────────────────────────────────────────────────────


def linear(layer: Linear, epilogue: Epilogue, setting: Setting) -> Answer:
    """Return alpha * a @ b + bias for constant `b`, with `epilogue` applied to every result."""
    if layer.b.data is None:
        return "b is not constant"
    if setting.form:
        return named(linear_forms(layer, epilogue, setting.target), setting.form)
    gemm = gemm_of(layer)
    target, half_sums = setting.target, setting.algorithm == HALF_SUMS
    few = None if half_sums else swapped(swap_ab.SwapAb(gemm), epilogue, setting)
    fed = few or (None if half_sums else fed_by_tma(gemm, epilogue, setting))
    return fed or multistage.multiply_halves(gemm, epilogue, target, half_sums=half_sums)


def linear_forms(layer: Linear, epilogue: Epilogue, target: Target) -> tuple[Form, ...]:
    """Return the forms of `linear` that are worth measuring; `b` is constant."""
    gemm = gemm_of(layer)
    kernels = [by_multistage(Source(gemm), epilogue, target)]
    if gemm.shape[2] % 8 == 0 and target.has_wgmma:
        kernels.append(by_persistent(gemm, epilogue, target))
        if not epilogue.reads_along:
            kernels.append(by_tma([(tma_staging.TmaProduct(gemm), ())], epilogue, target))
    return worth_measuring(*kernels)


def gemm_of(layer: Linear) -> GemmArguments:
    """Return the product of a linear layer with packed weights."""
    a, b, (_, n, k) = layer.a, layer.b, layer.shape
    return GemmArguments(
        a=Matrix(a, k, widest(VECTORS, k)),
        b=packed_matrix(b, layer.form, "in eights", EIGHTS),
        c=layer.y,
        shape=layer.shape,
        ldb=ceil_div(k, 8) * 8,
        ldc=n,
        bias=layer.bias,
        dtype=a.dtype,
    )


def swapped(product: swap_ab.SwapAb, epilogue: Epilogue, setting: Setting) -> Launch | None:
    """Return the launch of `swap_ab.cu` for few rows, if estimated to be faster."""
    gemm, target = product.gemm, setting.target
    m, n, k = gemm.shape
    few = not product.more_rows
    if few and n * k * gemm.dtype.itemsize < swap_ab.LARGE_WEIGHTS:
        return None
    if not few and (m > MORE_ROWS or (product.products > 1 and m <= swap_ab.MAX_ROWS)):
        return None
    best = _best_swapped(product, setting)
    if best is None:
        return None
    many = best.tile.count(m, n) * best.config.splits > target.processors
    if many and (best.tile.resident == 1 or m > ROWS_OF_PAIRS):
        return None
    if few:  # the alternative to two products in one kernel are two kernels
        one = replace(gemm, shape=(m, n // product.products, k))
        others = SWAP_MARGIN * product.products * time_from_workspace(one, epilogue, target)
    else:
        others = MARGIN * _time_of_others(gemm, epilogue, setting)
    return product.launch(epilogue, best.config, target) if best.microseconds < others else None


def _best_swapped(product: swap_ab.SwapAb, setting: Setting) -> TimedConfig | None:
    """Return the best tile of `swap_ab.cu`."""
    gemm = product.gemm
    key = ("swap_ab", gemm.shape, gemm.ldb, gemm.a.vector, product.products)
    key = (*key, product.between.measured is None)
    if key not in setting.tiles:
        setting.tiles[key] = product.choose(setting.target)
    return setting.tiles[key]


def time_of_some_rows(gemm: GemmArguments, epilogue: Epilogue, setting: Setting) -> float:
    """Return the estimate of `linear` for more than a few rows."""
    others, some = _time_of_others(gemm, epilogue, setting), gemm.shape[0] <= MORE_ROWS
    best = _best_swapped(swap_ab.SwapAb(gemm), setting) if some else None
    return others if best is None else min(others, best.microseconds)


def _time_of_others(gemm: GemmArguments, epilogue: Epilogue, setting: Setting) -> float:
    """Return the estimate of `linear` without `swap_ab.cu`."""
    found = time_from_workspace(gemm, epilogue, setting.target)
    if epilogue.reads_along or gemm.shape[2] % 8:
        return found
    fed = tma_tile([tma_staging.TmaProduct(gemm)], setting, "product", gemm.shape)
    return found if fed is None else min(found, fed[1].microseconds)


def product(
    y: Tensor,
    a: Tensor,
    b: Tensor,
    epilogue: Epilogue,
    setting: Setting,
    *,
    transposed: bool = False,
    bias: Packed | Tensor | None = None,
) -> Answer:
    """Return a @ b of (stacked) matrices.

    If its rows are terms, `b` is packed if it is constant, else read as it is, or transposed first
    where that is estimated to be faster.

    Args:
        y: [..., m, n].
        a: [..., m, k].
        b: [..., k, n], or [n, k] if `transposed`; one matrix, or as many as in a.
        epilogue: applied to every result.
        setting: the GPU.
        transposed: the layout of b.
        bias: [n] or None.
    """
    if a.rank < 2 or b.rank < 2:
        return "a vector"
    k, n = a.dims[-1], y.dims[-1]
    if not k:
        return "no terms"
    count, m = stacks(y, a, b)
    stack = stack_of(y, a, b)
    if stack is None or (count > 1 and not any(stack[2])):
        return f"stacks of {a.value.tensor} and {b.value.tensor} are broadcast"
    sizes, of_a, of_b = stack
    heads = sizes[1] if len(sizes) > 1 else 1
    batch = Batch(
        *(count, of_a[0] * m * k, of_b[0] * n * k, m * n),
        *((heads, of_a[1] * m * k, of_b[1] * n * k) if heads > 1 else ()),
    )
    if max(y.size, a.size, b.size) >= 2**31 or count > MAX_STACKED:
        return f"a stack of {count}"
    if transposed and k % 8:
        return f"16-bit floats: {k} terms, not a multiple of 8"
    target, half_sums = setting.target, setting.algorithm == HALF_SUMS
    gemm = GemmArguments(
        a=Matrix(a, k, widest(VECTORS, k, batch.a, batch.head_a)),
        b=b,
        c=y,
        shape=(m, n, k),
        ldb=k if transposed else n,
        ldc=n,
        batch=batch,
        bias=bias,
        across=not transposed,
        dtype=a.dtype,
    )
    ldb = ceil_div(k, 8) * 8
    apart, each = prod(b.dims[:-2]), n * ldb
    used = apart * each * a.dtype.itemsize
    batch = replace(batch, b=of_b[0] * each, head_b=of_b[1] * each if heads > 1 else 0)
    row_major = replace(gemm, b=Scratch(0), ldb=ldb, batch=batch, across=False)
    if b.data is not None and not transposed:
        packed = replace(row_major, b=packed_matrix(b, (1.0, False), "in eights", EIGHTS))
        return multistage.multiply_halves(packed, epilogue, target, half_sums=half_sums)
    time, first = multistage.time_of(gemm, target, epilogue), ()
    transposing = LAUNCH + 2 * used / TRANSPOSED + multistage.time_of(row_major, target, epilogue)
    if not transposed and transposing < time:
        time, first = transposing, (_transposed(b, (apart, k, n, ldb), used),)
    if not half_sums:
        found = computed(gemm, epilogue, target, time)
        if found is not None:
            return found
    last = partial(multistage.multiply_halves, epilogue=epilogue, target=target)
    if first:
        return *first, *last(row_major, used=used, half_sums=half_sums)
    return last(gemm, half_sums=half_sums)


def from_workspace(
    gemm: GemmArguments, epilogue: Epilogue, setting: Setting
) -> tuple[tuple[Launch, ...], Scratch] | str:
    """Return the product by a matrix [n, ldb] that a previous launch writes to the workspace.

    Args:
        gemm: the product; `b` is at the start of the workspace.
        epilogue: applied to every result.
        setting: the GPU.

    Returns:
        The launches, and the address of the matrix; or why there are none.
    """
    (_, n, k), target = gemm.shape, setting.target
    if k % 8 == 0:
        time = multistage.time_of(gemm, target, epilogue)
        found = persistent(gemm, epilogue, target, time)
        if found is not None:
            return (found,), Scratch(0)
    used = n * gemm.ldb * gemm.dtype.itemsize
    return multistage.multiply_halves(gemm, epilogue, target, used), Scratch(0)


def time_from_workspace(gemm: GemmArguments, epilogue: Epilogue, target: Target) -> float:
    """Return the estimate of `from_workspace`."""
    k = gemm.shape[2]
    time = multistage.time_of(gemm, target, epilogue)
    fed = tma_persistent.choose(gemm, epilogue, target) if k % 8 == 0 else None
    return time if fed is None else min(time, fed.microseconds)


def _transposed(b: Tensor, sizes: Ints, nbytes: int) -> Launch:
    """Return the launch that writes the transposes of [count, k, n] to the workspace."""
    count, k, n, ldb = sizes
    launch = transposition(count, k, n, (n, ldb), words_of(b.dtype), ldb)
    return replace(launch, args={**launch.args, "x": b, "y": Scratch(0)}, scratch=nbytes)


# ── convolutions ─────────────────────────────────────────────────────────────────────────────────


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
