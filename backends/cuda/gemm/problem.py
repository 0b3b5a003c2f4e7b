"""What is multiplied: sizes, which a tile is chosen for, operands, and where the left one lies.

Its rows are those of a matrix, or windows of an image, which are stored nowhere (im2col).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from math import prod

import numpy as np

from ....runtime.ir.dtypes import DType, float32, uint8, uint16, uint32
from ....runtime.ir.types import Array
from ....runtime.ops.window import Window
from ....runtime.plan.backend import Format
from ..recipe.launch import Launch
from ..recipe.layout import Ints, by_axis, ceil_div, sizes, strides
from ..recipe.operands import Given, Members, Packed, Scratch, Tensor
from .pack import Form

#: What a product is: rows, columns and terms.
Shape = tuple[int, int, int]

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


# ── products ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Problem:
    """One or several products of equal size.

    Attributes:
        m, n, k: rows, columns and terms of one.
        batch: how many.
        rows: what the rows of A are.
        traffic: bytes that are read and written.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    rows: Rows = Rows.MATRIX
    traffic: int = 0

    @property
    def windows(self) -> bool:
        """Whether elements of A are looked up in a table."""
        return self.rows is Rows.WINDOWS


@dataclass(frozen=True, slots=True)
class Batch:
    """How many products there are, or groups of a convolution, and the distances of operands."""

    count: int = 1
    a: int = 0
    b: int = 0
    c: int = 0


#: One product.
SINGLE = Batch()


@dataclass(frozen=True, slots=True)
class Linear:
    """alpha * a @ b + bias, of one product or a stack of them; `Gemm` is what a schedule gets.

    Attributes:
        y: the result.
        a: of any rank, m rows of k.
        b: [k, n], or [n, k] where form[1] says transposed; not constant only with alpha 1.
        shape: (m, n, k).
        form: (alpha, transposed).
        bias: [n] or None.
        batch: how many products, and the distances of their operands.
    """

    y: Tensor
    a: Tensor
    b: Tensor
    shape: Shape
    form: Form = (1.0, False)
    bias: Tensor | Packed | None = None
    batch: Batch = SINGLE


@dataclass(frozen=True, slots=True)
class Gemm:
    """Products c = a @ b' + bias.

    Attributes:
        a: the left operand.
        b: the right operand, [batch][n][ldb] with zeros behind column k, or as a schedule wants
            it: constants, in the workspace, or as it is given.
        c: the results.
        shape: rows, columns and terms of one product.
        ldb, ldc: distances of rows, in elements; of `b` in parts the rows of a part.
        batch: how many products.
        bias: one number a column, or None.
        across: `b` is [k][n] instead.
        dtype: of the elements of `a`.
        dtype_b: of those of `b`; None where it is the same.
    """

    a: Source
    b: Packed | Tensor | Scratch
    c: Tensor | Scratch
    shape: Shape
    ldb: int
    ldc: int
    batch: Batch = SINGLE
    bias: Tensor | Packed | None = None
    across: bool = False
    dtype: DType = float32
    dtype_b: DType | None = None

    @property
    def elements(self) -> tuple[tuple[str, DType], tuple[str, DType]]:
        """The C++ aliases T and U of the elements of `a` and `b`."""
        return ("T", self.dtype), ("U", self.dtype_b or self.dtype)

    @property
    def constant(self) -> bool:
        """Whether `b` was there before the kernel in front began."""
        return isinstance(self.b, Packed)

    def vector_c(self, *vectors: int) -> int:
        """Return how many results are stored at once: one of these numbers, or 1."""
        return widest(vectors, self.shape[1], self.ldc, self.batch.c)

    def pitched(self, along: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the operands of a convolution that may be slices; see `Launch.pitched`.

        Args:
            along: those of its epilogue that lie like the result.
        """
        if self.a.rows is Rows.MATRIX:
            return ()
        images = (self.a.data, self.c, *along)
        return tuple(image for image in images if isinstance(image, Tensor))

    @property
    def sizes(self) -> dict[str, Given]:
        """The arguments that kernels have for sizes, distances and windows."""
        m, n, k = self.shape
        return {
            **{"table": self.a.table, "image": self.a.geometry, "m": m, "n": n, "k": k},
            **{"lda": self.a.distance, "batch_a": self.batch.a},
        }


# ── images ───────────────────────────────────────────────────────────────────────────────────────


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
