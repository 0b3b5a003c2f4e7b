"""GEMM of float32 as three float16 products for many rows, A in registers: `wgmma_rs_tma.cu`.

TMA loads the rows and the operand of the epilogue, and stores the results.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod

from .....runtime.ir.dtypes import float16, float32
from .....runtime.plan.format import Format
from ...codegen.epilogue import Epilogue
from ...codegen.epilogue_operands import ALONG, BY_CHANNEL, PLACED, row_of, rows_of_boxes
from ...recipe.launch import Launch
from ...recipe.operands import Operand, TensorMap, ceil_div
from ...recipe.targets import Target
from ..atoms import F16X3
from ..problem import GemmArguments, Image, Matrix, Problem, RowKind, Shape
from ..resources import Resources
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
from .wgmma_rs import FRAGMENT, warp_specialized

#: Columns per strip of results; rows per warp group; and bytes of both.
STRIP, ROWS = 32, 64
BYTES = 4 * STRIP * ROWS
#: Columns that have one scale in halves.
BLOCK = 64
#: Minimum registers of the threads that copy.
LOADER = 40


def resources(tile: CtaTile) -> Resources:
    """Return what a block takes."""
    plain = warp_specialized(Config(tile), 128 * (tile.bm + tile.bn), FRAGMENT, LOADER)
    return replace(plain, store=tile.epilogues * tile.groups * (BYTES + 16))


def refusal(gemm: GemmArguments, epilogue: Epilogue) -> str:
    """Return why the schedule does not apply; empty if it does."""
    a, n = gemm.a, gemm.shape[1]
    if gemm.batch.count > 1 or gemm.scales is None:
        return "several products, or constants that are not in halves"
    if a.squares or a.rows is RowKind.WINDOWS:
        return "windows, or pooling"
    if isinstance(a, Image) and _is_apart(a) and len(a.view.strides) != 2:
        return "pixels that are apart in images of other than two axes"
    along, halves = epilogue.along, epilogue.halves
    if len(along) > 1 or not {*epilogue.kinds} <= {ALONG, PLACED, BY_CHANNEL}:
        return "operands of an epilogue that are not alike in all rows"
    if not (epilogue.sums == epilogue.stored == float32):
        return f"results of {epilogue.stored.name}"
    if halves and (halves.format is not Format.PIXEL_HALVES or n % BLOCK):
        return "rows in halves, or part of a block of columns"
    lengths = *gemm.shape[1:], gemm.a.row, gemm.ldc, *(row_of(each, n) for each in epilogue.along)
    return f"rows of {lengths} numbers, not of fours" if any(n % 4 for n in lengths) else ""


def choose(gemm: GemmArguments, epilogue: Epilogue, target: Target) -> TimedConfig | None:
    """Return the tile with the lowest estimate if the schedule applies; see `best`."""
    if refusal(gemm, epilogue):
        return None
    return best(gemm.shape, target, len(epilogue.along), whole=epilogue.halves is not None)


def time_of(problem: Problem, target: Target) -> float:
    """Return the estimate of a product of many rows; infinite if there is none."""
    if problem.batch > 1 or problem.windows or problem.n % 4 or problem.k % 4:
        return inf
    found = best((problem.m, problem.n, problem.k), target)
    return found.microseconds if found else inf


def best(
    shape: Shape, target: Target, operands: int = 0, *, whole: bool = False
) -> TimedConfig | None:
    """Return the tile with the lowest estimate, of those with one for every multiprocessor.

    Args:
        shape: M, N and K.
        target: the GPU.
        operands: those of the epilogue with the result's order of elements.
        whole: whether tiles must have whole blocks of columns, to store them in halves.
    """
    m, n, k = shape
    traffic = 4 * (m * (k + n * (1 + operands)) + n * k)

    def time_of(config: Config) -> float:
        tile, steps = config.tile, ceil_div(k, config.tile.bk)
        blocks = tile.count(m, n)
        cached = blocks * steps * (tile.bm + tile.bn) * tile.bk * 4 / TMA_CACHE
        work = BlockWork(blocks, steps, tile.resident, target.processors, cached, traffic)
        return LAUNCH + overlapped(estimate(tile.cost, work), work, target)

    usable = [tile for tile in WGMMA_RS_TMA if tile.count(m, n) >= target.processors]
    usable = [tile for tile in usable if not whole or tile.bn % BLOCK == 0]
    fitting = filled(usable, Problem(m, n, k), narrowest=STRIP)
    return next(iter(ranked(map(Config, fitting), time_of)), None)


def exposed(gemm: GemmArguments, epilogue: Epilogue) -> float:
    """Return the microseconds that other kernels take to read what the epilogue adds.

    They do so between main loops, which estimates do not contain.
    """
    m, n, _ = gemm.shape
    return 4 * m * n * len(epilogue.along) / MEMORY


def _is_apart(a: Matrix | Image) -> bool:
    """Whether rows are pixels that are not adjacent."""
    return isinstance(a, Image) and prod(a.view.strides) > 1


def _rows(gemm: GemmArguments, tile: CtaTile) -> TensorMap:
    """Return where the rows of a tile are, 32 terms of them."""
    (m, _, k), a, box = gemm.shape, gemm.a, (tile.bk, tile.bm)
    if isinstance(a, Matrix) or not _is_apart(a):
        return TensorMap(a.data, float32, (k, m), (a.row,), box)
    (height, width), (step_h, step_w), (image, _, row, column) = (
        a.spatial,
        a.view.strides,
        a.strides,
    )
    last_h, last_w = (
        (size - 1) * step for size, step in zip(a.output, a.view.strides, strict=True)
    )
    corners = (0, 0), (last_w + 1 - width, last_h + 1 - height)
    dims, moves = (k, width, height, a.images), (column, row, image)
    return TensorMap(a.data, float32, dims, moves, box, corners, (1, step_w, step_h, 1))


def _geometry(a: Matrix | Image) -> dict[str, int]:
    """Return the pixels of an image of results and of its rows, and strides, of pixels apart."""
    if isinstance(a, Matrix) or not _is_apart(a):
        return dict.fromkeys(("pixels", "columns", "stride_h", "stride_w"), 1)
    step_h, step_w = a.view.strides
    sizes = {"pixels": prod(a.output), "columns": a.output[1]}
    return {**sizes, "stride_h": step_h, "stride_w": step_w}


def multiply(gemm: GemmArguments, epilogue: Epilogue, tile: CtaTile, target: Target) -> Launch:
    """Return the launch of a product with constants in halves."""
    (m, n, k), tiles, block = gemm.shape, tile.count(*gemm.shape[:2]), resources(tile)

    def strips(tensor: Operand, row: int, rows: int = m) -> TensorMap:
        return TensorMap(tensor, float32, (n, rows), (row,), (STRIP, ROWS))

    halves, kept = epilogue.halves, list[TensorMap]()
    if epilogue.plain:
        kept.append(strips(gemm.c, gemm.ldc))
    if halves:
        sizes, row = (2 * STRIP, m, n // STRIP, 1), 2 * STRIP
        moves, box = (row, row * m, 2 * n * m), (row, ROWS, 1, 1)
        kept.append(TensorMap(halves, float16, sizes, moves, box))
    along = [
        strips(base, row_of(each, n), rows)
        for each in epilogue.along
        for base, rows in [rows_of_boxes(each, m, epilogue.period, ROWS)]
    ]
    work = {
        **{"m": m, "n": n, "tiles_n": ceil_div(n, tile.bn), "tiles": tiles},
        **{"steps": ceil_div(k, tile.bk), "rows_b": gemm.ldb},
        **_geometry(gemm.a),
    }
    formats = f"#define IN_HALVES {int(bool(halves))}\n#define PLAIN {int(epilogue.plain)}"
    instructions = F16X3.code(tile.bn, a_in_registers=True)
    return Launch(
        "gemm/wgmma_rs_tma.cu",
        "split_linear",
        grid=(min(tiles, target.processors), 1, 1),
        block=block.threads,
        args={
            **{"a": _rows(gemm, tile), "b": gemm.b, "scales": gemm.scales, "c": kept[0]},
            **{"map": kept[-1], "z": (*along, *kept)[0], "halves": halves},
            **{"bias": gemm.bias, **epilogue.args, "work": work},
        },
        types=(*gemm.elements, *epilogue.aliases),
        constants=(
            *tile.constants("GROUPS", "BN", "STAGES", "OVERLAP"),
            ("PLACES", tile.epilogues),
            *zip(("REGISTERS", "LOADER_REGISTERS"), block.registers, strict=True),
            *(("VECTOR_C", 2), ("CONSTANT", gemm.constant), ("APART", _is_apart(gemm.a))),
            *(*epilogue.flags(gemm.bias, mapped=True), ("PERIOD", epilogue.period)),
        ),
        code="\n".join((instructions, formats, epilogue.code)),
        shared=block.shared,
        early=gemm.constant,
        note=f"{F16X3.title} {tile} {epilogue.title}".strip(),
        pitched=gemm.pitched(epilogue.pitched),
    )
