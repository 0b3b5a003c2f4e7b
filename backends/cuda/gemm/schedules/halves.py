"""GEMM of float32 operands that are in halves already, by bulk copies (Hopper): `halves.cu`.

Warp-specialized: one thread copies tiles of both operands. The kernel is persistent, or split-K
within a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence

from .....runtime.plan.format import HALVES_BLOCK
from ...codegen.epilogue import Epilogue
from ...recipe.launch import Launch
from ...recipe.operands import ceil_div
from ...recipe.targets import Target
from ..atoms import F16X3
from ..problem import GemmArguments, Problem
from ..resources import Resources
from ..tile import (
    LAUNCH,
    TMA_CACHE,
    BlockWork,
    Config,
    CtaTile,
    TimedConfig,
    clusters_of,
    estimate,
    overlapped,
    ranked,
    suited,
    with_splits,
)
from .multistage import SplitK
from .wgmma_rs import FRAGMENT, WHOLE, fitted, warp_specialized

#: Minimum registers of the thread that copies, and of those that copy what windows read.
LOADER, IMAGE_LOADER = 40, 56


def resources(config: Config, loader: int = LOADER) -> Resources:
    """Return what a block takes; for `loader` see `registers`."""
    tile = config.tile
    together = WHOLE if tile.bn % 64 == 0 else FRAGMENT
    stage = 128 * (tile.bm + tile.bn) + 4 * tile.bm
    return warp_specialized(config, stage, together, loader)


def spread(
    config: Config, block: Resources, tiles: int, target: Target
) -> tuple[tuple[int, int, int], int]:
    """Return the grid for this many tiles, and the shared memory per block in bytes.

    Blocks take several tiles if there are more than run at once. If all of them run at once, none
    shares a multiprocessor with another.
    """
    items, splits = tiles * config.splits, config.splits
    places = target.processors if splits == 1 else clusters_of(splits, target) * splits
    blocks = tiles if splits > 1 else min(items, config.tile.resident * target.processors)
    alone = items <= places
    return (blocks, splits, 1), target.alone(block.shared) if alone else block.shared


def multiply(gemm: GemmArguments, epilogue: Epilogue, config: Config, target: Target) -> Launch:
    """Return the launch of a product whose left operand is in `Format.HALVES`."""
    config = fitted(config, resources, target.shared)
    (m, n, k), tile, splits = gemm.shape, config.tile, config.splits
    tiles, batch = tile.count(m, n), gemm.batch
    blocks = tiles * batch.count
    items = blocks * splits
    work = {
        **{"m": m, "n": n, "k": k, "lda": ceil_div(m, 8) * 8, "tiles_n": ceil_div(n, tile.bn)},
        **{"tiles": tiles, "items": items, "batch_a": batch.a, "batch_c": batch.c},
        **{"rows_b": gemm.ldb, "splits": splits},
    }
    block = resources(config)
    grid, nbytes = spread(config, block, blocks, target)
    return Launch(
        "gemm/halves.cu",
        "multiply_halves",
        grid=grid,
        block=block.threads,
        args={
            **{"a": gemm.a.data, "b": gemm.b, "scales": gemm.scales},
            **{"c": gemm.c if epilogue.plain else None, "halves": epilogue.halves},
            **{"bias": gemm.bias, **epilogue.args, "ldc": gemm.ldc, "work": work},
        },
        types=(*gemm.elements, *epilogue.aliases),
        constants=(
            *tile.constants("GROUPS", "BN", "STAGES", "RESIDENT"),
            *zip(("REGISTERS", "LOADER_REGISTERS"), block.registers, strict=True),
            ("DEFER", tile.overlap),
            ("SPLIT", int(SplitK.CLUSTER if splits > 1 else SplitK.WHOLE)),
            *(("VECTOR_C", gemm.vector_c(4, 2)), *epilogue.flags(gemm.bias)),
        ),
        code="\n".join((F16X3.code(tile.bn), epilogue.halves_code, epilogue.code)),
        shared=nbytes,
        cluster=(1, splits, 1),
        note=f"{F16X3.title} in halves {config} {epilogue.title}".strip(),
        pitched=gemm.pitched(epilogue.pitched),
    )


def timed_configs(
    tiles: Sequence[CtaTile], problem: Problem, target: Target, *, whole: bool = False
) -> tuple[TimedConfig, ...]:
    """Return all configurations with their estimates, fastest first.

    Args:
        tiles: those of the kernel.
        problem: the sizes, and the traffic.
        target: the GPU.
        whole: whether tiles must have whole blocks of columns, to store or add them in halves.
    """
    fitting = [tile for tile in tiles if not whole or tile.bn % HALVES_BLOCK == 0]
    usable = [tile for tile in fitting if resources(Config(tile)).fits(target)]
    configs = with_splits(suited(usable, problem), problem, target, clusters=True)
    return tuple(ranked(configs, lambda config: expected(problem, config, target)))


def expected(problem: Problem, config: Config, target: Target) -> float:
    """Return the estimate for a configuration in microseconds."""
    tile, splits = config.tile, config.splits
    blocks = tile.blocks(problem) * splits
    steps = ceil_div(ceil_div(problem.k, tile.bk), splits)
    cached = blocks * steps * (tile.bm + tile.bn) * tile.bk * 4 / TMA_CACHE
    processors: float = target.processors
    if splits > 2:
        processors = min(processors, clusters_of(splits, target) * splits)
    work = BlockWork(blocks, steps, tile.resident, processors, cached, problem.traffic)
    time = overlapped(estimate(tile.cost, work, windows=problem.windows), work, target)
    return LAUNCH + time + (tile.cost.split if splits > 1 else 0)
