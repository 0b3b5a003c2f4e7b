"""GEMM and implicit GEMM with a multistage cp.async pipeline: `multistage.cu` (mma.sync, wgmma).

One kernel for every atom: 16-bit floats, bytes, float32 as tf32 numbers; with mma.sync, or with
wgmma on Hopper. Split-K across CTAs, as a cluster that reduces through distributed shared memory,
or by partial sums in the workspace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import IntEnum
from functools import cache, lru_cache
from math import ceil, prod

from .....runtime.base.record import record
from .....runtime.ir.dtypes import DType
from ...codegen.epilogue import NO_EPILOGUE, Epilogue
from ...recipe.launch import Launch
from ...recipe.operands import Given, Scratch, Tensor, ceil_div
from ...recipe.targets import Target
from ..atoms import F16_SUMS, Atom, atom_of
from ..problem import GemmArguments, Problem, RowKind
from ..reduce_splits import reduction
from ..resources import Resources
from ..tables.f16 import MULTISTAGE
from ..tile import (
    CACHE,
    CLUSTERED,
    LAUNCH,
    MAX_KEPT,
    MEMORY,
    BlockWork,
    Config,
    CtaTile,
    TimedConfig,
    considerate,
    estimate,
    inbox,
    overlapped,
    suited,
    with_splits,
)

#: Microseconds that each additional block of a cluster waits for the previous kernel to end, and
#: the cluster wait included in the figures of the tables. Fitted to linear layers of 16 to 3136
#: rows in transformer blocks.
CLUSTER_WAIT, SHORT_WAIT = 0.25, 1.6
#: Microseconds that joining the sums of windows takes less than by the figures of the tables, since
#: they are sent as adjacent bytes. From ResNet-50, ResNeXt-50, DenseNet-121, GoogLeNet and RegNetY
#: at batch 1 on an H100, in which one tile at a time was replaced; ResNet-34, which was not among
#: them, takes 3 % less time with it. 1x1 convolutions do not gain in all of these.
OF_WINDOWS = 0.8
#: Blocks of a cluster of a matrix product, above which clusters wait for multiprocessors of one
#: GPC: on an H100, 16 clusters of eight take twice the estimate, 32 of four do not.
SMALL_CLUSTER = 4
#: Blocks of a cluster from which on they share as few multiprocessors as they fit on, and the bytes
#: that one reads per microsecond: in a decoder's step, 32 clusters of four blocks ran on 46 to 50
#: of an H200, each of which read 31 GB/s. That matters for products bound by memory: of at most
#: this many rows, and at least this many bytes.
PACKED_CLUSTER, PROCESSOR_MEMORY, FEW_ROWS, LARGE = 3, 31e3, 64, 16 << 20
#: Registers of a thread.
OF_THREAD = 128
#: Bytes of K per step: a row of a tile of A or B in shared memory.
ROW = 128
#: Elements of a strip of B that wgmma reads transposed.
STRIP = 64
#: Microseconds that a step takes longer if single elements are copied, which are too small for
#: cp.async. A guess: half a latency of the L2 cache.
SINGLES = 0.35


#: Parameters of `mma` for stacks of heads.
OF_HEADS = frozenset({"heads", "head_a", "head_b"})


class SplitK(IntEnum):
    """How split sums are combined: not split, partial sums, or a cluster."""

    WHOLE, PARTIAL, CLUSTER = range(3)


def resources(tile: CtaTile, steps: int, parts: int = 0, blocks: int = 1) -> Resources:
    """Return what a block takes, through whose stages its accumulators pass at the end.

    Args:
        tile: the tile.
        steps: number of steps.
        parts: see `Atom.parts`; their accumulators stay in registers.
        blocks: of a cluster.
    """
    stages = min(tile.stages, steps) * (tile.bm + max(1, parts) * tile.bn) * ROW
    results = 0 if parts or blocks > 1 else tile.bm * (tile.bn + 8) * 4
    return Resources(
        threads=32 * prod(tile.warps),
        ring=max(stages, results),
        inbox=inbox(tile.bm, tile.bn, blocks, by_columns=True),
    )


# ── which tile ───────────────────────────────────────────────────────────────────────────────────


@lru_cache(MAX_KEPT)
def choose(
    problem: Problem, target: Target, *, wgmma: bool = True, across: bool = False
) -> TimedConfig:
    """Return the tile and splits with the lowest estimate; see `candidates`."""
    return candidates(problem, target, wgmma=wgmma, across=across)[0]


def candidates(
    problem: Problem, target: Target, *, wgmma: bool = True, across: bool = False
) -> list[TimedConfig]:
    """Return tiles and splits with their estimates, the lowest first.

    Args:
        problem: the product, with 16-bit elements.
        target: the GPU.
        wgmma: whether wgmma may be used.
        across: see `GemmArguments.across`; wgmma reads whole strips of columns then.
    """
    usable = [
        tile
        for tile in _usable(target, wgmma=wgmma and target.has_wgmma, across=across)
        if not tile.deep or (problem.rows is RowKind.MATRIX and tile.is_filled(problem.k))
    ]
    tiles = suited(usable, problem)
    configs = with_splits(tiles, problem, target, clusters=target.has_clusters)
    found = (
        TimedConfig(expected(problem, config, target, block), config)
        for config in configs
        if is_filled(config, problem)
        if (block := _resources(config, problem, target)).shared <= target.shared
    )
    ways = sorted(found, key=lambda way: way.microseconds)
    return considerate(ways, problem, target)


@cache
def _usable(target: Target, *, wgmma: bool, across: bool) -> tuple[CtaTile, ...]:
    """Return the tiles that a GPU has the instructions and the shared memory for."""
    return tuple(
        tile
        for tile in MULTISTAGE
        if not tile.wgmma or (wgmma and not (across and tile.bn % STRIP))
        if resources(tile, tile.stages).fits(target)
    )


def is_filled(config: Config, problem: Problem) -> bool:
    """Whether the stages of a deep tile are full most of the time.

    If not, they only keep out blocks of the next kernel: a product of 128 rows and 3072 terms in
    four splits takes 0.4 us more with them in BERT-base at batch 1. Fewer rows have not been
    measured.
    """
    if not config.tile.deep or problem.m <= FEW_ROWS:
        return True
    return config.tile.is_filled(ceil_div(problem.k, config.splits))


def fits(config: Config, problem: Problem, target: Target, more: int = 0) -> bool:
    """Whether a block's stages, its inbox, and `more` bytes fit in shared memory."""
    return _resources(config, problem, target).shared + more <= target.shared


def _resources(config: Config, problem: Problem, target: Target) -> Resources:
    steps = ceil_div(ceil_div(problem.k, config.tile.bk), config.splits)
    return resources(config.tile, steps, blocks=config.splits if target.has_clusters else 1)


def expected(
    problem: Problem, config: Config, target: Target, block: Resources | None = None
) -> float:
    """Return the estimate for a configuration with 16-bit elements in microseconds.

    Args:
        problem: the product.
        config: the tile and its splits.
        target: the GPU.
        block: what a block takes, if that is known.
    """
    tile, splits = config.tile, config.splits
    blocks = tile.blocks(problem) * splits
    steps = ceil_div(ceil_div(problem.k, tile.bk), splits)
    clustered = splits > 1 and target.has_clusters
    block = block or _resources(config, problem, target)
    fitting = block.fitting(target, OF_THREAD)
    processors, resident = float(target.processors), fitting
    if clustered and (
        problem.rows is not RowKind.MATRIX or resident == 1 or splits > SMALL_CLUSTER
    ):
        processors, resident = CLUSTERED * processors, 1
    elif problem.windows and blocks <= target.processors:
        # Where they nearly fill the GPU, two blocks share a multiprocessor while others are idle.
        processors = CLUSTERED * processors
    cached = blocks * steps * (tile.bm + tile.bn) * tile.bk * 2 / CACHE
    traffic = problem.traffic
    if clustered and splits >= PACKED_CLUSTER and problem.m <= FEW_ROWS and traffic > LARGE:
        # These blocks share multiprocessors, of which each reads less than its part.
        used = blocks / fitting
        traffic = max(traffic, ceil(traffic * MEMORY / (PROCESSOR_MEMORY * used)))
    work = BlockWork(blocks, steps, resident, processors, cached, traffic)
    time = estimate(tile.cost, work, windows=problem.windows)
    joining = tile.cost.split if splits > 1 else 0.0
    if clustered and problem.rows is RowKind.MATRIX:
        joining += CLUSTER_WAIT * (splits - SHORT_WAIT)
    elif clustered and problem.windows:
        joining -= OF_WINDOWS
    return LAUNCH + overlapped(time, work, target) + joining


# ── the recipe ───────────────────────────────────────────────────────────────────────────────────


@record
class End:
    """The epilogue of a product: an entry of `multistage.cu` and its arguments.

    Attributes:
        entry: its name.
        args: by name, including the result ``c``.
        types: the C++ aliases Z and R.
        constants: compile-time constants.
        code: generated functions.
        title: for reports.
        pitched: operands that may be slices.
    """

    entry: str
    args: Mapping[str, Given]
    types: tuple[tuple[str, DType], ...]
    constants: tuple[tuple[str, int], ...]
    code: str
    title: str = ""
    pitched: tuple[Tensor, ...] = ()


def multiply(
    gemm: GemmArguments,
    epilogue: Epilogue,
    config: Config,
    atom: Atom,
    target: Target,
    used: int = 0,
) -> tuple[Launch, ...]:
    """Return the launches of a product with floating-point accumulators.

    Args:
        gemm: the product.
        epilogue: applied to every result.
        config: tile and splits.
        atom: the instruction; with float16 accumulators, splits are still added in float32.
        target: the GPU.
        used: bytes of the workspace already in use.
    """
    if config.splits == 1:
        return (launch(gemm, config, atom, _finished(gemm, epilogue, atom), SplitK.WHOLE),)
    if target.has_clusters and not atom.parts:
        return (launch(gemm, config, atom, _finished(gemm, epilogue, atom), SplitK.CLUSTER),)
    (m, n, _), sums = gemm.shape, Scratch(ceil_div(used, 256) * 256)
    partial = _finished(replace(gemm, c=sums, bias=None), NO_EPILOGUE, atom)
    needed = sums.offset + 4 * config.splits * gemm.batch.count * m * n
    first = replace(launch(gemm, config, atom, partial, SplitK.PARTIAL), scratch=needed)
    return first, reduction(gemm, epilogue, config.splits, sums)


def means(gemm: GemmArguments, epilogue: Epilogue, config: Config, target: Target) -> Launch:
    """Return the launch of 16-bit products of which only the means of columns are stored.

    Args:
        gemm: the products; `c` has a row for each.
        epilogue: applied to every result before.
        config: a tile with all rows of a product, not split.
        target: the GPU.
    """
    atom = atom_of(gemm.dtype)
    end = _finished(gemm, epilogue, atom, means=True)
    return replace(launch(gemm, config, atom, end, SplitK.WHOLE), pitched=())


def scaled(
    gemm: GemmArguments, factors: Tensor, epilogue: Epilogue, config: Config, target: Target
) -> Launch:
    """Return the launch of 16-bit products whose left rows are multiplied by factors first.

    Args:
        gemm: the products, whose rows are whole words, and parts of those of images.
        factors: contiguous, one for each term of each product.
        epilogue: applied to every result.
        config: a tile, whose splits are a cluster.
        target: the GPU.
    """
    atom = atom_of(gemm.dtype)
    end, split = _finished(gemm, epilogue, atom), min(config.splits - 1, 1) * SplitK.CLUSTER
    args = {name: each for name, each in end.args.items() if name not in OF_HEADS}
    end = replace(end, entry="mma_scaled", args={**args, "factors": factors})
    end = replace(end, code=f"#define FACTORS 1\n{end.code}", title=f"scaled {end.title}".strip())
    images = (each for each in (gemm.a.data, gemm.c, *end.pitched) if isinstance(each, Tensor))
    return replace(launch(gemm, config, atom, end, SplitK(split)), pitched=tuple(images))


def _finished(gemm: GemmArguments, epilogue: Epilogue, atom: Atom, *, means: bool = False) -> End:
    """Return the `End` that applies bias and epilogue, and maybe averages the results."""
    return End(
        entry="mma",
        args={
            **{"c": gemm.c, "bias": gemm.bias, **epilogue.args, "heads": gemm.batch.heads},
            **{"head_a": gemm.batch.head_a, "head_b": gemm.batch.head_b},
        },
        types=epilogue.aliases,
        constants=(
            ("VECTOR_C", gemm.vector_c(*((4, 2) if atom.parts else (8, 4, 2)))),
            *epilogue.flags(gemm.bias),
            *(("ZERO_B", False), ("HEADS", gemm.batch.heads > 1), ("MEANS", means)),
        ),
        code=epilogue.code,
        title=f"{epilogue.title} mean of {gemm.shape[0]}".strip() if means else epilogue.title,
        pitched=epilogue.pitched,
    )


def launch(gemm: GemmArguments, config: Config, atom: Atom, end: End, split: SplitK) -> Launch:
    """Return the launch of `multistage.cu`.

    Args:
        gemm: the operands.
        config: tile and splits.
        atom: the instruction.
        end: stores the accumulators.
        split: how split sums are combined.
    """
    (m, n, k), tile, splits = gemm.shape, config.tile, config.splits
    steps = ceil_div(ceil_div(k * gemm.dtype.itemsize, ROW), splits)
    wgmma_columns = tile.bn // tile.warps[1] if tile.wgmma else 0
    across = wgmma_columns if gemm.across else 0
    cluster = splits if split is SplitK.CLUSTER else 1
    block = resources(tile, steps, atom.parts, cluster)
    return Launch(
        "gemm/multistage.cu",
        end.entry,
        grid=(tile.count(m, n), 1, gemm.batch.count * splits),
        block=block.threads,
        args={
            **{**gemm.sizes, "a": gemm.a.data, "b": gemm.b, "ldb": gemm.ldb, "ldc": gemm.ldc},
            **{"batch_b": gemm.batch.b, "batch_c": gemm.batch.c, "splits": splits},
            **{"tiles_n": ceil_div(n, tile.bn), **end.args},
        },
        types=(*gemm.elements, *end.types),
        constants=(
            *tile.constants("BM", "BN", "WARPS_M", "WARPS_N", "STAGES", "WGMMA"),
            *(("ROWS", int(gemm.a.rows)), ("VECTOR", gemm.a.vector), ("PARTS", atom.parts)),
            ("AXES", gemm.a.axes),
            *(("ACROSS", gemm.across), ("VECTOR_B", gemm.vector_b)),
            *(("SPLIT", int(split)), *end.constants),
        ),
        code="\n".join((atom.code(wgmma_columns, across=across), end.code)),
        shared=block.shared,
        cluster=(1, 1, cluster),
        # B is prefetched before the previous kernel has ended, but not in parts or across.
        early=gemm.constant or atom.parts > 0 or gemm.across,
        note=" ".join(filter(None, (atom.title, str(config), end.title))),
        pitched=gemm.pitched(end.pitched),
    )


# ── 16-bit floats ────────────────────────────────────────────────────────────────────────────────


def problem_of(gemm: GemmArguments) -> Problem:
    """Return the problem for which to choose a tile."""
    (m, n, k), count, a = gemm.shape, gemm.batch.count, gemm.a.data
    read = a.size if isinstance(a, Tensor) else m * k
    traffic = 2 * (read + count * (m * n + n * k))
    return Problem(m, n, k, count, gemm.a.rows, traffic, gemm.concurrent)


def time_of(gemm: GemmArguments, target: Target, epilogue: Epilogue = NO_EPILOGUE) -> float:
    """Return the estimate of a product with its epilogue operands in microseconds."""
    problem = problem_of(gemm)
    config = choose(problem, target, across=gemm.across).config
    if epilogue.along:
        m, n, _ = gemm.shape
        more = 2 * m * n * gemm.batch.count * len(epilogue.along)
        problem = replace(problem, traffic=problem.traffic + more)
    steps = ceil_div(ceil_div(problem.k, config.tile.bk), config.splits)
    singles = (gemm.a.vector == 1) + (gemm.vector_b == 1)
    return expected(problem, config, target) + SINGLES * steps * singles


def multiply_halves(
    gemm: GemmArguments,
    epilogue: Epilogue,
    target: Target,
    used: int = 0,
    *,
    half_sums: bool = False,
) -> tuple[Launch, ...]:
    """Return the launches of a 16-bit product with the tile of the lowest estimate.

    Args:
        gemm: the operands.
        epilogue: applied to every result.
        target: the GPU.
        used: bytes of the workspace already in use.
        half_sums: whether accumulators are float16.
    """
    atom = F16_SUMS if half_sums else atom_of(gemm.dtype)
    config = choose(problem_of(gemm), target, wgmma=not half_sums, across=gemm.across).config
    return multiply(gemm, epilogue, config, atom, target, used)
