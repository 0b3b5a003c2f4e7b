"""Where the left operand of a product lies: rows of a matrix, or windows of an image (im2col)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from math import prod

import numpy as np

from ....runtime.ir.dtypes import uint8, uint16, uint32
from ....runtime.ir.types import Array
from ....runtime.ops.window import Window
from ....runtime.plan.backend import Format
from ..recipe.launch import Launch
from ..recipe.layout import Ints, ceil_div, strides
from ..recipe.operands import Members, Packed, Scratch, Tensor
from ..recipe.spatial import by_axis, sizes

#: Greatest extent of an image: sums of rows and of columns are 15-bit numbers.
MAX_EXTENT = 1 << 13


class Rows(IntEnum):
    """What the rows of A are: those of a matrix, pixels (1x1 windows), or windows."""

    MATRIX, PIXELS, WINDOWS = range(3)


def widest(vectors: Ints, *steps: int) -> int:
    """Return how many elements are copied at once if rows begin at multiples of `steps`."""
    return next(v for v in (*vectors, 1) if all(step % v == 0 for step in steps))


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of a matrix.

    Attributes:
        data: where they lie.
        row: elements from one to the next.
        vector: elements that are copied at once.
    """

    data: Tensor | Scratch
    row: int
    vector: int = 8

    @property
    def rows(self) -> Rows:
        """Rows of a matrix."""
        return Rows.MATRIX

    @property
    def table(self) -> None:
        """Nothing is looked up."""
        return

    @property
    def geometry(self) -> None:
        """There is no image."""
        return

    @property
    def distance(self) -> int:
        """The argument `lda` of kernels."""
        return self.row


@dataclass(frozen=True, slots=True)
class Image:
    """Windows of an image, one for each pixel of the result.

    Attributes:
        data: the image.
        spatial: its extents.
        strides: its strides as it lies in memory: image, channel, spatial axes.
        channels: of one group, as they lie in memory.
        view: the windows.
        output: the extents of the result.
        vector: neighbouring channels that are copied at once.
        images: their number.
        weights: the constant that tables of windows are kept with.
        channels_last: whether channels are innermost; then 1x1 windows are pixels.
        divided: kernels divide by the sizes of the result by multiplication; see `divided_image`.
    """

    data: Tensor | Scratch
    spatial: Ints
    strides: Ints
    channels: int
    view: Window
    output: Ints
    vector: int
    images: int
    weights: Tensor
    channels_last: bool = True
    divided: bool = True

    @property
    def rows(self) -> Rows:
        """Pixels or windows."""
        single = prod(self.view.kernel) == 1 and not any(self.view.pads_begin + self.view.pads_end)
        return Rows.PIXELS if single and self.channels_last else Rows.WINDOWS

    @property
    def terms(self) -> int:
        """Elements of a window."""
        return prod(self.view.kernel) * self.channels

    @property
    def row(self) -> int:
        """Elements from one pixel to the next, where channels are innermost."""
        return self.strides[-1]

    @property
    def distance(self) -> int:
        """The argument `lda` of kernels, which images do not have."""
        return 0

    @property
    def table(self) -> Packed | None:
        """Where the elements of a window lie, see `pack_table`; pixels need none."""
        if self.rows is Rows.PIXELS:
            return None
        kernel, dilations, moves = self.view.kernel, self.view.dilations, self.strides[1:]
        order = (self.channels, kernel, dilations, moves, self.vector)
        pack = partial(
            pack_table, channels=self.channels, kernel=kernel, dilations=dilations, moves=moves,
            vector=self.vector,
        )  # fmt: skip
        return Packed((self.weights.value,), ("table", *order), pack)

    @property
    def geometry(self) -> Members:
        """Struct `Image` of the kernels."""
        make = divided_image if self.divided else image_of
        return make(self.spatial, self.output, self.view, self.strides)


Source = Matrix | Image


def image_source(
    x: Tensor, w: Tensor, view: Window, output: Ints, vectors: Ints, joined: int = 1
) -> tuple[Image, tuple[Launch, ...]]:
    """Return the windows of an image, and what brings it into the workspace if it lies plain.

    Args:
        x: the image. Where it lies in C order, of few channels, it is packed into words of
            4 or a multiple of 8 channels, which meet zeros.
        w: the weights, constants.
        view: the windows.
        output: extents of the result.
        vectors: channels that may be copied at once, the most first.
        joined: how many groups of the weights are one group of the product.
    """
    make = partial(Image, spatial=x.dims[2:], view=view, output=output, images=x.dims[0], weights=w)
    channels = w.dims[1] * joined
    if x.is_channels_last:
        vector = widest(vectors, channels)
        return make(x, strides=x.strides, channels=channels, vector=vector), ()
    channels = padded_channels(channels)
    packed, launch = packed_image(x, channels, x.dims[-1], 0)
    moves = strides((x.dims[0], channels, *x.dims[2:]), Format.CHANNELS_LAST)
    vector = widest(vectors, channels)
    return make(packed, strides=moves, channels=channels, vector=vector), (launch,)


def padded_channels(channels: int) -> int:
    """Return the channels of a packed image."""
    return 4 if channels <= 4 else ceil_div(channels, 8) * 8


def packed_image(
    x: Tensor, channels: int, width: int, left: int, pixels: int = 1
) -> tuple[Scratch, Launch]:
    """Return an image in the workspace, channels last and padded, and what brings it there.

    Args:
        x: the image, in C order.
        channels: in the workspace.
        width: likewise.
        left: columns of zeros before the first.
        pixels: neighbours that lie in one place; with 2, each pixel but the first is there twice.
    """
    images, rows, size = x.dims[0], prod(x.dims[2:-1]), x.dtype.itemsize
    target, count = Scratch(0), images * rows * width
    return target, Launch(
        "gemm/pack_image.cu",
        "pack_image",
        grid=(ceil_div(count, 256), 1, 1),
        block=256,
        args={
            **{"x": x, "y": target, "count": count, "channels": x.dims[1], "height": rows},
            **{"width": x.dims[-1], "padded_width": width, "left": left},
        },
        types=(("T", {1: uint8, 2: uint16, 4: uint32}[size]),),
        constants=(("PADDED", channels), ("PIXELS", pixels)),
        scratch=size * count * channels * pixels,
    )


# ── where windows begin, and where their elements lie ────────────────────────────────────────────


def image_of(spatial: Ints, output: Ints, view: Window, moves: Ints) -> dict[str, int]:
    """Return the struct `Image` of simt.cu; one spatial axis counts as the width.

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
    """Return the struct `Image` of operand_a.cuh, which divides by sizes of the result."""
    image = image_of(spatial, output, view, moves)
    return {**image, "pixels": divisor(prod(output)), "columns": divisor(output[-1])}


def divisor(d: int) -> tuple[int, int]:
    """Return the factor, as a signed number, and the shift that divide 31-bit numbers by `d`."""
    shift = 31 + (d - 1).bit_length()
    factor = ceil_div(1 << shift, d)
    return factor - (1 << 32 if factor >= 1 << 31 else 0), shift


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
