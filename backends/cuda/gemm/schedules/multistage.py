"""GEMM and implicit GEMM with a multistage cp.async pipeline: `multistage*.cu` (mma.sync, wgmma).

Tensor cores multiply in single warps (mma.sync) or, 16-bit floats and bytes on Hopper, in groups of
four from shared memory (wgmma). Split-K: CTAs may share the sum of a tile, as a cluster, which adds
it up from each other's shared memory, or by partial sums in the workspace.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum

from ...codegen.epilogue import NO_EPILOGUE, Epilogue
from ...recipe.launch import Launch
from ...recipe.layout import ceil_div
from ...recipe.operands import Given, Scratch
from ...recipe.targets import Target
from ..atoms import F16_SUMS, TF32, atom_of
from ..cost import (
    CACHE,
    CLUSTERED,
    LAUNCH,
    Choice,
    Work,
    estimate,
    overlapped,
    ranked,
    suited,
    with_splits,
)
from ..epilogue import epilogue_flags, reduction
from ..problem import Gemm, Problem
from ..sources import Rows
from ..tables.f16 import MULTISTAGE
from ..tile import Config, Tile

#: Microseconds by which each block more makes a cluster wait longer while the kernel in front ends,
#: and the blocks of a cluster that the tables' figures stand for. Fitted to linear layers of 16 to
#: 3136 rows in transformers' blocks.
CLUSTER_WAIT, SHORT_WAIT = 0.25, 1.6


class Split(IntEnum):
    """How a sum comes together: in one block, as partial sums, or in a cluster."""

    WHOLE, PARTIAL, CLUSTER = range(3)


def threads(tile: Tile) -> int:
    """Return the threads of a block."""
    return 32 * tile.warps[0] * tile.warps[1]


def shared(tile: Tile, steps: int) -> int:
    """Return the bytes of shared memory of a block: of 128 bytes a row, and later of the sums."""
    buffers = min(tile.stages, steps) * (tile.bm + tile.bn) * 128
    return max(buffers, tile.bm * (tile.bn + 8) * 4)


def wgmma_columns(tile: Tile) -> int:
    """Return the columns of one wgmma; 0 without it."""
    return tile.bn // tile.warps[1] if tile.wgmma else 0


# ── which tile ───────────────────────────────────────────────────────────────────────────────────


def choose(problem: Problem, target: Target, *, wgmma: bool = True) -> Choice:
    """Return the tile and the number of splits that should be fastest on a GPU.

    Args:
        problem: what is multiplied: 16-bit elements.
        target: the GPU.
        wgmma: Hopper's own products may be taken.
    """
    wgmma = wgmma and target.has_wgmma
    usable = [
        tile
        for tile in MULTISTAGE
        if (wgmma or not tile.wgmma) and shared(tile, tile.stages) <= target.shared
    ]
    tiles = suited(usable, problem)
    configs = with_splits(tiles, problem, target, clusters=target.has_clusters)
    return ranked(configs, lambda config: expected(problem, config, target))[0]


def expected(problem: Problem, config: Config, target: Target) -> float:
    """Return the microseconds that a product of 16-bit elements should take in this way."""
    tile, splits = config.tile, config.splits
    blocks = problem.blocks(tile) * splits
    steps = ceil_div(ceil_div(problem.k, tile.bk), splits)
    memory = (target.shared + 1024) // (shared(tile, steps) + 1024)
    # Threads have 128 registers.
    processors, resident = float(target.processors), max(1, min(memory, 512 // threads(tile)))
    clustered = splits > 1 and target.has_clusters
    if clustered and (problem.rows is not Rows.MATRIX or resident == 1):
        processors, resident = CLUSTERED * processors, 1
    cached = blocks * steps * (tile.bm + tile.bn) * tile.bk * 2 / CACHE
    work = Work(blocks, steps, resident, processors, cached, problem.traffic)
    time = estimate(tile.cost, work, windows=problem.windows)
    joining = tile.cost.split if splits > 1 else 0.0
    if clustered and problem.rows is Rows.MATRIX:
        joining += CLUSTER_WAIT * (splits - SHORT_WAIT)
    return LAUNCH + overlapped(time, work, target) + joining


# ── 16-bit floats ────────────────────────────────────────────────────────────────────────────────


def problem_of(gemm: Gemm) -> Problem:
    """Return what a tile is chosen for."""
    (m, n, k), count, a = gemm.shape, gemm.batch.count, gemm.a.data
    read = m * k if isinstance(a, Scratch) else a.size
    return Problem(m, n, k, count, gemm.a.rows, 2 * (read + count * (m * n + n * k)))


def time_of(gemm: Gemm, target: Target, epilogue: Epilogue = NO_EPILOGUE) -> float:
    """Return the microseconds that a product should take, with what its epilogue reads."""
    problem = problem_of(gemm)
    config = choose(problem, target).config
    if epilogue.along:
        m, n, _ = gemm.shape
        more = 2 * m * n * gemm.batch.count * len(epilogue.along)
        problem = replace(problem, traffic=problem.traffic + more)
    return expected(problem, config, target)


def multiply(
    gemm: Gemm, epilogue: Epilogue, target: Target, used: int = 0, *, half_sums: bool = False
) -> tuple[Launch, ...]:
    """Return the launches of a product of 16-bit floats.

    Args:
        gemm: what is multiplied.
        epilogue: applied to every result.
        target: the GPU.
        used: bytes of the workspace that are taken.
        half_sums: a block adds up in float16; several blocks' sums are added up in float32.
    """
    config = choose(problem_of(gemm), target, wgmma=not half_sums).config
    if config.splits == 1 or target.has_clusters:
        return (_halves(gemm, epilogue, config, None, half_sums=half_sums),)
    partial_sums = Scratch(ceil_div(used, 256) * 256)
    first = _halves(gemm, epilogue, config, partial_sums, half_sums=half_sums)
    return first, reduction(gemm, epilogue, config.splits, partial_sums)


def _halves(
    gemm: Gemm, epilogue: Epilogue, config: Config, partial_sums: Scratch | None, *, half_sums: bool
) -> Launch:
    """Return the launch of multistage.cu."""
    tile, splits, dtype = config.tile, config.splits, gemm.dtype
    split = Split.WHOLE if splits == 1 else Split.PARTIAL if partial_sums else Split.CLUSTER
    steps = ceil_div(ceil_div(gemm.shape[2], tile.bk), splits)
    code = F16_SUMS.code() if half_sums else atom_of(dtype).code(wgmma_columns(tile))
    return Launch(
        "gemm/multistage.cu",
        "mma",
        grid=grid(gemm, config),
        block=threads(tile),
        args={
            **{**arguments(gemm, config), "c": partial_sums or gemm.c, "bias": gemm.bias},
            **{**epilogue.args, "ldb": gemm.ldb, "batch_b": gemm.batch.b},
        },
        types=epilogue.types,
        constants=(
            *tile.constants("BM", "BN", "WARPS_M", "WARPS_N", "STAGES", "WGMMA"),
            *(("ROWS", int(gemm.a.rows)), ("VECTOR", gemm.a.vector)),
            *(("VECTOR_C", gemm.vector_c(8)), ("SPLIT", int(split)), ("HALF_SUMS", half_sums)),
            *epilogue_flags(gemm.bias, epilogue),
        ),
        code="\n".join((code, epilogue.code)),
        shared=shared(tile, steps),
        scratch=_scratch(gemm, splits, partial_sums),
        cluster=(1, 1, splits if split is Split.CLUSTER else 1),
        early=gemm.constant,
        note=f"{config} {epilogue.title}".strip(),
        pitched=gemm.pitched(epilogue),
    )


def grid(gemm: Gemm, config: Config) -> tuple[int, int, int]:
    """Return a grid of all tiles, and of the blocks that share each of them."""
    m, n, _ = gemm.shape
    return config.tile.count(m, n), 1, gemm.batch.count * config.splits


def arguments(gemm: Gemm, config: Config) -> dict[str, Given]:
    """Return the arguments that are common to the kernels of this schedule."""
    return {
        **{**gemm.sizes, "a": gemm.a.data, "b": gemm.b, "ldc": gemm.ldc},
        **{"tiles_n": ceil_div(gemm.shape[1], config.tile.bn), "batch_c": gemm.batch.c},
        "splits": config.splits,
    }


def _scratch(gemm: Gemm, splits: int, partial_sums: Scratch | None) -> int:
    """Return the bytes of the workspace up to the end of partial sums, if there are any."""
    if partial_sums is None:
        return 0
    m, n, _ = gemm.shape
    return partial_sums.offset + 4 * splits * gemm.batch.count * m * n


# ── float32 as numbers of tf32 ───────────────────────────────────────────────────────────────────


def multiply_parts(
    gemm: Gemm, epilogue: Epilogue, config: Config, parts: int, used: int
) -> tuple[Launch, ...]:
    """Return the launches of a product of float32, whose `b` lies as `in_parts` makes it.

    Args:
        gemm: what is multiplied.
        epilogue: applied to every result.
        config: tile and splits.
        parts: numbers of tf32 that stand for one: 2, or 1 for their precision.
        used: bytes of the workspace that are taken.
    """
    if config.splits == 1:
        return (_parts(gemm, epilogue, config, parts, None),)
    partial_sums = Scratch(ceil_div(used, 256) * 256)
    first = _parts(gemm, NO_EPILOGUE, config, parts, partial_sums)
    return first, reduction(gemm, epilogue, config.splits, partial_sums)


def _parts(
    gemm: Gemm, epilogue: Epilogue, config: Config, parts: int, partial_sums: Scratch | None
) -> Launch:
    """Return the launch of multistage_tf32x3.cu."""
    tile, whole = config.tile, partial_sums is None
    bias, split = (gemm.bias, Split.WHOLE) if whole else (None, Split.PARTIAL)
    return Launch(
        "gemm/multistage_tf32x3.cu",
        "split_mma",
        grid=grid(gemm, config),
        block=threads(tile),
        args={
            **{**arguments(gemm, config), "c": partial_sums or gemm.c, "bias": bias},
            **{**epilogue.args, "rows_b": ceil_div(gemm.shape[1], 8) * 8},
        },
        types=epilogue.types,
        constants=(
            *tile.constants("BM", "BN", "STAGES", "WARPS_M", "WARPS_N"),
            *parts_flags(gemm, epilogue, parts, split),
        ),
        code="\n".join((TF32.code(), epilogue.code)),
        shared=tile.stages * 128 * (tile.bm + parts * tile.bn),
        scratch=_scratch(gemm, config.splits, partial_sums),
        note=parts_title(config, parts, epilogue),
        pitched=gemm.pitched(epilogue),
    )


def parts_flags(
    gemm: Gemm, epilogue: Epilogue, parts: int, split: Split
) -> tuple[tuple[str, int], ...]:
    """Return the constants of tf32x3.cuh."""
    return (
        *(("PARTS", parts), ("ROWS", int(gemm.a.rows)), ("VECTOR", gemm.a.vector)),
        *(("VECTOR_C", gemm.vector_c(4, 2)), ("SPLIT", int(split))),
        *epilogue_flags(None if split is Split.PARTIAL else gemm.bias, epilogue),
    )


def parts_title(config: Config, parts: int, epilogue: Epilogue) -> str:
    """Return such as ``3xtf32 w64x64 split 2 Relu``."""
    return f"{'3xtf32' if parts == 2 else 'tf32'} {config} {epilogue.title}".strip()
