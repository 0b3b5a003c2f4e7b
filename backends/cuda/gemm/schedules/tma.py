"""Implicit GEMM and GEMM of float16 and bfloat16 by TMA: persistent, warp-specialized (Hopper).

The kernel is `tma.cu`. A matrix product is a 1x1 convolution over pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod

from .....runtime.ops.window import Window
from ...codegen.epilogue import Epilogue
from ...recipe.launch import Launch
from ...recipe.operands import Ints, Members, Tensor, TensorMap, by_axis, ceil_div, sizes
from ...recipe.targets import Target
from ..atoms import atom_of
from ..problem import Frames, GemmArguments, Image, Problem, divisor
from ..tables.f16 import TMA
from ..tile import (
    LAUNCH,
    MAX_CLUSTER,
    TMA_CACHE,
    BlockWork,
    Config,
    CtaTile,
    TimedConfig,
    clusters_of,
    estimate,
    filled,
    inbox,
    overlapped,
)

#: Maximum pixels per copy, and rows per box.
MAX_PIXELS, MAX_ROWS = 1024, 256
#: How many times as tall as wide tiles are that are meant for products with no more columns.
TALL = 8
#: Results per thread of the tiles whose epilogues read ahead.
EARLY = 32
#: Limits of window offsets from the image's edges, of strides, and of taps.
MAX_CORNER, MAX_STEP, MAX_TAP = 127, 8, 255
#: Rows per group, and the side of a square with as many pixels.
ROWS, SIDE = 64, 8
ALIGNMENT = 1024
#: Bytes of a warp's store buffer: 16 rows of 32 float32 columns with a pitch of 40.
STRIP = 16 * 40 * 4
#: Tile width that suits any product.
NARROWEST = 32
#: Bytes per microsecond of the L2 cache for deep tiles of windows: in VGG-16 at batch 1, a step
#: takes twice as long with 120 to 128 blocks as with 64.
DEEP_CACHE = 6.5e6
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


@dataclass(frozen=True, slots=True)
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


def shared(
    config: Config, stage: int, chunk: int, *, pooled: bool = False, whole: bool = True
) -> int:
    """Return the shared memory per block in bytes.

    Args:
        config: what it computes.
        stage: bytes of a tile of A.
        chunk: terms per step.
        pooled: whether results are pooled: one block finishes all four.
        whole: whether rows of results are whole words; others need buffers.
    """
    tile = config.tile
    stages = tile.stages * stage + tile.stages_b * tile.bn * chunk * 2 + 16 * sum(tile.ends)
    if config.splits == 1:
        return stages + (0 if whole or pooled else tile.groups * 4 * STRIP)
    together = 4 if pooled else 1
    rows, columns = tile.bm // together, tile.bn * together
    return stages + inbox(rows, columns, config.splits, by_columns=True)


def fits(
    config: Config,
    stage: int,
    chunk: int,
    target: Target,
    *,
    pooled: bool = False,
    whole: bool = True,
) -> bool:
    """Whether the tile's blocks fit on a multiprocessor; one of a cluster; see `shared`.

    With the buffers of rows that are not whole words, fewer may fit than otherwise, but one must.
    """
    resident = 1 if config.splits > 1 else config.tile.resident
    usual = shared(config, stage, chunk, pooled=pooled)
    nbytes = shared(config, stage, chunk, pooled=pooled, whole=whole)
    return (usual + 1024) * resident <= target.shared + 1024 and nbytes <= target.shared


# ── layouts ──────────────────────────────────────────────────────────────────────────────────────


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


# ── which tile ───────────────────────────────────────────────────────────────────────────────────


def choose(
    p: TmaProduct, target: Target, *, along: bool = False
) -> tuple[TimedConfig, Staging] | None:
    """Return the tile with the lowest estimate and its staging, if any fits.

    Args:
        p: the product.
        target: the GPU.
        along: whether the epilogue reads operands like the result, which only blocks with few
            results per thread read ahead.
    """
    found = (
        _timed(p, staging, config, target)
        for config, staging in _fitting(p, target)
        if _suits(p, staging, config, target, along=along)
    )
    return min(found, key=lambda one: one[0].microseconds, default=None)


def candidates(p: TmaProduct, target: Target) -> Iterator[tuple[TimedConfig, Staging]]:
    """Yield every tile and its splits that fit, with their estimates and stagings."""
    return (_timed(p, staging, config, target) for config, staging in _fitting(p, target))


def _timed(
    p: TmaProduct, staging: Staging, config: Config, target: Target
) -> tuple[TimedConfig, Staging]:
    return TimedConfig(_expected(p, staging, config, target), config), staging


def _fitting(p: TmaProduct, target: Target) -> Iterator[tuple[Config, Staging]]:
    """Yield every tile and its splits that fit, with their stagings."""
    problem = Problem(*p.gemm.shape)
    for tile in filled(TMA, problem, max(tile.bm for tile in TMA), NARROWEST):
        if tile.bm >= TALL * tile.bn and problem.n > tile.bn:
            continue
        for layout in layouts(tile):
            staging = staged(p, tile, layout)
            if staging is None:
                continue
            stage = staging.stage(p.chunk)
            for config in _configs(p, tile, staging, target):
                pooled = p.pooled is not None
                if fits(config, stage, p.chunk, target, pooled=pooled, whole=p.whole):
                    yield config, staging


def _suits(p: TmaProduct, staging: Staging, config: Config, target: Target, *, along: bool) -> bool:
    """Whether a form may be chosen without measuring it.

    Deep tiles have at most one block per multiprocessor. Costs of splits are not known for products
    without windows, which are short.
    """
    tile, whole = config.tile, config.splits == 1
    if not whole and prod(p.view.kernel) == 1:
        return False
    if along and whole and tile.bm * tile.bn > EARLY * 128 * tile.groups:
        return False
    return not tile.deep or prod(p.tiles(staging.rows, tile)) * config.splits <= target.processors


def _configs(p: TmaProduct, tile: CtaTile, staging: Staging, target: Target) -> Iterator[Config]:
    """Yield a tile, and its splits into at most one block per multiprocessor."""
    yield Config(tile)
    tiles, chunks = prod(p.tiles(staging.rows, tile)), ceil_div(p.channels, p.chunk)
    maximum = min(chunks, target.processors // max(tiles, 1), MAX_CLUSTER)
    for splits in range(2, maximum + 1):
        yield Config(tile, splits)


def _expected(p: TmaProduct, staging: Staging, config: Config, target: Target) -> float:
    """Return the estimate in microseconds."""
    taps, tile, own = prod(p.view.kernel), config.tile, ceil_div(p.steps, config.splits)
    loads = own if staging.layout is SmemLayout.TAPWISE else ceil_div(own, taps)
    blocks = prod(p.tiles(staging.rows, tile)) * config.splits
    taken = blocks * (loads * staging.pixels + own * tile.bn) * p.chunk * 2
    if tile.deep:  # whose cost was measured with few blocks
        cached = taken / (TMA_CACHE if taps == 1 else DEEP_CACHE)
    else:  # blocks alone on a multiprocessor do not share TMA bandwidth
        cached = taken / TMA_CACHE * max(1.0, target.processors / max(blocks, 1))
    split = config.splits > 1
    work = BlockWork(
        blocks,
        own,
        1 if split else tile.resident,
        clusters_of(config.splits, target) * config.splits if split else target.processors,
        cached,
        p.traffic,
        p.chunk / tile.bk,
    )
    return (
        LAUNCH
        + overlapped(estimate(tile.cost, work), work, target)
        + (tile.cost.split if split else 0)
    )


def keeps(p: TmaProduct, config: Config) -> bool:
    """Whether a CTA loads its weights once for all of its tiles."""
    alone = p.tiles(1, config.tile)[1] == config.splits == 1
    return alone and config.tile.stages_b == p.steps


# ── the recipe ───────────────────────────────────────────────────────────────────────────────────


def _frames(frames: Frames | None) -> Members:
    """Return the members of struct `Windows` that say where the frames of a window are."""
    if frames is None:
        return dict.fromkeys(("of_frame", "depth", "stride_d", "tap_d", "first_d", "frames"), 0)
    return {
        **{"of_frame": frames.channels, "depth": frames.depth, "stride_d": frames.step},
        **{"tap_d": frames.dilation, "first_d": -frames.pad, "frames": frames.output},
    }


def multiply(
    p: TmaProduct, epilogue: Epilogue, config: Config, staging: Staging, target: Target
) -> Launch:
    """Return the launch of a product.

    Args:
        p: the product.
        epilogue: applied to every result, before pooling.
        config: what a block computes.
        staging: the staging of A.
        target: the GPU.
    """
    tile, splits = config.tile, config.splits
    chunk, taps, (_, filters, _) = p.chunk, prod(p.view.kernel), p.gemm.shape
    stage, dtype = staging.stage(chunk), p.gemm.dtype
    tiles_m, tiles_n = p.tiles(staging.rows, tile)
    tiles = tiles_m * tiles_n
    # Blocks of windows, which run long, have a multiprocessor each, unless others need it.
    alone = taps > 1 and not p.concurrent and tiles * splits <= target.processors
    first_h, first_w = (-pad for pad in p.view.pads_begin)
    windows = {
        **{"taps": taps, "columns": p.view.kernel[1], **by_axis(tap=staging.taps)},
        **{**by_axis(stride=p.view.strides), "first_h": first_h, "first_w": first_w},
        **{**sizes("", staging.extents), **sizes("out_", p.view.output)},
        **{"next": staging.next, "loaded": staging.pixels * chunk * 2},
        **{"plane": divisor(prod(staging.extents)), "row": divisor(staging.extents[1])},
        **_frames(p.frames),
    }
    nbytes = shared(config, stage, chunk, pooled=p.pooled is not None, whole=p.whole)
    pitched = tuple(p.result if t is p.gemm.c else t for t in p.gemm.pitched(epilogue.pitched))
    return Launch(
        "gemm/tma.cu",
        "mma_bulk",
        grid=(tiles if splits > 1 else min(tiles, tile.resident * target.processors), splits, 1),
        block=tile.groups * 128 + 64,  # two producer warps
        args={
            **{
                "a": staging.map,
                "b": weights_map(p, tile.bn),
                "c": p.result,
                "bias": p.gemm.bias,
                **epilogue.args,
            },
            **{"m": staging.rows, "ldc": p.ldc, "tiles": tiles, "tiles_n": tiles_n},
            **{"of_group": tiles_n // p.groups, "filters": filters, "channels": p.channels},
            **{"chunks": p.steps // taps, "stage_a": stage, "w": windows},
        },
        types=(("T", dtype), *epilogue.aliases),
        constants=(
            *(("LAYOUT", staging.layout.value), *tile.constants("GROUPS")),
            ("BLOCKS", tile.bm // (64 * tile.groups)),
            *tile.constants("BN", "STAGES_A", "STAGES_B", "RESIDENT"),
            *(
                ("CHUNK", chunk),
                ("POOL", p.pooled is not None),
                ("KEPT", keeps(p, config)),
                ("GROUPED", p.groups > 1),
            ),
            *(("SPLIT", splits), ("VOLUME", p.frames is not None)),
            *(("VECTOR_C", 8 if p.whole else 1), *epilogue.flags(p.gemm.bias)),
        ),
        code="\n".join((atom_of(dtype).code(tile.bn), epilogue.code)),
        shared=target.alone(nbytes) if alone else nbytes,
        cluster=(1, splits, 1),
        note=f"{staging.layout.name.lower()} {config} {epilogue.title}".strip(),
        pitched=pitched,
    )
