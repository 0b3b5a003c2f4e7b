"""GEMM of float32 as three float16 products for many rows, A in registers: `wgmma_rs_tma.cu`.

TMA loads the rows and the operand of the epilogue, and stores the results.
"""

from __future__ import annotations

from .....runtime.ir.dtypes import float16, float32
from .....runtime.plan.backend import Format
from ...codegen.epilogue import ALONG, BY_CHANNEL, PLACED, Epilogue
from ...recipe.launch import Launch
from ...recipe.operands import Operand, TensorMap, ceil_div
from ...recipe.targets import Target
from ..atoms import F16X3
from ..problem import GemmArguments, Image, Matrix, Problem, RowKind
from ..tables.f16x3 import WGMMA_RS_TMA
from ..tile import (
    LAUNCH,
    MEMORY,
    TMA_CACHE,
    BlockWork,
    Config,
    CtaTile,
    TimedConfig,
    estimate,
    filled,
    overlapped,
    ranked,
)
from .wgmma_rs import registers, threads

#: Columns per strip of results; rows per warp group; and bytes of both.
STRIP, ROWS = 32, 64
BYTES = 4 * STRIP * ROWS
#: Columns that have one scale in halves.
BLOCK = 64
#: Minimum registers of the threads that copy.
LOADER = 40


def shared(tile: CtaTile) -> int:
    """Return the shared memory per block in bytes."""
    stages = tile.stages * (128 * (tile.bm + tile.bn) + 16)
    return stages + tile.epilogues * tile.groups * (BYTES + 16)


def refusal(gemm: GemmArguments, epilogue: Epilogue) -> str:
    """Return why the schedule does not apply; empty if it does."""
    a, n = gemm.a, gemm.shape[1]
    if gemm.batch.count > 1 or gemm.scales is None:
        return "several products, or constants that are not in halves"
    if a.squares or a.rows is RowKind.WINDOWS or not _is_matrix(a):
        return "windows, pixels that are apart, or pooling"
    along, halves = epilogue.along, epilogue.halves
    if len(along) > 1 or not {*epilogue.kinds} <= {ALONG, PLACED, BY_CHANNEL}:
        return "operands of an epilogue that are not alike in all rows"
    if not (epilogue.sums == epilogue.stored == float32):
        return f"results of {epilogue.stored.name}"
    if halves and (epilogue.plain or along or n % BLOCK):
        return "results both ways, in part of a block, or where operands of the epilogue are"
    if halves and halves.format is not Format.PIXEL_HALVES:
        return "rows in halves"
    lengths = *gemm.shape[1:], gemm.a.row, gemm.ldc, *(operand.row for operand in epilogue.along)
    return f"rows of {lengths} numbers, not of fours" if any(n % 4 for n in lengths) else ""


def choose(gemm: GemmArguments, epilogue: Epilogue, target: Target) -> TimedConfig | None:
    """Return the tile with the lowest estimate, of those with a tile for every multiprocessor."""
    (m, n, k), operands = gemm.shape, len(epilogue.along)
    if refusal(gemm, epilogue):
        return None
    traffic = 4 * (m * (k + n * (1 + operands)) + n * k)

    def time_of(config: Config) -> float:
        tile, steps = config.tile, ceil_div(k, config.tile.bk)
        blocks = tile.count(m, n)
        cached = blocks * steps * (tile.bm + tile.bn) * tile.bk * 4 / TMA_CACHE
        work = BlockWork(blocks, steps, tile.resident, target.processors, cached, traffic)
        return LAUNCH + overlapped(estimate(tile.cost, work), work, target)

    usable = [tile for tile in WGMMA_RS_TMA if tile.count(m, n) >= target.processors]
    if epilogue.halves:
        usable = [tile for tile in usable if tile.bn % BLOCK == 0]
    return next(
        iter(ranked(map(Config, filled(usable, Problem(m, n, k), narrowest=32)), time_of)), None
    )


def exposed(gemm: GemmArguments, epilogue: Epilogue) -> float:
    """Return the microseconds that other kernels take to read what the epilogue adds.

    They do so between main loops, which estimates do not contain.
    """
    m, n, _ = gemm.shape
    return 4 * m * n * len(epilogue.along) / MEMORY


def _is_matrix(a: Matrix | Image) -> bool:
    """Whether rows are those of a matrix: all pixels of an image, or a matrix."""
    return isinstance(a, Matrix) or set(a.view.strides) == {1}


def multiply(gemm: GemmArguments, epilogue: Epilogue, tile: CtaTile, target: Target) -> Launch:
    """Return the launch of a product with constants in halves."""
    (m, n, k), tiles = gemm.shape, tile.count(*gemm.shape[:2])
    own, loader = registers(tile, LOADER)

    def strips(tensor: Operand, row: int) -> TensorMap:
        return TensorMap(tensor, float32, (n, m), (row,), (STRIP, ROWS))

    halves, c = epilogue.halves, strips(gemm.c, gemm.ldc)
    if halves:
        sizes, row = (2 * STRIP, m, n // STRIP, 1), 2 * STRIP
        c = TensorMap(halves, float16, sizes, (row, row * m, 2 * n * m), (row, ROWS, 1, 1))
    along = [strips(operand, operand.row) for operand in epilogue.along]
    work = {
        **{"m": m, "n": n, "tiles_n": ceil_div(n, tile.bn), "tiles": tiles},
        **{"steps": ceil_div(k, tile.bk), "rows_b": gemm.ldb},
    }
    instructions = F16X3.code(tile.bn, a_in_registers=True)
    return Launch(
        "gemm/wgmma_rs_tma.cu",
        "split_linear",
        grid=(min(tiles, target.processors), 1, 1),
        block=threads(tile),
        args={
            "a": TensorMap(gemm.a.data, float32, (k, m), (gemm.a.row,), (tile.bk, tile.bm)),
            **{"b": gemm.b, "scales": gemm.scales, "c": c, "z": (*along, c)[0]},
            **{"halves": halves, "bias": gemm.bias, **epilogue.args, "work": work},
        },
        types=(*gemm.elements, *epilogue.aliases),
        constants=(
            *tile.constants("GROUPS", "BN", "STAGES", "OVERLAP"),
            *(("PLACES", tile.epilogues), ("REGISTERS", own), ("LOADER_REGISTERS", loader)),
            *(("VECTOR_C", 2), ("CONSTANT", gemm.constant)),
            *epilogue.flags(gemm.bias, mapped=True),
        ),
        code="\n".join((instructions, f"#define IN_HALVES {int(bool(halves))}", epilogue.code)),
        shared=shared(tile),
        early=gemm.constant,
        note=f"{F16X3.title} {tile} {epilogue.title}".strip(),
        pitched=gemm.pitched(epilogue.pitched),
    )
