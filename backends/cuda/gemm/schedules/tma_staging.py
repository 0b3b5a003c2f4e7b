"""What TMA brings to shared memory for a product, and in which layout; see `tma.cu`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod

from .....runtime.base.record import record
from .....runtime.ops.window import Window
from ...recipe.operands import Ints, Tensor, TensorMap, ceil_div
from ..problem import Frames, GemmArguments, Image
from ..tile import CtaTile

#: Maximum pixels per copy, and rows per box.
MAX_PIXELS, MAX_ROWS = 1024, 256
#: Limits of window offsets from the image's edges, of strides, and of taps.
MAX_CORNER, MAX_STEP, MAX_TAP = 127, 8, 255
#: Rows per group, and the side of a square with as many pixels.
ROWS, SIDE = 64, 8
ALIGNMENT = 1024
_ONE, _NONE = (1, 1), (0, 0)


class SmemLayout(Enum):
    """How rows of A are arranged in shared memory; see `tma.cu`."""

    MATRIX, RUN, SQUARES, TAPWISE = range(4)


def layouts(tile: CtaTile) -> tuple[SmemLayout, ...]:
    """Return the layouts that a tile is meant for: whether A serves one step or several."""
    one = tile.stages > 2 or tile.stages == tile.stages_b
    if tile.deep:
        return (SmemLayout.MATRIX,) if one else (SmemLayout.SQUARES,)
    return (SmemLayout.MATRIX, SmemLayout.TAPWISE) if one else (SmemLayout.RUN, SmemLayout.SQUARES)


@dataclass(frozen=True)
class TmaProduct:
    """A product as TMA sees it.

    Attributes:
        gemm: the product: of a channels-last image, or of a matrix.
        pooled: the result of fused 2 x 2 max pooling; or None.
        concurrent: whether it runs beside others.
    """

    gemm: GemmArguments
    pooled: Tensor | None = None
    concurrent: bool = False

    @cached_property
    def source(self) -> Image | None:
        """The image, if it is one."""
        return self.gemm.a if isinstance(self.gemm.a, Image) else None

    @cached_property
    def view(self) -> Window:
        """The windows."""
        source = self.source
        return source.view if source else Window(_ONE, _ONE, _ONE, _NONE, _NONE, _ONE)

    @property
    def spatial(self) -> Ints:
        """Height and width of the image; (1, 1) for a matrix."""
        return self.source.spatial if self.source else _ONE

    @property
    def images(self) -> int:
        """Number of images; for a matrix, of rows."""
        return self.source.images if self.source else self.gemm.shape[0]

    @property
    def groups(self) -> int:
        """Number of groups of a convolution."""
        return self.gemm.batch.count

    @cached_property
    def channels(self) -> int:
        """Channels of a group of the image."""
        return self.source.channels if self.source else self.gemm.shape[2]

    @property
    def frames(self) -> Frames | None:
        """Those of a volume, if the image is one."""
        return self.source.frames if self.source else None

    @property
    def moves(self) -> Ints:
        """Strides of the image: image, row, column."""
        if self.source is None:
            return (self.gemm.shape[2],) * 3
        image, _, *spatial = self.source.strides
        return image, *spatial

    @property
    def result(self) -> Tensor:
        """The tensor that is stored."""
        assert isinstance(self.gemm.c, Tensor)
        return self.pooled or self.gemm.c

    @property
    def ldc(self) -> int:
        """Elements from one pixel of the result to the next."""
        return self.pooled.row if self.pooled else self.gemm.ldc

    @property
    def whole(self) -> bool:
        """Whether rows of the result are whole words."""
        return self.gemm.shape[1] % 8 == self.ldc % 8 == 0

    @cached_property
    def chunk(self) -> int:
        """Channels per step: as many as waste little."""
        # The fixed cost of a step, in channels. All of them are those of one frame.
        own = self.frames.channels if self.frames else 0
        fitting = [size for size in (64, 32, 16) if own % size == 0]
        return min(fitting, key=lambda size: ceil_div(self.channels, size) * (size + 24))

    @cached_property
    def steps(self) -> int:
        """Steps of a tile."""
        return ceil_div(self.channels, self.chunk) * prod(self.view.kernel)

    @cached_property
    def traffic(self) -> int:
        """Bytes of the image, the filters and the result."""
        pixels, filters = self.images * prod(self.spatial), self.groups * self.gemm.shape[1]
        own = self.frames.channels if self.frames else self.channels
        weights = filters * prod(self.view.kernel) * self.channels
        return 2 * (pixels * self.groups * own + weights + self.result.size)

    def tiles(self, rows: int, tile: CtaTile) -> Ints:
        """Return the number of tiles along rows and along the filters of all groups."""
        return ceil_div(rows, tile.bm), self.groups * ceil_div(self.gemm.shape[1], tile.bn)

    @cached_property
    def reach(self) -> Ints:
        """Extent of a window beyond its first pixel along each axis."""
        return tuple(
            (k - 1) * d for k, d in zip(self.view.kernel, self.view.dilations, strict=True)
        )


@record
class Staging:
    """How tiles of A are staged in shared memory.

    Attributes:
        layout: its name.
        rows: rows of the product; some may be padding.
        extents: the rows and columns of `rows` that belong to one image.
        pixels: pixels of A in the tile.
        parts: number of copies.
        taps: row and column distances within a window; see struct `Windows`.
        next: distance between groups of eight rows.
        map: the tensor map.
    """

    layout: SmemLayout
    rows: int
    extents: Ints
    pixels: int
    parts: int
    taps: Ints
    next: int
    map: TensorMap

    def stage(self, chunk: int) -> int:
        """Return the bytes of a tile of A, with parts aligned to the swizzle."""
        part = ceil_div(self.pixels // self.parts * chunk * 2, ALIGNMENT) * ALIGNMENT
        return part * self.parts


def staged(p: TmaProduct, tile: CtaTile, layout: SmemLayout) -> Staging | None:
    """Return the staging of a product in a layout; None if impossible or redundant."""
    if p.frames and layout is not SmemLayout.SQUARES:
        return None
    if (
        layout in (SmemLayout.RUN, SmemLayout.SQUARES)
        and not p.frames
        and prod(p.view.kernel) == 1
        and not p.pooled
    ):
        return None
    make = {
        SmemLayout.MATRIX: _matrix,
        SmemLayout.RUN: _run,
        SmemLayout.SQUARES: _squares,
        SmemLayout.TAPWISE: _tapwise,
    }[layout]
    return make(p, tile) if not p.pooled or layout is SmemLayout.SQUARES else None


def _matrix(p: TmaProduct, tile: CtaTile) -> Staging | None:
    whole = prod(p.view.kernel) == prod(p.view.strides) == 1 and not any(
        (*p.view.pads_begin, *p.view.pads_end)
    )
    if not whole or tile.bm > MAX_ROWS:
        return None
    rows = p.images * prod(p.spatial)
    dims, strides, box = (p.groups * p.channels, rows), p.moves[2:], (p.chunk, tile.bm)
    map = TensorMap(p.gemm.a.data, p.gemm.dtype, dims, strides, box)
    return Staging(SmemLayout.MATRIX, rows, (1, 1), tile.bm, 1, (0, 0), 8, map)


def image_map(
    p: TmaProduct, box: Ints, upper: Ints | None = None, steps: Ints = (1, 1)
) -> TensorMap:
    """Return the tensor map of an image, of boxes or (im2col) of the windows up to `upper`."""
    (height, width), moves = p.spatial, p.moves
    channels, images = p.groups * p.channels, p.images
    if p.frames:
        channels, images = p.frames.channels, images // p.frames.output * p.frames.depth
    dims, strides = (channels, width, height, images), (moves[2], moves[1], moves[0])
    lower = (-p.view.pads_begin[1], -p.view.pads_begin[0])
    corners = None if upper is None else (lower, (upper[1], upper[0]))
    data, dtype = p.gemm.a.data, p.gemm.dtype
    return TensorMap(data, dtype, dims, strides, box, corners, (1, steps[1], steps[0], 1))


def weights_map(p: TmaProduct, filters: int) -> TensorMap:
    """Return the tensor map of the weights, of boxes of so many filters for one tap."""
    taps = prod(p.view.kernel)
    dims, strides = (p.channels, taps, p.groups * p.gemm.shape[1]), (p.channels, taps * p.channels)
    return TensorMap(p.gemm.b, p.gemm.dtype, dims, strides, (p.chunk, 1, filters))


def _run(p: TmaProduct, tile: CtaTile) -> Staging | None:
    view = p.view
    # Padding after a row is that before the next one, but every window starts in its own row.
    upper = tuple(
        max(0, e - min(b, r))
        for b, e, r in zip(view.pads_begin, view.pads_end, p.reach, strict=True)
    )
    extents = tuple(s + b + u for s, b, u in zip(p.spatial, view.pads_begin, upper, strict=True))
    pixels = tile.bm + p.reach[0] * extents[1] + p.reach[1]
    if view.strides != (1, 1) or pixels > MAX_PIXELS or max(*view.pads_begin, *upper) > MAX_CORNER:
        return None
    taps = (view.dilations[0] * extents[1], view.dilations[1])
    map = image_map(p, (p.chunk, pixels), upper)
    return Staging(SmemLayout.RUN, p.images * prod(extents), extents, pixels, 1, taps, 8, map)


def _squares(p: TmaProduct, tile: CtaTile) -> Staging | None:
    view, sides = p.view, tuple(SIDE + r for r in p.reach)
    if view.strides != (1, 1) or max(sides) > MAX_ROWS:
        return None
    extents = tuple(ceil_div(o, SIDE) for o in view.output)
    blocks = tile.bm // ROWS
    taps = (view.dilations[0] * sides[1], view.dilations[1])
    map = image_map(p, (p.chunk, sides[1], sides[0], 1))
    rows = p.images * prod(extents) * ROWS
    pixels = blocks * prod(sides)
    return Staging(SmemLayout.SQUARES, rows, extents, pixels, blocks, taps, sides[1], map)


def _tapwise(p: TmaProduct, tile: CtaTile) -> Staging | None:
    view = p.view
    upper = tuple(
        (o - 1) * s + 1 - b - size
        for o, s, b, size in zip(view.output, view.strides, view.pads_begin, p.spatial, strict=True)
    )
    corners = max(map(abs, (*upper, *view.pads_begin)))
    if corners > MAX_CORNER or max(view.strides) > MAX_STEP or max(p.reach) > MAX_TAP:
        return None
    made = image_map(p, (p.chunk, tile.bm), upper, view.strides)
    rows = p.images * prod(view.output)
    return Staging(SmemLayout.TAPWISE, rows, view.output, tile.bm, 1, view.dilations, 8, made)
