"""Implicit GEMM and GEMM of float16 and bfloat16 by TMA: persistent, warp-specialized (Hopper).

The kernel is `tma.cu`. A matrix product is a 1x1 convolution over pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ...codegen.epilogue import Epilogue
from ...recipe.launch import Launch
from ...recipe.operands import Members, by_axis, ceil_div, divisor, sizes
from ...recipe.targets import Target
from ..atoms import atom_of
from ..problem import Frames, Problem
from ..resources import Resources
from ..tables.f16 import TMA
from ..tile import (
    LAUNCH,
    MAX_CLUSTER,
    MEMORY,
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
from .tma_staging import SmemLayout, Staging, TmaProduct, layouts, staged, weights_map

#: How many times as tall as wide tiles are that are meant for products with no more columns.
TALL = 8
#: Results per thread of the tiles whose epilogues read ahead.
EARLY = 32
#: Microseconds in which an epilogue waits for operands like the result that it reads last.
LATE = 1.0
#: Bytes of a warp's store buffer: 16 rows of 32 float32 columns with a pitch of 40.
STRIP = 16 * 40 * 4
#: Tile width that suits any product.
NARROWEST = 32
#: Bytes per microsecond of the L2 cache for deep tiles of windows: in VGG-16 at batch 1, a step
#: takes twice as long with 120 to 128 blocks as with 64.
DEEP_CACHE = 6.5e6


def resources(p: TmaProduct, config: Config, staging: Staging) -> Resources:
    """Return what a block takes.

    Rows of results that are not whole words need buffers, unless they are pooled; one block of a
    cluster finishes all four of these.
    """
    tile, splits, pooled = config.tile, config.splits, p.pooled is not None
    of_b, together = tile.bn * p.chunk * 2, 4 if pooled else 1
    return Resources(
        threads=tile.groups * 128 + 64,  # two producer warps
        ring=tile.stages * staging.stage(p.chunk) + tile.stages_b * of_b + 16 * sum(tile.ends),
        store=0 if p.whole or pooled or splits > 1 else tile.groups * 4 * STRIP,
        inbox=inbox(tile.bm // together, tile.bn * together, splits, by_columns=True),
        resident=1 if splits > 1 else tile.resident,
    )


# ── which tile ───────────────────────────────────────────────────────────────────────────────────


def choose(
    p: TmaProduct, target: Target, *, along: bool = False
) -> tuple[TimedConfig, Staging] | None:
    """Return the tile with the lowest estimate and its staging, if any fits.

    Args:
        p: the product.
        target: the GPU.
        along: whether the epilogue reads operands like the result, which only blocks with few
            results per thread read ahead. Others are for volumes: what else multiplies these may
            take half as long again.
    """
    found = (
        _timed(p, staging, config, target, late=along and not _reads_ahead(config))
        for config, staging in _fitting(p, target)
        if _suits(p, staging, config, target, along=along)
    )
    return min(found, key=lambda one: one[0].microseconds, default=None)


def candidates(p: TmaProduct, target: Target) -> Iterator[tuple[TimedConfig, Staging]]:
    """Yield every tile and its splits that fit, with their estimates and stagings."""
    return (_timed(p, staging, config, target) for config, staging in _fitting(p, target))


def _timed(
    p: TmaProduct, staging: Staging, config: Config, target: Target, *, late: bool = False
) -> tuple[TimedConfig, Staging]:
    expected = _expected(p, staging, config, target)
    if late:
        tiles = prod(p.tiles(staging.rows, config.tile))
        nbytes = prod(p.gemm.shape[:2]) * p.gemm.dtype.itemsize
        expected += LATE * ceil_div(tiles, target.processors) + nbytes / MEMORY
    return TimedConfig(expected, config), staging


def _reads_ahead(config: Config) -> bool:
    """Whether the epilogue reads operands like the result before the products end."""
    tile = config.tile
    return config.splits > 1 or tile.bm * tile.bn <= EARLY * 128 * tile.groups


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
            for config in _configs(p, tile, staging, target):
                if resources(p, config, staging).fits(target):
                    yield config, staging


def _suits(p: TmaProduct, staging: Staging, config: Config, target: Target, *, along: bool) -> bool:
    """Whether a form may be chosen without measuring it.

    Deep tiles have at most one block per multiprocessor. Costs of splits are not known for products
    without windows, which are short.
    """
    tile, whole = config.tile, config.splits == 1
    if not whole and prod(p.view.kernel) == 1:
        return False
    if along and p.frames is None and not _reads_ahead(config):
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
    block = resources(p, config, staging)
    pitched = tuple(p.result if t is p.gemm.c else t for t in p.gemm.pitched(epilogue.pitched))
    return Launch(
        "gemm/tma.cu",
        "mma_bulk",
        grid=(tiles if splits > 1 else min(tiles, tile.resident * target.processors), splits, 1),
        block=block.threads,
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
        shared=target.alone(block.shared) if alone else block.shared,
        cluster=(1, splits, 1),
        note=f"{staging.layout.name.lower()} {config} {epilogue.title}".strip(),
        pitched=pitched,
    )
