"""Convolutions as matrix products: where windows begin, and where their elements lie."""

from __future__ import annotations

from math import prod

import numpy as np

from ...runtime.ops.window import Window
from ...runtime.types import Array
from .layout import Ints, ceil_div
from .spatial import by_axis, sizes


def image_of(spatial: Ints, output: Ints, view: Window, moves: Ints) -> dict[str, int]:
    """Return the struct `Image` of gemm.cu; one spatial axis counts as the width.

    Args:
        spatial: extents of the input.
        output: extents of the result.
        view: the windows.
        moves: strides of the input as it lies in memory: image, channel, then the spatial axes.
    """
    flat = len(spatial) == 1
    one = (1,) if flat else ()
    pads = (*(0 for _ in one), *view.pads_begin)
    row, column = (0, moves[2]) if flat else moves[2:]
    return {
        **{**sizes("", spatial), **sizes("out_", output)},
        **by_axis(stride=(*one, *view.strides), pad=pads),
        **{"of_image": moves[0], "of_row": row, "of_column": column},
    }


def divided_image(
    spatial: Ints, output: Ints, view: Window, moves: Ints
) -> dict[str, int | tuple[int, int]]:
    """Return the struct `Image` of rows.cuh, which can divide by sizes of the result; see above."""
    image = image_of(spatial, output, view, moves)
    return {**image, "pixels": divisor(prod(output)), "columns": divisor(output[-1])}


def pack_table(
    w: Array, channels: int, kernel: Ints, dilations: Ints, moves: Ints, vector: int
) -> Array:
    """Return (offset, row | column << 16) of every `vector`-th element of a window, int32.

    Args:
        w: the weights, whose elements play no part.
        channels: of one group.
        kernel: the window.
        dilations: distances of its elements.
        moves: strides of the input: channel, then the spatial axes.
        vector: elements that are copied at once, neighbouring channels.
    """
    places = np.indices(kernel).reshape(len(kernel), -1) * np.array(dilations)[:, None]
    steps = np.array(moves[1:])[:, None]
    offsets = (places * steps).sum(0)[:, None] + np.arange(0, channels, vector) * moves[0]
    rows, columns = places if len(kernel) == 2 else (np.zeros_like(places[0]), places[0])
    corner = np.broadcast_to((rows | columns << 16)[:, None], offsets.shape)
    return np.stack([offsets, corner], axis=-1).astype(np.int32).reshape(-1, 2)


def divisor(d: int) -> tuple[int, int]:
    """Return the factor, as a signed number, and the shift that divide 31-bit numbers by `d`."""
    shift = 31 + (d - 1).bit_length()
    factor = ceil_div(1 << shift, d)
    return factor - (1 << 32 if factor >= 1 << 31 else 0), shift
