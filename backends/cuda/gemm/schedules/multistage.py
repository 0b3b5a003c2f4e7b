"""GEMM and implicit GEMM with a multistage cp.async pipeline: `multistage.cu` (mma.sync, wgmma).

One kernel multiplies what any atom does: 16-bit floats, bytes, float32 as numbers of tf32. Single
warps do (mma.sync), or groups of four from shared memory (wgmma, Hopper). Split-K: CTAs may share
the sum of a tile, as a cluster, which adds it up from each other's shared memory, or by partial
sums in the workspace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from .....runtime.ir.dtypes import DType
from ...codegen.epilogue import NO_EPILOGUE, Epilogue
from ...recipe.launch import Launch
from ...recipe.layout import ceil_div
from ...recipe.operands import Given, Scratch, Tensor
from ...recipe.targets import Target
from ..atoms import F16_SUMS, Atom, atom_of
from ..problem import Gemm, Problem, Rows
from ..reduce_splits import reduction
from ..tables.f16 import MULTISTAGE
from ..tile import (
    CACHE,
    CLUSTERED,
    LAUNCH,
    Choice,
    Config,
    Tile,
    Work,
    estimate,
    overlapped,
    ranked,
    suited,
    with_splits,
)

#: Microseconds by which each block more makes a cluster wait longer while the kernel in front ends,
#: and the blocks of a cluster that the tables' figures stand for. Fitted to linear layers of 16 to
#: 3136 rows in transformers' blocks.
CLUSTER_WAIT, SHORT_WAIT = 0.25, 1.6
#: Bytes of a row of a tile of A or B in shared memory: a step.
ROW = 128


class Split(IntEnum):
    """How a sum comes together: in one block, as partial sums, or in a cluster."""

    WHOLE, PARTIAL, CLUSTER = range(3)


def threads(tile: Tile) -> int:
    """Return the threads of a block."""
    return 32 * tile.warps[0] * tile.warps[1]


def shared(tile: Tile, steps: int, parts: int = 0) -> int:
    """Return the bytes of shared memory of a block: of the steps, and later of the sums.

    Args:
        tile: what it computes.
        steps: how many it does.
        parts: of numbers, see `Atom.parts`; sums of these stay in registers.
    """
    buffers = min(tile.stages, steps) * (tile.bm + max(1, parts) * tile.bn) * ROW
    return buffers if parts else max(buffers, tile.bm * (tile.bn + 8) * 4)


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
    blocks = tile.blocks(problem) * splits
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


# ── the recipe ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class End:
    """What becomes of the sums: an entry of `multistage.cu`, and what it takes of its own.

    Attributes:
        entry: its name.
        args: by name, the result ``c`` among them.
        types: the C++ aliases Z and R.
        constants: compile-time constants.
        code: generated functions.
        title: for reports.
        along: operands that lie like the result.
    """

    entry: str
    args: Mapping[str, Given]
    types: tuple[tuple[str, DType], ...]
    constants: tuple[tuple[str, int], ...]
    code: str
    title: str = ""
    along: tuple[Tensor, ...] = ()


def multiply(
    gemm: Gemm, epilogue: Epilogue, config: Config, atom: Atom, target: Target, used: int = 0
) -> tuple[Launch, ...]:
    """Return the launches of a product with sums in floating point.

    Args:
        gemm: what is multiplied.
        epilogue: applied to every result.
        config: tile and splits.
        atom: the instruction; with one in float16, several blocks' sums are added up in float32.
        target: the GPU.
        used: bytes of the workspace that are taken.
    """
    if config.splits == 1:
        return (launch(gemm, config, atom, _finished(gemm, epilogue, atom), Split.WHOLE),)
    if target.has_clusters and not atom.parts:
        return (launch(gemm, config, atom, _finished(gemm, epilogue, atom), Split.CLUSTER),)
    (m, n, _), sums = gemm.shape, Scratch(ceil_div(used, 256) * 256)
    partial = _finished(replace(gemm, c=sums, bias=None), NO_EPILOGUE, atom)
    needed = sums.offset + 4 * config.splits * gemm.batch.count * m * n
    first = replace(launch(gemm, config, atom, partial, Split.PARTIAL), scratch=needed)
    return first, reduction(gemm, epilogue, config.splits, sums)


def _finished(gemm: Gemm, epilogue: Epilogue, atom: Atom) -> End:
    """Return the end of sums that get a bias and an epilogue."""
    return End(
        entry="mma",
        args={"c": gemm.c, "bias": gemm.bias, **epilogue.args},
        types=epilogue.aliases,
        constants=(
            ("VECTOR_C", gemm.vector_c(*((4, 2) if atom.parts else (8,)))),
            *epilogue.flags(gemm.bias),
            ("ZERO_B", False),
        ),
        code=epilogue.code,
        title=epilogue.title,
        along=epilogue.along,
    )


def launch(gemm: Gemm, config: Config, atom: Atom, end: End, split: Split) -> Launch:
    """Return the launch of `multistage.cu`.

    Args:
        gemm: what is multiplied.
        config: tile and splits.
        atom: the instruction.
        end: what becomes of the sums.
        split: how those of several blocks come together.
    """
    (m, n, k), tile, splits = gemm.shape, config.tile, config.splits
    steps = ceil_div(ceil_div(k * gemm.dtype.itemsize, ROW), splits)
    wgmma_columns = tile.bn // tile.warps[1] if tile.wgmma else 0
    return Launch(
        "gemm/multistage.cu",
        end.entry,
        grid=(tile.count(m, n), 1, gemm.batch.count * splits),
        block=threads(tile),
        args={
            **{**gemm.sizes, "a": gemm.a.data, "b": gemm.b, "ldb": gemm.ldb, "ldc": gemm.ldc},
            **{"batch_b": gemm.batch.b, "batch_c": gemm.batch.c, "splits": splits},
            **{"tiles_n": ceil_div(n, tile.bn), **end.args},
        },
        types=(*gemm.elements, *end.types),
        constants=(
            *tile.constants("BM", "BN", "WARPS_M", "WARPS_N", "STAGES", "WGMMA"),
            *(("ROWS", int(gemm.a.rows)), ("VECTOR", gemm.a.vector), ("PARTS", atom.parts)),
            *(("SPLIT", int(split)), *end.constants),
        ),
        code="\n".join((atom.code(wgmma_columns), end.code)),
        shared=shared(tile, steps, atom.parts),
        cluster=(1, 1, splits if split is Split.CLUSTER else 1),
        # As it lies, B is read before the kernel in front has ended; in parts, behind that.
        early=gemm.constant or atom.parts > 0,
        note=" ".join(filter(None, (atom.title, str(config), end.title))),
        pitched=gemm.pitched(end.along),
    )


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


def multiply_halves(
    gemm: Gemm, epilogue: Epilogue, target: Target, used: int = 0, *, half_sums: bool = False
) -> tuple[Launch, ...]:
    """Return the launches of a product of 16-bit floats, by the tile that should be fastest.

    Args:
        gemm: what is multiplied.
        epilogue: applied to every result.
        target: the GPU.
        used: bytes of the workspace that are taken.
        half_sums: a block adds up in float16.
    """
    atom = F16_SUMS if half_sums else atom_of(gemm.dtype)
    config = choose(problem_of(gemm), target, wgmma=not half_sums).config
    return multiply(gemm, epilogue, config, atom, target, used)
