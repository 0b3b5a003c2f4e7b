"""Convolutions of 16-bit floats as matrix products on tensor cores.

Images lie channels last, so that a word holds eight neighbouring channels. An image of few
channels, the first layer's, is packed into words first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from ...runtime.backend import Format
from ...runtime.ops.conv import Conv
from ...runtime.ops.window import Window, window
from ...runtime.types import Array
from .half import (
    HALF_SUMS,
    PIXELS,
    WINDOWS,
    HalfProduct,
    expected,
    in_eights,
    linear_if_faster,
    multiply_halves,
)
from .half_bulk import MARGIN, BulkProduct, Way, bulk_product, choose_bulk
from .half_first import first_layer, packed_image
from .half_linear import Linear
from .half_tiles import LAUNCH, MEMORY, BulkTile
from .launch import Launch
from .layout import Ints, ceil_div
from .operands import Packed, Scratch, Tensor
from .registry import Answer, RecipeContext, Setting
from .tail import Tail
from .windows import divided_image, pack_table

#: Greatest extent of an image: sums of rows and of columns are 15-bit numbers.
MOST_EXTENT = 1 << 13


def half_formats(x: Tensor, w: Tensor, group: int) -> tuple[Format, Format]:
    """Return the formats of the input and of the result of a convolution with constant weights."""
    channels = w.dims[1]
    if group == 1:
        whole = channels % 8 == 0
        return Format.CHANNELS_LAST if whole else Format.PLAIN, Format.CHANNELS_LAST
    fits = x.dims[1] % 8 == 0 if group == x.dims[1] == w.dims[0] else channels % 2 == 0
    both = Format.CHANNELS_LAST if fits else Format.PLAIN
    return both, both


def half_convolution(
    group: int,
    y: Tensor,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    view: Window,
    tail: Tail,
    setting: Setting,
) -> Answer:
    """Return a convolution of tensors in the formats that `half_formats` asks for.

    Args:
        group: number of groups.
        y: the result.
        x: the input.
        w: constant weights.
        b: the bias.
        view: the windows.
        tail: applied to every result.
        setting: the GPU, and whether sums are float16 (`half_sums`).
    """
    if max(x.size, y.size) >= 2**29 or max(x.dims[2:]) > MOST_EXTENT:
        return f"{max(x.size, y.size)} elements"
    product, packing = _product(group, y, x, w, b, view)
    if setting.way == HALF_SUMS:
        product = replace(product, half_sums=True)
        return _sharing(*packing, *_multiplied(product, packing, tail, setting))
    if tail.reads_along:
        linear = _linear(product, x, view, tail, setting)
        return linear or _sharing(*packing, *_multiplied(product, packing, tail, setting))
    fed = _fed(y, x, w, b, view, setting) if group == 1 else None
    if fed is not None and fed.time < MARGIN * expected(product, setting.target):
        return fed.launches(tail, setting)
    return _sharing(*packing, *_multiplied(product, packing, tail, setting))


def _multiplied(
    product: HalfProduct, packing: tuple[Launch, ...], tail: Tail, setting: Setting
) -> tuple[Launch, ...]:
    used = max((launch.scratch for launch in packing), default=0)
    return multiply_halves(product, tail, setting.target, used)


def _linear(p: HalfProduct, x: Tensor, view: Window, tail: Tail, setting: Setting) -> Launch | None:
    """Return 1x1 windows of all pixels as `mma_linear.cu` does them, if it should be faster."""
    if p.rows != PIXELS or p.a is not x or not isinstance(p.b, Packed) or prod(view.strides) > 1:
        return None
    linear = Linear(p.c, x, p.b, p.shape, x.row, p.ldc, p.bias, gaps=True)
    return linear_if_faster(linear, p, tail, setting.target)


def half_time(group: int, y: Tensor, x: Tensor, w: Tensor, view: Window, setting: Setting) -> float:
    """Return the microseconds that `half_convolution` should take; see there."""
    if max(x.size, y.size) >= 2**29:
        return LAUNCH + 2 * (x.size + y.size) / MEMORY
    product, _ = _product(group, y, x, w, None, view)
    fed = _fed(y, x, w, None, view, setting) if group == 1 else None
    time = expected(product, setting.target)
    return time if fed is None else min(fed.time, time)


def _product(
    group: int, y: Tensor, x: Tensor, w: Tensor, b: Tensor | None, view: Window
) -> tuple[HalfProduct, tuple[Launch, ...]]:
    """Return a convolution as `mma.cu` does it, and what brings the image there."""
    source = _source(x, w, view, group)
    view, channels = source.view, source.channels
    taps, filters = prod(view.kernel), w.dims[0] // group
    terms = taps * channels
    pixels = taps == 1 and not any(view.pads_begin + view.pads_end)
    ldb = ceil_div(terms, 8) * 8
    product = HalfProduct(
        a=source.a,
        b=source.filters,
        c=y,
        shape=(prod(y.dims) // y.dims[1], filters, terms),
        lda=0,
        ldb=ldb,
        ldc=y.row,
        batch=(group, channels, filters * ldb, filters),
        bias=b,
        rows=PIXELS if pixels else WINDOWS,
        vector=source.vector,
        table=None if pixels else source.table(w),
        image=divided_image(source.spatial, y.dims[2:], view, source.moves),
    )
    return product, source.launches


def half_pooled(context: RecipeContext, before: Tensor) -> Answer:
    """Return a convolution whose greatest results of every 2 x 2 pixels are kept.

    Args:
        context: the convolution, the tail applied to every result, and what is kept of them.
        before: the results.
    """
    op, y, (x, w, b) = context.op, context.y, (*context.inputs, None)[:3]
    tail, setting = context.tail, context.setting
    if not isinstance(op, Conv) or tail is None or y is None or x is None or w is None:
        return "no convolution"
    if setting.asked or setting.choices or op.group > 1:
        return "the pooling is a step of its own"
    if not all(t.is_channels_last for t in (y, before, x)) or w.data is None or not w.size:
        return "images that do not lie channels last"
    if tail.reads_along:
        return "an operand that is not pooled"
    view = window(op, x.dims[2:], w.dims[2:])
    pooled = _fed(before, x, w, b, view, setting, y)
    apart = half_time(1, before, x, w, view, setting) + 2 * (before.size + y.size) / MEMORY
    if pooled is None or pooled.time > apart:
        return "to pool it at once takes longer, or cannot be done"
    return pooled.launches(tail, setting)


def _sharing(*launches: Launch) -> tuple[Launch, ...]:
    """Return launches that have the workspace in common."""
    return tuple(replace(each, scratch=max(one.scratch for one in launches)) for each in launches)


@dataclass(frozen=True, slots=True)
class _Fed:
    """A convolution as `mma_bulk.cu` does it.

    Attributes:
        time: expected microseconds.
        product: what it multiplies.
        tile: what a block computes.
        way: how the image is read.
        packing: what brings the image there.
    """

    time: float
    product: BulkProduct
    tile: BulkTile
    way: Way
    packing: tuple[Launch, ...]

    def launches(self, tail: Tail, setting: Setting) -> tuple[Launch, ...]:
        """Return the recipe."""
        last = bulk_product(self.product, tail, self.tile, self.way, setting.target)
        return _sharing(*self.packing, last)


def _fed(
    y: Tensor,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    view: Window,
    setting: Setting,
    pooled: Tensor | None = None,
) -> _Fed | None:
    """Return how `mma_bulk.cu` does a convolution, or one that is pooled; None if it cannot."""
    if not setting.target.has_wgmma or x.rank != 4 or not y.is_channels_last:
        return None
    packing: tuple[Launch, ...] = ()
    if x.is_channels_last:
        if w.dims[1] % 8 or x.row % 8:
            return None
        image, _, *moves = x.strides
        product = BulkProduct(
            a=x,
            spatial=x.dims[2:],
            moves=(image, *moves),
            channels=w.dims[1],
            b=_filters(w, 1, w.dims[1]),
            filters=w.dims[0],
            c=pooled or y,
            ldc=(pooled or y).row,
            images=x.dims[0],
            view=view,
            bias=b,
            pooled=pooled is not None,
        )
    else:
        made = first_layer(y, x, w, b, view)
        if made is None or pooled is not None:
            return None
        product, packing = made[0], (made[1],)
    found = choose_bulk(product, setting.target)
    return None if found is None else _Fed(found[0], product, *found[1:], packing)


# ── images as they lie in memory ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Source:
    """The windows of an image, as a tensor-core product reads them.

    Attributes:
        a: the image.
        channels: neighbouring elements that belong to one place of a window.
        view: the windows, in such places.
        spatial: extents of the image.
        moves: its strides: image, channel, spatial axes.
        vector: elements that are copied at once.
        filters: the weights, [group][filter][place][channels].
        launches: what brings the image there.
    """

    a: Tensor | Scratch
    channels: int
    view: Window
    spatial: Ints
    moves: Ints
    vector: int
    filters: Packed
    launches: tuple[Launch, ...] = ()

    def table(self, w: Tensor) -> Packed:
        """Return where the elements of a window lie, see `pack_table`."""
        kernel, dilations, moves = self.view.kernel, self.view.dilations, self.moves[1:]
        pack = partial(
            pack_table, channels=self.channels, kernel=kernel, dilations=dilations, moves=moves,
            vector=self.vector,
        )  # fmt: skip
        layout = ("table", self.channels, kernel, dilations, moves, self.vector)
        return Packed((w.value,), layout, pack)


def _source(x: Tensor, w: Tensor, view: Window, group: int) -> _Source:
    channels = w.dims[1]
    if x.is_channels_last:
        vector = next(v for v in (8, 4, 2) if channels % v == 0)
        return _Source(
            x, channels, view, x.dims[2:], x.strides, vector, _filters(w, group, channels)
        )
    if channels <= 4 and x.rank == 4 and view.strides[1] % 2 == 0 and view.dilations[1] == 1:
        return _strips(x, w, view)
    channels = 4 if channels <= 4 else ceil_div(channels, 8) * 8
    packed, launch = packed_image(x, channels, x.dims[-1], 0)
    moves = _strides(x.dims[2:], channels)
    filters = _filters(w, 1, channels)
    return _Source(packed, channels, view, x.dims[2:], moves, min(channels, 8), filters, (launch,))


def _strips(x: Tensor, w: Tensor, view: Window) -> _Source:
    """Return an image of at most four channels, whose windows are read a row at a time.

    With the padding on the left in memory, every row of a window begins at a multiple of 16 bytes,
    and what follows it is multiplied with zeros.
    """
    columns, left = ceil_div(view.kernel[1], 2) * 2, view.pads_begin[1]
    needed = (view.output[1] - 1) * view.strides[1] + columns
    width = ceil_div(max(needed, x.dims[3] + left), 2) * 2
    packed, launch = packed_image(x, 4, width, left)
    strip = replace(
        view,
        kernel=(view.kernel[0], 1),
        pads_begin=(view.pads_begin[0], 0),
        pads_end=(view.pads_end[0], 0),
    )
    spatial = (x.dims[2], width)
    pack = partial(pack_strips, columns=columns)
    filters = Packed((w.value,), ("strips", columns), pack)
    moves = _strides(spatial, 4)
    return _Source(packed, 4 * columns, strip, spatial, moves, 8, filters, (launch,))


def _filters(w: Tensor, group: int, channels: int) -> Packed:
    pack = partial(pack_filters, groups=group, channels=channels)
    return Packed((w.value,), ("filters", group, channels), pack)


def _strides(spatial: Ints, channels: int) -> Ints:
    """Return the strides of an image, channels last, with so many channels in memory."""
    steps = [channels * prod(spatial[axis + 1 :]) for axis in range(len(spatial))]
    return (channels * prod(spatial), 1, *steps)


# ── packing, on the host ─────────────────────────────────────────────────────────────────────────


def pack_filters(w: Array, groups: int, channels: int) -> Array:
    """Return weights [m, c, *kernel] as [group, m / group, kernel * channels], in rows of eights.

    Args:
        w: the weights.
        groups: number of groups.
        channels: c or more; zeros behind the last one.
    """
    filters, taps = w.shape[0] // groups, prod(w.shape[2:])
    packed = np.zeros((groups * filters, taps, channels), w.dtype)
    packed[..., : w.shape[1]] = w.reshape(w.shape[0], w.shape[1], taps).transpose(0, 2, 1)
    return in_eights(packed.reshape(groups, filters, taps * channels))


def pack_strips(w: Array, columns: int) -> Array:
    """Return weights [m, c, rows, columns] as [1, m, rows * columns * 4], zeros in the gaps.

    Args:
        w: the weights; c is 4 at most.
        columns: of a window in memory.
    """
    filters, channels, rows, width = w.shape
    packed = np.zeros((filters, rows, columns, 4), w.dtype)
    packed[:, :, :width, :channels] = w.transpose(0, 2, 3, 1)
    return packed.reshape(1, filters, -1)
