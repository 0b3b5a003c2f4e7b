"""Products of 16-bit floats that Hopper's copy engine feeds: recipes for `mma_bulk.cu`."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ...runtime.ops.window import Window
from .compile import Target
from .gemm.atoms import atom_of
from .gemm.epilogue import epilogue_flags
from .half_tiles import BULK_TILES, BulkTask, BulkTile, Layout, estimate_bulk
from .launch import Launch
from .layout import Ints, ceil_div
from .operands import Packed, Scratch, Tensor, TensorMap
from .spatial import by_axis, sizes
from .tail import Tail
from .windows import divisor

#: Pixels that one copy can bring, and rows of a box.
MOST_PIXELS, MOST_ROWS = 1024, 256
#: Distances of the first and the last window from the image's edges, of windows, and of taps.
MOST_CORNER, MOST_STEP, MOST_TAP = 127, 8, 255
#: Rows of results, and the side of a square of as many pixels.
ROWS, SIDE = 64, 8
ALIGNMENT = 1024
#: By so much it has to be faster than `mma.cu`, whose blocks can share a tile: estimates err.
MARGIN = 0.95
#: Columns of a tile that any product may have.
NARROWEST = 32


@dataclass(frozen=True, slots=True)
class BulkProduct:
    """A convolution of an image, channels last, or a product of matrices, as 1x1 pixels.

    Attributes:
        a: the image.
        spatial: its extents: rows and columns; of a matrix (1, 1).
        moves: its strides: image, row, column.
        channels: of the image.
        b: the weights, [filter][tap][channel].
        filters: their number.
        c: the result.
        ldc: from one of its pixels to the next, in elements.
        images: their number; of a matrix its rows.
        view: the windows.
        bias: one number a filter, or None.
        pooled: whether the greatest of 2 x 2 results is stored.
        gaps: whether it goes by the rows of image and result, which may be slices.
    """

    a: Tensor | Scratch
    spatial: Ints
    moves: Ints
    channels: int
    b: Packed
    filters: int
    c: Tensor
    ldc: int
    images: int
    view: Window
    bias: Tensor | Packed | None = None
    pooled: bool = False
    gaps: bool = True

    def pitched(self, tail: Tail) -> tuple[Tensor, ...]:
        """Return the operands that may be slices; see `Launch.pitched`."""
        if not self.gaps:
            return ()
        image = (self.a,) if isinstance(self.a, Tensor) else ()
        return (*image, self.c, *tail.along)

    @property
    def chunk(self) -> int:
        """Channels of a step: as many as waste little."""
        # A step takes some time anyway, as if there were more of them.
        return min((64, 32, 16), key=lambda size: ceil_div(self.channels, size) * (size + 24))

    @property
    def reach(self) -> Ints:
        """Pixels that a window reaches beyond its first, along each axis."""
        return tuple(
            (k - 1) * d for k, d in zip(self.view.kernel, self.view.dilations, strict=True)
        )


def matrix_product(
    c: Tensor, a: Tensor, b: Packed, shape: tuple[int, int, int], bias: Tensor | Packed | None
) -> BulkProduct:
    """Return c = a @ b' + bias as a convolution of pixels by 1x1.

    Args:
        c: the result, m rows of n.
        a: m rows of k, a multiple of 8.
        b: [n][k].
        shape: (m, n, k).
        bias: one number a column, or None.
    """
    m, n, k = shape
    one, none = (1, 1), (0, 0)
    view = Window(one, one, one, none, none, one)
    return BulkProduct(a, one, (k, k, k), k, b, n, c, n, m, view, bias, gaps=False)


@dataclass(frozen=True, slots=True)
class Way:
    """How the tiles of `a` lie in shared memory.

    Attributes:
        layout: its name.
        rows: of the product; some of them may be results of nothing.
        extents: rows and columns of `rows` that belong to one image.
        pixels: of `a` in the tile.
        parts: copies that bring them.
        taps: distances of the rows and the columns of a window; see struct `Windows`.
        next: from one eight of rows to the next.
        map: the tensor map.
    """

    layout: Layout
    rows: int
    extents: Ints
    pixels: int
    parts: int
    taps: Ints
    next: int
    map: TensorMap

    def stage(self, chunk: int) -> int:
        """Return the bytes of a tile of `a`, whose parts begin where the order of rows does."""
        part = ceil_div(self.pixels // self.parts * chunk * 2, ALIGNMENT) * ALIGNMENT
        return part * self.parts


def way_of(p: BulkProduct, tile: BulkTile, layout: Layout) -> Way | None:
    """Return how a layout does a product; None where it cannot, or another does just the same."""
    if layout in (Layout.RUN, Layout.SQUARES) and prod(p.view.kernel) == 1 and not p.pooled:
        return None
    make = {
        Layout.MATRIX: _matrix,
        Layout.RUN: _run,
        Layout.SQUARES: _squares,
        Layout.TAPWISE: _tapwise,
    }[layout]
    return make(p, tile) if not p.pooled or layout is Layout.SQUARES else None


def _matrix(p: BulkProduct, tile: BulkTile) -> Way | None:
    whole = prod(p.view.kernel) == prod(p.view.strides) == 1 and not any(
        (*p.view.pads_begin, *p.view.pads_end)
    )
    if not whole or tile.bm > MOST_ROWS:
        return None
    rows = p.images * prod(p.spatial)
    dims, strides, box = (p.channels, rows), p.moves[2:], (p.chunk, tile.bm)
    map = TensorMap(p.a, p.c.dtype, dims, strides, box)
    return Way(Layout.MATRIX, rows, (1, 1), tile.bm, 1, (0, 0), 8, map)


def _image_map(p: BulkProduct, box: Ints, upper: Ints | None, steps: Ints = (1, 1)) -> TensorMap:
    (height, width), moves = p.spatial, p.moves
    dims, strides = (p.channels, width, height, p.images), (moves[2], moves[1], moves[0])
    lower = (-p.view.pads_begin[1], -p.view.pads_begin[0])
    corners = None if upper is None else (lower, (upper[1], upper[0]))
    return TensorMap(p.a, p.c.dtype, dims, strides, box, corners, (1, steps[1], steps[0], 1))


def _run(p: BulkProduct, tile: BulkTile) -> Way | None:
    view = p.view
    # Zeros behind a row are those in front of the next one, but every window begins in its own.
    upper = tuple(
        max(0, e - min(b, r))
        for b, e, r in zip(view.pads_begin, view.pads_end, p.reach, strict=True)
    )
    extents = tuple(s + b + u for s, b, u in zip(p.spatial, view.pads_begin, upper, strict=True))
    pixels = tile.bm + p.reach[0] * extents[1] + p.reach[1]
    if (
        view.strides != (1, 1)
        or pixels > MOST_PIXELS
        or max(*view.pads_begin, *upper) > MOST_CORNER
    ):
        return None
    taps = (view.dilations[0] * extents[1], view.dilations[1])
    map = _image_map(p, (p.chunk, pixels), upper)
    return Way(Layout.RUN, p.images * prod(extents), extents, pixels, 1, taps, 8, map)


def _squares(p: BulkProduct, tile: BulkTile) -> Way | None:
    view, sides = p.view, tuple(SIDE + r for r in p.reach)
    if view.strides != (1, 1) or max(sides) > MOST_ROWS:
        return None
    extents = tuple(ceil_div(o, SIDE) for o in view.output)
    blocks = tile.bm // ROWS
    taps = (view.dilations[0] * sides[1], view.dilations[1])
    map = _image_map(p, (p.chunk, sides[1], sides[0], 1), None)
    rows = p.images * prod(extents) * ROWS
    return Way(Layout.SQUARES, rows, extents, blocks * prod(sides), blocks, taps, sides[1], map)


def _tapwise(p: BulkProduct, tile: BulkTile) -> Way | None:
    view = p.view
    upper = tuple(
        (o - 1) * s + 1 - b - size
        for o, s, b, size in zip(view.output, view.strides, view.pads_begin, p.spatial, strict=True)
    )
    corners = max(map(abs, (*upper, *view.pads_begin)))
    if corners > MOST_CORNER or max(view.strides) > MOST_STEP or max(p.reach) > MOST_TAP:
        return None
    made = _image_map(p, (p.chunk, tile.bm), upper, view.strides)
    rows = p.images * prod(view.output)
    return Way(Layout.TAPWISE, rows, view.output, tile.bm, 1, view.dilations, 8, made)


def choose_bulk(p: BulkProduct, target: Target) -> tuple[float, BulkTile, Way] | None:
    """Return the expected microseconds and the tile and the way that take them, if any fits."""
    best: tuple[float, BulkTile, Way] | None = None
    for tile in BULK_TILES:
        if tile.bn >= 2 * p.filters and tile.bn > NARROWEST:
            continue
        for layout in tile.layouts:
            way = way_of(p, tile, layout)
            if way is None or not tile.fits(way.stage(p.chunk), p.chunk, target):
                continue
            time = estimate_bulk(_task(p, way, tile), tile, target)
            if best is None or time < best[0]:
                best = time, tile, way
    return best


def _task(p: BulkProduct, way: Way, tile: BulkTile) -> BulkTask:
    chunks, taps = ceil_div(p.channels, p.chunk), prod(p.view.kernel)
    loads = chunks * (taps if way.layout is Layout.TAPWISE else 1)
    tiles = ceil_div(way.rows, tile.bm) * ceil_div(p.filters, tile.bn)
    taken = (loads * way.pixels + chunks * taps * tile.bn) * p.chunk * 2
    pixels = p.images * prod(p.spatial)
    traffic = 2 * (pixels * p.channels + p.c.size + p.filters * taps * p.channels)
    return BulkTask(tiles, chunks * taps, p.chunk, tiles * taken, traffic)


def bulk_product(p: BulkProduct, tail: Tail, tile: BulkTile, way: Way, target: Target) -> Launch:
    """Return the launch of a product.

    Args:
        p: what is multiplied.
        tail: applied to every result, before they are pooled.
        tile: what a block computes.
        way: how tiles of `a` lie in shared memory.
        target: the GPU.
    """
    chunk, taps = p.chunk, prod(p.view.kernel)
    stage = way.stage(chunk)
    tiles_n = ceil_div(p.filters, tile.bn)
    tiles = ceil_div(way.rows, tile.bm) * tiles_n
    chunks = ceil_div(p.channels, chunk)
    kept = tiles_n == 1 and chunks * taps == tile.stages_b
    weights = TensorMap(
        p.b,
        p.c.dtype,
        (p.channels, taps, p.filters),
        (p.channels, taps * p.channels),
        (chunk, 1, tile.bn),
    )
    first_h, first_w = (-pad for pad in p.view.pads_begin)
    windows = {
        **{"taps": taps, "columns": p.view.kernel[1], **by_axis(tap=way.taps)},
        **{**by_axis(stride=p.view.strides), "first_h": first_h, "first_w": first_w},
        **{**sizes("", way.extents), **sizes("out_", p.view.output)},
        **{"next": way.next, "loaded": way.pixels * chunk * 2},
        **{"plane": divisor(prod(way.extents)), "row": divisor(way.extents[1])},
    }
    whole = p.filters % 8 == p.ldc % 8 == 0
    return Launch(
        "mma_bulk.cu",
        "mma_bulk",
        grid=(min(tiles, tile.resident * target.processors), 1, 1),
        block=tile.threads,
        args={
            **{"a": way.map, "b": weights, "c": p.c, "bias": p.bias, **tail.args},
            **{"m": way.rows, "n": p.filters, "ldc": p.ldc, "tiles": tiles, "tiles_n": tiles_n},
            **{"chunks": chunks, "stage_a": stage, "w": windows},
        },
        types=(("T", p.c.dtype),),
        constants=(
            *(("LAYOUT", way.layout.value), *tile.constants, ("CHUNK", chunk)),
            *(("POOL", p.pooled), ("KEPT", kept)),
            *(("VECTOR_C", 8 if whole else 1), *epilogue_flags(p.bias, tail)),
        ),
        code="\n".join((atom_of(p.c.dtype).code(tile.bn), tail.code)),
        shared=tile.shared(stage, chunk),
        early=True,
        note=f"{way.layout.name.lower()} {tile.title} {tail.title}".strip(),
        pitched=p.pitched(tail),
    )
