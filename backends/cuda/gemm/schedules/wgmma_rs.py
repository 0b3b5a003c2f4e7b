"""GEMM of float32 as three float16 or TF32 products on Hopper, A in registers: `wgmma_rs.cu`.

Warp-specialized: producer warps load windows of A by cp.async and tiles of B by bulk copies. The
kernel is persistent, or split-K within a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...codegen.epilogue import Epilogue
from ...recipe.launch import Launch
from ...recipe.operands import ceil_div
from ...recipe.targets import REGISTERS, RESERVED, Target
from ..atoms import Atom
from ..problem import GemmArguments, RowKind
from ..resources import Resources
from ..tile import Config, CtaTile, clusters_of, inbox
from .multistage import SplitK

#: Sums of a tile that a block of a cluster finishes together, at least: those of a warp; to store
#: them in halves, 16 rows of a block of columns.
FRAGMENT, WHOLE = 16 * 8, 16 * 64
#: Maximum registers per consumer thread, and those that neither sums nor operands of the epilogue
#: use.
MAX_REGISTERS, OTHERS = 240, 72
#: Threads that are declared for a block of a lean tile, so that each has 96 registers: then a
#: multiprocessor has room for one such block, and for one of fewer threads of another kernel.
LEAN_THREADS = 640
#: Minimum steps of blocks of a convolution that keep apart: before shorter ones end, those of the
#: next kernel have hardly requested their weights.
LONG = 3


def threads(tile: CtaTile) -> int:
    """Return the threads per block, including one producer warp group."""
    return 128 * (tile.groups + 1)


def declared(tile: CtaTile) -> int:
    """Return the threads per block for which the compiler provides registers."""
    return LEAN_THREADS if tile.lean else threads(tile)


def resources(config: Config, words: int, together: int = FRAGMENT) -> Resources:
    """Return what a block takes; for `words` see `Atom`, and for `together` `warp_specialized`."""
    return warp_specialized(config, 128 * (config.tile.bm + words * config.tile.bn), together)


def warp_specialized(config: Config, stage: int, together: int, loader: int = 0) -> Resources:
    """Return what a block with one producer warp group takes.

    Args:
        config: tile and splits.
        stage: bytes of a stage, to which its barriers are added.
        together: sums of a tile that one block of a cluster finishes together.
        loader: see `registers`.
    """
    tile = config.tile
    return Resources(
        threads=threads(tile),
        ring=tile.stages * (stage + 16),
        inbox=inbox(tile.bm * tile.bn // together, together, config.splits),
        resident=tile.resident,
        registers=registers(tile, loader),
    )


def fitted(config: Config, of: Callable[[Config], Resources], limit: int) -> Config:
    """Return a configuration with as many stages as fit beside what blocks send to each other.

    It has all of its stages if not even two fit: then fewer blocks share a multiprocessor.

    Args:
        config: tile and splits.
        of: returns what a block takes.
        limit: how many bytes of shared memory it may have.
    """
    for stages in range(config.tile.stages, 1, -1):
        fitting = replace(config, tile=replace(config.tile, stages=stages))
        if of(fitting).shared <= limit:
            return fitting
    return config


def registers(tile: CtaTile, minimum: int = 0) -> tuple[int, int]:
    """Return the registers of consumer and producer threads.

    Args:
        tile: what a block computes.
        minimum: of a producer; 0 for what address computations need.
    """
    maximum = REGISTERS // (declared(tile) * tile.resident) // 8 * 8
    total = (tile.groups + 1) * min(maximum, MAX_REGISTERS)
    minimum = minimum or 24 + 8 * tile.groups
    own = min((total - minimum) // tile.groups // 8 * 8, MAX_REGISTERS)
    return own, total - tile.groups * own


def eights_ahead(tile: CtaTile, epilogue: Epilogue) -> int:
    """Return for how many eights of columns a thread loads operands of the epilogue at once.

    A thread has two adjacent columns of two rows of each. The compiler uses as many registers as
    the kernel begins with.
    """
    eights = tile.bn // 8
    if epilogue.halves:  # pairs of eights of a block
        return 2 if tile.bn > 128 else 4
    room = max(4, (REGISTERS // (declared(tile) * tile.resident) - 4 * eights - OTHERS) // 4)
    return max(n for n in range(1, eights + 1) if eights % n == 0 and n <= room)


def multiply(
    gemm: GemmArguments,
    epilogue: Epilogue,
    config: Config,
    atom: Atom,
    target: Target,
    *,
    concurrent: bool = False,
) -> Launch:
    """Return the launch of a product; see `multistage.multiply`.

    Args:
        gemm: the product.
        epilogue: applied to every result.
        config: tile and splits.
        atom: the instruction.
        target: the GPU.
        concurrent: whether it runs beside others, with which it shares multiprocessors.
    """
    (m, n, k), batch, splits = gemm.shape, gemm.batch, config.splits
    tiles = config.tile.count(m, n)
    items = tiles * batch.count * splits
    places = target.processors if splits == 1 else clusters_of(splits, target) * splits
    long = gemm.a.rows is RowKind.MATRIX or ceil_div(k, config.tile.bk * splits) >= LONG
    alone = long and not concurrent and items <= places
    room = target.room(1 if alone else config.tile.resident)
    if config.tile.lean:  # beside a block that keeps others apart
        room = target.shared - target.alone(0) - RESERVED
    together = WHOLE if epilogue.halves else FRAGMENT
    of_config = partial(resources, words=atom.words, together=together)
    config = fitted(config, of_config, room)
    tile, block = config.tile, of_config(config)
    work = {
        **{"m": m, "n": n, "k": k, "lda": gemm.a.distance, "tiles_n": ceil_div(n, tile.bn)},
        **{"tiles": tiles, "items": items, "batch_a": batch.a, "batch_c": batch.c},
        **{"rows_b": gemm.ldb, "splits": splits},
    }
    pooled = "MaxPool 2x2" if gemm.a.squares else ""
    return Launch(
        "gemm/wgmma_rs.cu",
        "split_wgmma",
        grid=(items if splits > 1 else min(items, tile.resident * target.processors), 1, 1),
        block=block.threads,
        args={
            **{"a": gemm.a.data, "b": gemm.b, "scales": gemm.scales},
            **{"c": gemm.c if epilogue.plain else None, "halves": epilogue.halves},
            "table": gemm.a.table,
            **{"bias": gemm.bias, **epilogue.args, "ldc": gemm.ldc, "work": work},
            "image": gemm.a.geometry,
        },
        types=(*gemm.elements, *epilogue.aliases),
        constants=(
            *tile.constants("GROUPS", "BN", "STAGES", "RESIDENT"),
            *zip(("REGISTERS", "LOADER_REGISTERS"), block.registers, strict=True),
            *tile.constants("OVERLAP"),
            ("DECLARED", declared(tile)),
            *(("ROWS", int(gemm.a.rows)), ("VECTOR", gemm.a.vector), ("PARTS", atom.parts)),
            ("AXES", gemm.a.axes),
            ("SPLIT", int(SplitK.CLUSTER if splits > 1 else SplitK.WHOLE)),
            *(("VECTOR_C", gemm.vector_c(4, 2)), *epilogue.flags(gemm.bias)),
            *(("CONSTANT", gemm.constant), ("POOL", gemm.a.squares)),
            ("EIGHTS_AHEAD", eights_ahead(tile, epilogue)),
        ),
        code="\n".join(
            (atom.code(tile.bn, a_in_registers=True), epilogue.halves_code, epilogue.code)
        ),
        shared=target.alone(block.shared) if alone and not tile.lean else block.shared,
        cluster=(splits, 1, 1),
        note=" ".join(filter(None, (atom.title, str(config), epilogue.title, pooled))),
        pitched=gemm.pitched(epilogue.pitched),
    )
