"""Convolutions of float32 as matrix products on tensor cores.

Images lie channels last, so that four neighbouring channels are one copy. An image whose channels
make no fours, the first layer's, is packed into such first.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from ...runtime.backend import Format
from ...runtime.dtypes import uint32
from ...runtime.types import Array
from .convolution import Convolution
from .half_conv import MOST_EXTENT
from .half_tiles import Task
from .launch import Launch
from .layout import Ints, ceil_div
from .menu import Formats
from .operands import Packed, Scratch, Tensor
from .registry import Answer
from .split import (
    PIXELS,
    WINDOWS,
    SplitProduct,
    multiply_split,
    pack_parts,
    parts_of,
    task_of,
    time_of,
)
from .split_tiles import tile_named, title_of, ways_of
from .windows import divided_image, pack_table

#: Kernels find pixels by products of 31 bits.
MOST_ELEMENTS = 2**30


def split_formats(conv: Convolution) -> Formats | str:
    """Return the formats of input and result, or why tensor cores cannot be used."""
    refused = conv.need_float32() or conv.need_plane() or conv.need_constants()
    if refused:
        return refused
    if not conv.setting.target.has_tf32:
        return f"{conv.setting.target.arch} has no tensor cores for float32"
    if not conv.x.size or not conv.y.size:
        return "no elements"
    if max(conv.x.size, conv.y.size) >= MOST_ELEMENTS:
        return f"{max(conv.x.size, conv.y.size)} elements, not fewer than 2^30"
    if max(conv.x.dims[2:]) > MOST_EXTENT:
        return f"an extent of {max(conv.x.dims[2:])}"
    if conv.channels % 4 and conv.group > 1:
        return f"{conv.channels} channels a group, which are no fours"
    whole = conv.channels % 4 == 0
    return (Format.CHANNELS_LAST if whole else Format.PLAIN), Format.CHANNELS_LAST


def split_convolution(conv: Convolution, variant: str = "") -> Answer:
    """Return the convolution of tensors in the formats that `split_formats` asks for."""
    x, y, setting, group = conv.x, conv.y, conv.setting, conv.group
    parts, channels = parts_of(setting), _channels(conv)
    packing = () if x.is_channels_last else (_packed_image(x, channels),)
    moves = x.strides if x.is_channels_last else _strides(x.dims[2:], channels)
    pixels = conv.is_pointwise
    pack = partial(pack_filters, groups=group, channels=channels, parts=parts)
    product = SplitProduct(
        a=x if x.is_channels_last else Scratch(0),
        b=Packed((conv.w.value,), ("filters", group, channels, parts), pack),
        c=y,
        shape=(conv.pixels, conv.filters, conv.taps * channels),
        lda=0,
        ldc=y.row,
        batch=(group, channels, conv.filters),
        parts=parts,
        bias=conv.b,
        rows=PIXELS if pixels else WINDOWS,
        table=None if pixels else _table(conv, channels, moves),
        image=divided_image(x.dims[2:], y.dims[2:], conv.view, moves),
    )
    used = max((launch.scratch for launch in packing), default=0)
    way = tile_named(variant) if variant else None
    launches = (*packing, *multiply_split(product, conv.tail, setting.target, used, way))
    scratch = max(launch.scratch for launch in launches)
    return tuple(replace(launch, scratch=scratch) for launch in launches)


def split_time(conv: Convolution) -> float:
    """Return the microseconds that `split_convolution` is expected to take."""
    parts = parts_of(conv.setting)
    packing = 0.0 if conv.channels % 4 == 0 else 1.5 + 4 * 2.5 * conv.x.size / 3e6
    return packing + time_of(_task(conv), parts, conv.setting.target)


def split_variants(conv: Convolution) -> tuple[str, ...]:
    """Return the tiles, each with the splits of sums that are worth a try."""
    ways = ways_of(_task(conv), parts_of(conv.setting), conv.setting.target)
    least = ways[0][0]
    return tuple(title_of(tile, splits) for time, tile, splits in ways if time < 1.7 * least)


def _task(conv: Convolution) -> Task:
    shape = (conv.pixels, conv.filters, conv.taps * _channels(conv))
    return task_of(shape, conv.group, not conv.is_pointwise, parts_of(conv.setting))


def _channels(conv: Convolution) -> int:
    """Return the channels of a group as they lie in memory."""
    if conv.channels % 4 == 0:
        return conv.channels
    return 4 if conv.channels < 4 else ceil_div(conv.channels, 8) * 8


def _table(conv: Convolution, channels: int, moves: Ints) -> Packed:
    """Return where the elements of a window lie, see `pack_table`."""
    kernel, dilations = conv.view.kernel, conv.view.dilations
    pack = partial(
        pack_table, channels=channels, kernel=kernel, dilations=dilations, moves=moves[1:], vector=4
    )
    layout = ("table", channels, kernel, dilations, moves[1:], 4)
    return Packed((conv.w.value,), layout, pack)


# ── packing ──────────────────────────────────────────────────────────────────────────────────────


def _strides(spatial: Ints, channels: int) -> Ints:
    """Return the strides of an image, channels last, with so many channels in memory."""
    steps = [channels * prod(spatial[axis + 1 :]) for axis in range(len(spatial))]
    return (channels * prod(spatial), 1, *steps)


def _packed_image(x: Tensor, channels: int) -> Launch:
    """Return what brings an image into the workspace, channels last and filled up with zeros."""
    rows, width = prod(x.dims[2:-1]), x.dims[-1]
    count = x.dims[0] * rows * width
    return Launch(
        "pack_image.cu",
        "pack_image",
        grid=(ceil_div(count, 256), 1, 1),
        block=256,
        args={
            **{"x": x, "y": Scratch(0), "count": count, "channels": x.dims[1], "height": rows},
            **{"width": width, "padded_width": width, "left": 0},
        },
        types=(("T", uint32),),
        constants=(("PADDED", channels), ("PIXELS", 1)),
        scratch=4 * count * channels,
        early=True,
    )


def pack_filters(w: Array, groups: int, channels: int, parts: int) -> Array:
    """Return weights [m, c, *kernel] in the order of `pack_parts`.

    Args:
        w: the weights; a row is one filter, its terms are [kernel, channels].
        groups: number of groups, one product each.
        channels: c or more; zeros behind the last one.
        parts: of each number.
    """
    filters, taps = w.shape[0] // groups, prod(w.shape[2:])
    rows = np.zeros((groups * filters, taps, channels), w.dtype)
    rows[..., : w.shape[1]] = w.reshape(w.shape[0], w.shape[1], taps).transpose(0, 2, 1)
    return pack_parts(rows.reshape(groups, filters, taps * channels), parts)
