"""GEMM and implicit GEMM of float32 on CUDA cores, with split-K: `simt.cu`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ...algorithms.registry import Setting
from ...codegen.epilogue import NO_EPILOGUE, Epilogue
from ...recipe.arguments import MAX_BLOCKS
from ...recipe.launch import Launch
from ...recipe.operands import Scratch, ceil_div
from ...recipe.targets import Target
from ..problem import GemmArguments, Image, Problem, widest
from ..reduce_splits import reduction
from ..tables.simt import LAUNCH, PARTIAL_SUM, RESULT, SECOND_PASS, SIMT
from ..tile import MAX_KEPT, BlockWork, Config, CtaTile, TimedConfig, estimate, filled, quickest

MAX_SPLITS = 64
#: Blocks per multiprocessor from which K is not split.
BLOCKS_PER_PROCESSOR = 10
#: Splits that the tuner tries.
SPLITS_TRIED = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def threads(tile: CtaTile) -> int:
    """Return the threads per block."""
    return tile.bm // tile.warps[0] * (tile.bn // tile.warps[1]) * tile.slices


def shared(tile: CtaTile) -> int:
    """Return the shared memory per block in bytes."""
    steps = tile.stages * (tile.bm * (tile.bk + 4) + tile.bk * tile.bn)
    exchange = tile.slices * tile.bm * tile.bn if tile.slices > 1 else 0
    return 4 * max(steps, exchange)


# ── which tile ───────────────────────────────────────────────────────────────────────────────────


def expected(problem: Problem, config: Config, target: Target) -> float:
    """Return the estimate for a configuration in microseconds."""
    tile, splits = config.tile, config.splits
    steps = ceil_div(ceil_div(problem.k, tile.bk), splits)
    work = BlockWork(tile.blocks(problem) * splits, steps, tile.resident, target.processors)
    results = problem.m * problem.n * problem.batch
    second = SECOND_PASS + PARTIAL_SUM * results * splits if splits > 1 else 0.0
    return LAUNCH + RESULT * results + estimate(tile.cost, work) + second


def _configs(problem: Problem, target: Target) -> Iterator[Config]:
    """Yield tiles with splits of at least three steps and a limited number of blocks.

    More splits of as many steps have more sums, and nothing that is faster.
    """
    narrowest = min(tile.bn for tile in SIMT)
    for tile in filled(SIMT, problem, max(tile.bm for tile in SIMT), narrowest):
        fits = BLOCKS_PER_PROCESSOR * target.processors // max(tile.blocks(problem), 1)
        maximum = min(ceil_div(problem.k, tile.bk) // 3, fits, MAX_SPLITS)
        steps, before = ceil_div(problem.k, tile.bk), -1
        for splits in range(1, max(1, maximum) + 1):
            if (each := ceil_div(steps, splits)) != before:
                yield Config(tile, splits)
            before = each


@lru_cache(MAX_KEPT)
def choose(problem: Problem, target: Target) -> TimedConfig:
    """Return the tile and splits with the lowest estimate."""
    return quickest(_configs(problem, target), lambda c: expected(problem, c, target))


@lru_cache(MAX_KEPT)
def unsplit(problem: Problem, target: Target) -> Config:
    """Return the tile with the lowest estimate without splits, which need workspace."""
    return quickest(map(Config, SIMT), lambda c: expected(problem, c, target)).config


def tried(problem: Problem, target: Target) -> tuple[str, ...]:
    """Return the tiles with the splits worth trying, most promising first."""
    configs = (
        Config(tile, splits)
        for tile in SIMT
        for splits in SPLITS_TRIED
        if splits == 1 or ceil_div(problem.k, tile.bk) >= 3 * splits
    )
    times = sorted((expected(problem, config, target), str(config)) for config in configs)
    return tuple(title for time, title in times if time < 2 * times[0][0])


# ── the recipe ───────────────────────────────────────────────────────────────────────────────────


def multiply(
    gemm: GemmArguments, epilogue: Epilogue, setting: Setting, config: Config | None = None
) -> tuple[Launch, ...]:
    """Return the launches of a product, whose `b` is [k][n] with row pitch `ldb`.

    Args:
        gemm: the product.
        epilogue: applied to every result.
        setting: the GPU.
        config: tile and splits; None to choose.
    """
    if config is None and setting.form:
        config = Config.parse(setting.form, SIMT)
    if config is None:
        problem = Problem(*gemm.shape, gemm.batch.count)
        config = choose(problem, setting.target).config
    if config.splits == 1:
        return (_launch(gemm, epilogue, config),)
    return _launch(gemm, NO_EPILOGUE, config), reduction(gemm, epilogue, config.splits, Scratch(0))


def _launch(gemm: GemmArguments, epilogue: Epilogue, config: Config) -> Launch:
    """Return the launch of simt.cu; with splits, partial sums go to the workspace."""
    (m, n, _), batch, tile, splits = gemm.shape, gemm.batch, config.tile, config.splits
    split = splits > 1
    rows, columns = ceil_div(m, tile.bm), ceil_div(n, tile.bn)
    wide = columns > MAX_BLOCKS[1]
    vector_b = 4 if widest((4,), gemm.ldb, batch.b) == 4 else 1
    across = isinstance(gemm.a, Image) and not gemm.a.channels_last
    return Launch(
        "gemm/simt.cu",
        "gemm",
        grid=(rows * columns if wide else rows, 1 if wide else columns, batch.count * splits),
        block=threads(tile),
        args={
            **{**gemm.sizes, "a": gemm.a.data, "b": gemm.b, "c": Scratch(0) if split else gemm.c},
            **{"bias": None if split else gemm.bias, **epilogue.args, "ldb": gemm.ldb},
            **{"ldc": gemm.ldc, "batch_b": batch.b, "batch_c": batch.c, "splits": splits},
        },
        types=epilogue.types,
        constants=(
            *tile.constants("BM", "BN", "BK", "TM", "TN", "STAGES", "SLICES"),
            *(("VECTOR_A", gemm.a.vector), ("VECTOR_B", vector_b), ("VECTOR_C", gemm.vector_c(4))),
            *(("ROWS", int(gemm.a.rows)), ("ACROSS", across)),
            *(("BIAS", gemm.bias is not None and not split), ("SPLIT", split), ("WIDE", wide)),
        ),
        code=epilogue.code,
        shared=shared(tile),
        scratch=4 * batch.count * splits * m * n if split else 0,
        note=str(config) if split else f"{config} {epilogue.title}".strip(),
        pitched=gemm.pitched(epilogue.pitched),
    )
