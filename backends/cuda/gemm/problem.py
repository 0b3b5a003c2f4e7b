"""GEMM problems: sizes, for which tiles are chosen; and where the operands come from.

The rows of A are those of a matrix, or windows of an image that are never stored (implicit im2col);
B is computed, or constants that are packed once, in the order of a schedule.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from functools import partial
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, float32
from ....runtime.ops.window import Window
from ....runtime.plan.format import Format
from ..recipe.launch import Launch
from ..recipe.operands import (
    Given,
    Ints,
    Members,
    Packed,
    Scratch,
    Tensor,
    strides,
)
from .pack import pack_table
from .pack_image import packed_image, padded_channels, padded_image
from .pack_rows import FilterPacking, MatrixPacking, Order
from .windows import MAX_REACH, divided_image, image_of, reach_of

#: The factor of a matrix, and whether it is [n, k].
Form = tuple[float, bool]
#: M, N and K.
Shape = tuple[int, int, int]


class RowKind(IntEnum):
    """The kind of rows of A: of a matrix, pixels (1x1 windows), or windows."""

    MATRIX, PIXELS, WINDOWS = range(3)


def widest(vectors: Ints, *steps: int) -> int:
    """Return how many elements can be copied at once if rows start at multiples of `steps`."""
    return next(v for v in (*vectors, 1) if all(step % v == 0 for step in steps))


@record
class Matrix:
    """Operand A as the rows of a matrix.

    Attributes:
        data: the matrix.
        row: elements from one row to the next.
        vector: elements per copy.
    """

    data: Tensor | Packed | Scratch
    row: int
    vector: int = 8

    @property
    def rows(self) -> RowKind:
        """Rows of a matrix."""
        return RowKind.MATRIX

    @property
    def table(self) -> None:
        """None: no address table."""
        return

    @property
    def geometry(self) -> None:
        """None: no image."""
        return

    @property
    def squares(self) -> bool:
        """Whether rows are pixels in squares of 2 x 2: they are not."""
        return False

    @property
    def axes(self) -> int:
        """The axes of an image in operand_a.cuh; 2 without one."""
        return 2

    @property
    def distance(self) -> int:
        """The argument `lda` of kernels."""
        return self.row


@record
class Frames:
    """Frames of a volume as images whose channels are those of all frames of a window.

    Attributes:
        channels: of a frame.
        depth: frames of a sample.
        output: frames of a sample's result.
        step: distance between the first frames of windows.
        dilation: distance between frames of a window.
        pad: frames before the first one.
    """

    channels: int
    depth: int
    output: int
    step: int
    dilation: int
    pad: int


@record
class Image:
    """Operand A as windows of an image, one per output pixel.

    Attributes:
        data: the image.
        spatial: its spatial sizes.
        strides: its strides in memory: image, channel, spatial axes.
        channels: channels per group, as stored.
        view: the windows.
        output: the spatial sizes of the result.
        vector: adjacent channels per copy.
        images: number of images.
        channels_last: whether channels are innermost; 1x1 windows are then pixels.
        divided: whether kernels divide by output sizes through multiplication; see `divided_image`.
        squares: whether pixels of the result come in squares of 2 x 2.
        frames: of the volume that it is read from as if they were stacked; None for an image.
    """

    data: Tensor | Scratch
    spatial: Ints
    strides: Ints
    channels: int
    view: Window
    output: Ints
    vector: int
    images: int
    channels_last: bool = True
    divided: bool = True
    squares: bool = False
    frames: Frames | None = None

    @property
    def rows(self) -> RowKind:
        """Pixels or windows."""
        single = prod(self.view.kernel) == 1 and not any(self.view.pads_begin + self.view.pads_end)
        return RowKind.PIXELS if single and self.channels_last else RowKind.WINDOWS

    @property
    def terms(self) -> int:
        """Elements per window."""
        return prod(self.view.kernel) * self.channels

    @property
    def row(self) -> int:
        """Elements from one pixel to the next, if channels are innermost."""
        return self.strides[-1]

    @property
    def axes(self) -> int:
        """Numbers in the place of a pixel: 1 of a row that is too long for two; 3 of a volume."""
        is_long = len(self.spatial) == 1 and reach_of(self.spatial, self.view) > MAX_REACH
        return 1 if self.divided and is_long else max(2, len(self.spatial))

    @property
    def distance(self) -> int:
        """The argument `lda` of kernels, which images do not use."""
        return 0

    @property
    def table(self) -> Packed | None:
        """The addresses of a window's elements, see `pack_table`; None for pixels."""
        if self.rows is RowKind.PIXELS:
            return None
        kernel, dilations, moves = self.view.kernel, self.view.dilations, self.strides[1:]
        order = (self.channels, kernel, dilations, moves, self.vector, self.axes)
        pack = partial(
            pack_table, channels=self.channels, kernel=kernel, dilations=dilations, moves=moves,
            vector=self.vector, axes=self.axes,
        )  # fmt: skip
        return Packed((), ("table", *order), pack)

    @property
    def geometry(self) -> Members:
        """Struct `Image` of the kernels."""
        if not self.divided:
            return image_of(self.spatial, self.output, self.view, self.strides)
        return divided_image(
            self.spatial, self.output, self.view, self.strides, squares=self.squares
        )


Source = Matrix | Image


# ── operand B: constants in the order of a schedule ──────────────────────────────────────────────


def packed_matrix(b: Tensor, form: Form, order: str, arrange: Order) -> Packed:
    """Return alpha * b as [..., n, k] in an order that `arrange` makes; see `rows_of`."""
    return Packed((b.value,), (f"columns {order}", *form), MatrixPacking(*form, arrange))


def packed_filters(
    w: Tensor, groups: int, channels: int, order: str, arrange: Order, joined: int = 1
) -> Packed:
    """Return weights in a packed order; see `filters_of`, `joined_groups` and `packed_matrix`."""
    pack = FilterPacking(groups, channels, joined, arrange)
    return Packed((w.value,), (f"filters {order}", groups, channels, joined), pack)


# ── products ─────────────────────────────────────────────────────────────────────────────────────


@record
class Problem:
    """One product, or several of equal size.

    Attributes:
        m, n, k: M, N and K of one.
        batch: number of products.
        rows: the kind of rows of A.
        traffic: bytes read and written.
        concurrent: whether it runs beside others; see `considerate`.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    rows: RowKind = RowKind.MATRIX
    traffic: int = 0
    concurrent: bool = False

    @property
    def windows(self) -> bool:
        """Whether addresses of A are looked up in a table."""
        return self.rows is RowKind.WINDOWS


@record
class Batch:
    """Number of products, or groups of a convolution, and the strides between operands.

    Stacks that are broadcast along some axes have two strides: products are `heads` of each of
    count / heads samples.

    Attributes:
        count: number of products.
        a, b: strides of operands from one product, or sample, to the next.
        c: stride of results from one product to the next.
        heads: products of a sample.
        head_a, head_b: strides of operands from one head to the next.
    """

    count: int = 1
    a: int = 0
    b: int = 0
    c: int = 0
    heads: int = 1
    head_a: int = 0
    head_b: int = 0


#: One product.
SINGLE = Batch()


@record
class Linear:
    """alpha * a @ b + bias, of one product or a stack; `GemmArguments` is what a schedule takes.

    Attributes:
        y: the result.
        a: of any rank, m rows of k.
        b: [k, n], or [n, k] if form[1], which means transposed; computed only if alpha is 1.
        shape: (m, n, k).
        form: (alpha, transposed).
        bias: [n] or None.
        batch: number of products, and the strides between operands.
    """

    y: Tensor
    a: Tensor
    b: Tensor
    shape: Shape
    form: Form = (1.0, False)
    bias: Tensor | Packed | None = None
    batch: Batch = SINGLE


@record
class GemmArguments:
    """Products c = a @ b' + bias.

    Attributes:
        a: the left operand.
        b: the right operand, [batch][n][ldb] zero-padded after column k, or in the order of a
            schedule: constant, in the workspace, or as it is.
        c: the result.
        shape: M, N and K of one product.
        ldb, ldc: elements between rows; for `b` in parts the rows per part.
        batch: number of products.
        bias: one element per column, or None.
        scales: factors of columns, padded to eights, if `b` is in halves, see `f16x3`.
        across: whether `b` is [k][n] instead.
        dtype: element type of `a`.
        dtype_b: element type of `b`; None if it is the same.
        concurrent: whether it runs beside others, with which it shares multiprocessors.
    """

    a: Source
    b: Packed | Tensor | Scratch
    c: Tensor | Scratch
    shape: Shape
    ldb: int
    ldc: int
    batch: Batch = SINGLE
    bias: Tensor | Packed | None = None
    scales: Packed | None = None
    across: bool = False
    dtype: DType = float32
    dtype_b: DType | None = None
    concurrent: bool = False

    @property
    def elements(self) -> tuple[tuple[str, DType], tuple[str, DType]]:
        """The C++ aliases T and U of the elements of `a` and `b`."""
        return ("T", self.dtype), ("U", self.dtype_b or self.dtype)

    @property
    def constant(self) -> bool:
        """Whether `b` was complete before the previous kernel started."""
        return isinstance(self.b, Packed)

    @property
    def vector_b(self) -> int:
        """How many elements of `b` are copied at once: fewer than 16 bytes only if `across`."""
        chunk = 16 // (self.dtype_b or self.dtype).itemsize
        if not self.across:
            return chunk
        vectors = tuple(chunk >> i for i in range(chunk.bit_length()))
        return widest(vectors, self.shape[1], self.ldb, self.batch.b, self.batch.head_b)

    def vector_c(self, *vectors: int) -> int:
        """Return how many results can be stored at once: one of these numbers, or 1."""
        return widest(vectors, self.shape[1], self.ldc, self.batch.c)

    def pitched(self, along: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the operands that may be slices: of a convolution, or of an epilogue.

        Args:
            along: operands of the epilogue with the result's order of elements.
        """
        if self.a.rows is RowKind.MATRIX:
            factors = {t.value for t in (self.a.data, self.b) if isinstance(t, Tensor)}
            return tuple(z for z in along if z.value not in factors)
        images = (self.a.data, self.c, *along)
        return tuple(image for image in images if isinstance(image, Tensor))

    @property
    def sizes(self) -> dict[str, Given]:
        """The kernel arguments for sizes, strides and windows."""
        m, n, k = self.shape
        return {
            **{"table": self.a.table, "image": self.a.geometry, "m": m, "n": n, "k": k},
            **{"lda": self.a.distance, "batch_a": self.batch.a},
        }


# ── images ───────────────────────────────────────────────────────────────────────────────────────


def image_source(
    x: Tensor, w: Tensor, view: Window, output: Ints, vectors: Ints, joined: int = 1
) -> tuple[Image, tuple[Launch, ...]]:
    """Return the windows of an image, and the launches that pack it first where that is needed.

    Args:
        x: the image. In C order with few channels, or if no vector divides its channels, it is
            packed; see `_packed_source`.
        w: the weights, constants.
        view: the windows.
        output: spatial sizes of the result.
        vectors: allowed numbers of channels per copy, largest first.
        joined: how many groups of the weights form one group of the product.
    """
    channels = w.dims[1] * joined
    vector = widest(vectors, channels)
    if not x.is_channels_last or (vector == 1 and w.dims[1] == x.dims[1]):
        return _packed_source(x, w, view, output, vectors)
    return Image(
        data=x,
        spatial=x.dims[2:],
        strides=x.strides,
        channels=channels,
        view=view,
        output=output,
        vector=vector,
        images=x.dims[0],
    ), ()


def _packed_source(
    x: Tensor, w: Tensor, view: Window, output: Ints, vectors: Ints
) -> tuple[Image, tuple[Launch, ...]]:
    """Return the windows of an image that is packed in the workspace, and the launch that does it.

    Its pixels have 4 or a multiple of 8 channels, zero-padded.
    """
    channels = padded_channels(w.dims[1])
    if x.is_channels_last:
        packed, launch = padded_image(x, channels)
    else:
        packed, launch = packed_image(x, channels, x.dims[-1], 0)
    return Image(
        data=packed,
        spatial=x.dims[2:],
        strides=strides((x.dims[0], channels, *x.dims[2:]), Format.CHANNELS_LAST),
        channels=channels,
        view=view,
        output=output,
        vector=widest(vectors, channels),
        images=x.dims[0],
    ), (launch,)


def in_plane(image: Image) -> Image:
    """Return windows over one axis as windows over two, of an image with one row; others as is."""
    if len(image.spatial) > 1:
        return image
    of_image, of_channel, of_column = image.strides
    view, one = image.view, (1,)
    return replace(
        image,
        spatial=one + image.spatial,
        strides=(of_image, of_channel, of_image, of_column),
        output=one + image.output,
        view=Window(
            kernel=one + view.kernel,
            strides=one + view.strides,
            dilations=one + view.dilations,
            pads_begin=(0, *view.pads_begin),
            pads_end=(0, *view.pads_end),
            output=one + view.output,
        ),
    )
