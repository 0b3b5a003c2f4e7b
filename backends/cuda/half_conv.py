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
from ...runtime.dtypes import uint16
from ...runtime.ops.window import Window
from ...runtime.types import Array
from .half import PIXELS, WINDOWS, HalfProduct, in_eights, multiply_halves
from .half_words import half_depthwise
from .launch import Ints32, Launch, Packed, Scratch, Tensor
from .layout import Ints, ceil_div
from .registry import Answer, Setting
from .tail import Tail
from .windows import image_of, pack_table

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
        setting: the GPU.
    """
    if max(x.size, y.size) >= 2**29 or max(x.dims[2:]) > MOST_EXTENT:
        return f"{max(x.size, y.size)} elements"
    if 1 < group == x.dims[1] == w.dims[0]:
        return half_depthwise(y, x, w, b, view, tail, setting)
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
        ldc=y.dims[1],
        batch=(group, channels, filters * ldb, filters),
        bias=b,
        rows=PIXELS if pixels else WINDOWS,
        vector=source.vector,
        table=None if pixels else source.table(w),
        image=_image(source, y),
    )
    used = max((launch.scratch for launch in source.launches), default=0)
    launches = (*source.launches, *multiply_halves(product, tail, setting.target, used))
    return tuple(replace(each, scratch=max(one.scratch for one in launches)) for each in launches)


def _image(source: _Source, y: Tensor) -> Ints32:
    """Return the struct `Image` of mma_product.cuh."""
    output = y.dims[2:]
    image = image_of(source.spatial, output, source.view, source.moves)
    return Ints32((*image.values, *divisor(prod(output)), *divisor(output[-1])))


def divisor(d: int) -> tuple[int, int]:
    """Return the factor, as a signed number, and the shift that divide 31-bit numbers by `d`."""
    shift = 31 + (d - 1).bit_length()
    factor = ceil_div(1 << shift, d)
    return factor - (1 << 32 if factor >= 1 << 31 else 0), shift


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
    packed, launch = _packed_image(x, channels, x.dims[-1], 0)
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
    packed, launch = _packed_image(x, 4, width, left)
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


def _packed_image(x: Tensor, channels: int, width: int, left: int) -> tuple[Scratch, Launch]:
    """Return an image in the workspace, channels last and padded, and what brings it there.

    Args:
        x: the image, in the plain order.
        channels: in the workspace.
        width: likewise.
        left: columns of zeros before the first.
    """
    images, rows = x.dims[0], prod(x.dims[2:-1])
    target, count = Scratch(0), images * rows * width
    sizes = (count, x.dims[1], rows, x.dims[-1], width, left)
    return target, Launch(
        "pack_image.cu",
        "pack_image",
        grid=(ceil_div(count, 256), 1, 1),
        block=256,
        args=(x, target, *map(np.int32, sizes)),
        types=(("T", uint16),),
        constants=(("PADDED", channels),),
        scratch=2 * count * channels,
        early=True,
    )


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
