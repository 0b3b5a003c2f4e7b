"""GEMM and 1x1 convolutions of float16 and bfloat16 by TMA, stores included (Hopper).

Persistent and warp-specialized, with an epilogue that overlaps the next tile: `tma_persistent.cu`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import sqrt

from .....runtime.base.record import record
from .....runtime.ir.dtypes import DType
from ...codegen.epilogue import Epilogue
from ...codegen.epilogue_operands import row_of, rows_of_boxes
from ...recipe.launch import Launch
from ...recipe.operands import Arguments, Ints, Operand, Packed, Tensor, TensorMap, ceil_div
from ...recipe.targets import Target
from ..atoms import atom_of
from ..problem import GemmArguments, Problem
from ..resources import Resources
from ..tables.f16 import TMA_PAIRS, TMA_PERSISTENT
from ..tile import (
    MAX_KEPT,
    MEMORY,
    BlockWork,
    Config,
    CtaTile,
    TimedConfig,
    estimate,
    filled,
    ranked,
)
from ..turned import STILL, UNTURNED, Turned

#: Columns per strip of results, and rows per block.
STRIP, ROWS = 64, 64
#: Rows of a warp group that pass through shared memory at a time, two times, if results are wider
#: than operands; and how much longer than those of results they are.
LINES, GAP = 64, 8
#: Registers of producer threads, and of consumer threads by number of warp groups.
FEW, MANY = 40, {1: 216, 2: 232, 3: 152}
#: Latency in microseconds and throughput in elements per microsecond, for `_exchange`.
LATENCY, EXCHANGED = 1.65, 1e4
#: Microseconds by which an expensive epilogue (Gelu) delays the last tile of a block with a single
#: warp group: there is no further product to hide it. Fitted to 39 products of 16 to 3136 rows.
#: Several groups take no longer than other kernels, whose estimates know nothing of it, either: in
#: 13 networks of 128 to 1024 rows on an H200, choices without it take up to 5 % less time.
LAST_RESULTS = 2.1
#: Results per microsecond of a warp group that applies such an epilogue, together with others or in
#: turns, which leaves fewer registers. Fitted to 8 products of 96 to 768 terms by five tiles.
COOPERATIVE, PING_PONG = 6.5e3, 3.3e3
#: Tiles per row of results up to which tiles more than twice as wide as high are not slower than
#: estimated: with 6, 7 or 16 columns of them, 112 to 132 tiles of 64x192 take 1.3 to 1.9 times as
#: long on an H100 as with 2 or 4, as each brings its own part of B.
LOW_COLUMNS = 4
#: Minimum pixels of convolutions, and minimum microseconds of those beside others; see `pays`.
MANY_PIXELS, LONG = 1024, 12.0
#: Bytes of B that stay in the L2 cache while rows of A are streamed.
STAYING = 25e6


def resources(tile: CtaTile, *, staged: bool = False) -> Resources:
    """Return what a block takes.

    Args:
        tile: what it computes.
        staged: whether results are wider than operands, and pass as rows.
    """
    sharing, pieces = 1 if tile.ping_pong else tile.groups, 1 if staged else tile.bn // STRIP
    rows = LINES * (tile.bn + GAP) * 4
    places = rows if staged else tile.epilogues * tile.bm * STRIP * 2
    cycle = tile.groups * pieces if tile.ping_pong else 1 if staged else tile.epilogues
    return Resources(
        threads=tile.groups * 128 + 128,  # plus one producer warp group
        ring=tile.stages * ((tile.bm + tile.bn) * tile.bk * 2 + 32),
        store=places + cycle * sharing * 16 + tile.groups * 8,
        registers=(MANY[tile.groups], FEW),
    )


def is_staged(gemm: GemmArguments, epilogue: Epilogue) -> bool:
    """Return whether results are wider than operands, and none of these has their layout."""
    return epilogue.stored.itemsize > gemm.dtype.itemsize and not epilogue.along


def pays(pixels: int, other: float, *, concurrent: bool) -> bool:
    """Whether convolutions without windows are worth comparing with other kernels.

    Blocks fill their multiprocessors. On an H100 at batch 32 ResNet-50 takes 3.5 % less time with
    them, but GoogLeNet 0.6 % more, whose convolutions are short and run beside others.

    Args:
        pixels: rows of the product.
        other: the estimate of another kernel in microseconds.
        concurrent: whether the convolution runs beside others.
    """
    return pixels >= MANY_PIXELS and (not concurrent or other >= LONG)


def blocks(tile: CtaTile) -> int:
    """Return the number of 64-row blocks per warp group."""
    return tile.bm // ROWS // (1 if tile.ping_pong else tile.groups)


def _is_of_one_sample(tile: CtaTile, shared: int, m: int, count: int) -> bool:
    """Whether no warp group has rows with different operands by sample."""
    if shared % m == 0:
        return True
    return (count == 1 or m % shared == 0) and shared % (blocks(tile) * ROWS) == 0


def _exchange(tile: CtaTile) -> float:
    """Return the microseconds until results have freed the buffer of the next epilogue operand.

    This concerns an operand with the result's layout.
    """
    buffered = tile.epilogues * STRIP / tile.bn
    return LATENCY / buffered + tile.bm * tile.bn / EXCHANGED


def _unhidden(tile: CtaTile, steps: int, waves: int) -> float:
    """Return the microseconds that an expensive epilogue adds to all waves but the last.

    Groups in turns finish a tile while the other multiplies.
    """
    results = blocks(tile) * ROWS * tile.bn
    if not tile.ping_pong:
        return (waves - 1) * results / COOPERATIVE
    product = steps * (tile.cost.latency + tile.cost.time) + tile.cost.wave
    return (waves - 1) * max(0.0, results / PING_PONG - product) / 2


@record
class PersistentProblem:
    """What the choice of a tile depends on.

    Attributes:
        shape: m, n, k; n counts the columns of all products.
        count: number of products of a stack.
        of_a: how many of them have a left operand of their own, or 1.
        read, stored: row pitches of A and of the results.
        across: see `GemmArguments.across`.
        staged: see `is_staged`.
        itemsize: bytes of a result.
        along: number of epilogue operands with the result's layout.
        reads_rows: whether the epilogue reads operands by rows of its own.
        shared: see `Epilogue.shared`.
        is_cheap: see `Epilogue.is_cheap`.
        products: 1, or 2; see `multiply`.
    """

    shape: tuple[int, int, int]
    count: int
    of_a: int
    read: int
    stored: int
    across: bool
    staged: bool
    itemsize: int
    along: int
    reads_rows: bool
    shared: int
    is_cheap: bool
    products: int = 1


def choose(
    gemm: GemmArguments, epilogue: Epilogue, target: Target, products: int = 1
) -> TimedConfig | None:
    """Return the tile with the lowest estimate, if any applies; see `multiply`."""
    return next(iter(candidates(gemm, epilogue, target, products)), None)


def candidates(
    gemm: GemmArguments, epilogue: Epilogue, target: Target, products: int = 1
) -> tuple[TimedConfig, ...]:
    """Return the tiles that apply with their estimates, best first; see `multiply`."""
    batch = gemm.batch
    if epilogue.period and (batch.count > 1 or not isinstance(epilogue.along[0], Tensor)):
        return ()
    problem = PersistentProblem(
        shape=gemm.shape,
        count=batch.count,
        of_a=batch.count if batch.a else 1,
        read=gemm.a.row,
        stored=gemm.ldc,
        across=gemm.across,
        staged=is_staged(gemm, epilogue),
        itemsize=epilogue.stored.itemsize,
        along=len(epilogue.along),
        reads_rows=epilogue.reads_rows,
        shared=epilogue.shared,
        is_cheap=epilogue.is_cheap,
        products=products,
    )
    return _ranked(problem, target)


@lru_cache(MAX_KEPT)
def _ranked(p: PersistentProblem, target: Target) -> tuple[TimedConfig, ...]:
    m, n, k = p.shape
    # Elements behind the last term read as zeros, if not only rows of B have a pitch.
    read, stored = (p.read,) if p.across else (k, p.read), (n // p.products, p.stored)
    if not target.has_wgmma or p.along > 1 or any(x % 8 for x in read):
        return ()
    if p.reads_rows and p.count == 1:
        return ()
    # Rows of wide results may have any length, and pass while another group multiplies.
    if (not p.staged or p.across) and any(x % 8 for x in stored):
        return ()
    stacked = 2 * (n * k + m * n * p.along) + p.itemsize * m * n // p.products
    traffic = 2 * p.of_a * m * k + p.count * stacked

    def time_of(config: Config) -> float:
        tile = config.tile
        work = BlockWork(
            p.count * tile.count(m, n),
            ceil_div(k, tile.bk),
            tile.resident,
            target.processors,
            wave=_exchange(tile) if p.along else 0.0,
        )
        last = 0.0 if p.is_cheap or tile.groups > 1 else LAST_RESULTS
        return estimate(tile.cost, work) + last

    def with_epilogues(config: Config) -> float:
        tile, waves = config.tile, ceil_div(p.count * config.tile.count(m, n), target.processors)
        hidden = p.is_cheap or p.products > 1  # costs of two products contain it
        more = 0.0 if hidden else _unhidden(tile, ceil_div(k, tile.bk), waves)
        return time_of(config) + more

    # Others are idle half of the time, which is still cheaper than transposing B.
    table = TMA_PERSISTENT if p.products == 1 else TMA_PAIRS
    usable = [tile for tile in table if not tile.deep or tile.is_filled(k)]
    usable = [tile for tile in usable if tile.ping_pong or not p.staged]
    usable = [tile for tile in usable if _is_of_one_sample(tile, p.shared, m, p.count)]
    usable = [tile for tile in usable if resources(tile, staged=p.staged).fits(target)]
    usable = [tile for tile in usable if tile.bn <= 2 * tile.bm or n <= LOW_COLUMNS * tile.bn]
    tiles = usable if p.across else filled(usable, Problem(m, n, k))
    # Of several bound by memory, the one with the least work. Estimates of other kernels know
    # nothing of their epilogues, either.
    return tuple(
        TimedConfig(max(time_of(each.config), traffic / MEMORY), each.config)
        for each in ranked(map(Config, tiles), with_epilogues)
    )


def patch_of(gemm: GemmArguments, tile: CtaTile, target: Target) -> int:
    """Return the rows of tiles that are processed together, column by column.

    One row if B stays in the cache; else concurrent tiles form about a square.
    """
    _, n, k = gemm.shape
    return 1 if 2 * n * k <= STAYING else round(sqrt(target.processors * tile.bn / tile.bm))


def can_turn(tile: CtaTile, size: int) -> bool:
    """Whether tiles begin with whole heads of this many elements."""
    return tile.bn % size == 0


def _mapped(
    base: Operand, dtype: DType, dims: Ints, row: int, box: Ints, count: int, *, own: bool = True
) -> TensorMap:
    """Return the map of a matrix, or of a stack of `count` that follow one another.

    Args:
        base: the matrices.
        dtype: of their elements.
        dims: columns and rows of one.
        row: elements from one row to the next.
        box: columns and rows of a box.
        count: number of products.
        own: whether each of several products has a matrix of its own.
    """
    if count == 1:
        return TensorMap(base, dtype, dims, (row,), box)
    stack = (*dims, count if own else 1)
    return TensorMap(base, dtype, stack, (row, row * dims[1]), (*box, 1))


def _maps_of_results(
    gemm: GemmArguments, epilogue: Epilogue, tile: CtaTile, columns: int, turned: Turned | None
) -> tuple[TensorMap, TensorMap]:
    """Return the maps of what is stored, and of what lies beside it; see `multiply`.

    The second one is that of the epilogue's operand with the result's layout, or of the columns
    behind heads that are rotated; the first one again if there is neither.

    Args:
        gemm: the product.
        epilogue: applied to every result.
        tile: what a block computes.
        columns: of the result.
        turned: what rotates heads in the first columns; None if nothing does.
    """
    (m, n, _), stored, count = gemm.shape, epilogue.stored, gemm.batch.count
    height = blocks(tile) * ROWS
    results = (columns, m), gemm.ldc
    if stored.itemsize > gemm.dtype.itemsize:  # unused: threads store the results
        results = (ceil_div(columns, 8) * 8, m), ceil_div(gemm.ldc, 8) * 8
    if turned is not None:
        results = (turned.columns, m), turned.columns
    kept = along = _mapped(gemm.c, stored, *results, (128 // stored.itemsize, height), count)
    if turned is not None and turned.others is not None:
        rest = n - turned.columns
        along = TensorMap(turned.others, stored, (rest, m), (rest,), (STRIP, height))
    for operand in epilogue.along:
        row, (base, rows) = row_of(operand, n), rows_of_boxes(operand, m, epilogue.period, height)
        along = _mapped(base, gemm.dtype, (n, rows), row, (STRIP, height), count)
    return kept, along


def multiply(
    gemm: GemmArguments,
    epilogue: Epilogue,
    tile: CtaTile,
    target: Target,
    products: int = 1,
    turned: Turned | None = None,
) -> Launch:
    """Return the launch of a product, or of two that the epilogue combines.

    Args:
        gemm: the product, or a stack of them with as many B as results, and as many A or one; B is
            [n][k], or [k][n] if `across`; n, row pitches and, unless `across`, k are multiples of
            8.
        epilogue: applied to every result; at most one operand with the result's layout.
        tile: what a block computes.
        target: the GPU.
        products: 1, or 2 whose columns of B, and of the bias, take turns by eights; n counts those
            of both.
        turned: what rotates heads in the first columns, the only ones of C; the epilogue does
            nothing then. None if nothing does.
    """
    if tile.ping_pong and not epilogue.is_cheap and gemm.bias is None and epilogue.behind_bias:
        # Sums begin with the bias while another group multiplies; it is not left to the epilogue.
        epilogue = epilogue.behind_bias
        gemm = replace(gemm, bias=epilogue.bias)
    (m, n, k), dtype, batch = gemm.shape, gemm.dtype, gemm.batch
    of_c, of_two = n // products, ", 2 products" if products > 1 else ""
    tiles_m, tiles_n = ceil_div(m, tile.bm), ceil_div(n, tile.bn)
    staged = is_staged(gemm, epilogue)
    block = resources(tile, staged=staged)
    kept, along = _maps_of_results(gemm, epilogue, tile, of_c, turned)
    of_turned: Arguments = {**epilogue.args, "positions": None, "turns": STILL["turns"]}
    if turned is not None:
        of_turned = turned.args
    of_a = (k, m), gemm.a.row, (tile.bk, tile.bm), batch.count
    rows_of_b = ((k, n), k, (tile.bk, tile.bn))
    if gemm.across:
        rows_of_b = ((n, k), n, (STRIP, tile.bk))
    whole = isinstance(gemm.a.data, Packed)
    return Launch(
        "gemm/tma_persistent.cu",
        "mma_linear",
        grid=(min(batch.count * tiles_m * tiles_n, target.processors), 1, 1),
        block=block.threads,
        args={
            "a": _mapped(gemm.a.data, dtype, *of_a, own=batch.a > 0),
            "b": _mapped(gemm.b, dtype, *rows_of_b, batch.count),
            **{"c": kept, "z": along, "y": gemm.c, "bias": gemm.bias, **of_turned},
            **{"m": m, "n": n, "ldc": gemm.ldc, "tiles_m": tiles_m, "tiles_n": tiles_n},
            **{"patch": patch_of(gemm, tile, target), "steps": ceil_div(k, tile.bk)},
            "products": batch.count,
        },
        types=epilogue.types,
        constants=(
            *(*tile.constants("GROUPS"), ("BLOCKS", blocks(tile))),
            *tile.constants("BN", "STAGES", "PING_PONG"),
            ("PLACES", 1 if staged else tile.epilogues),
            ("PRODUCTS", products),
            *zip(("FEW", "MANY"), reversed(block.registers), strict=True),
            *(("ACROSS", gemm.across), ("CONSTANT", gemm.constant), ("CONSTANT_A", whole)),
            *(("STACKED", batch.count > 1), ("SHARED_A", not batch.a)),
            *(*epilogue.flags(gemm.bias, mapped=True), ("PERIOD", epilogue.period)),
            *(UNTURNED if turned is None else turned.constants),
        ),
        code="\n".join((atom_of(dtype).code(tile.bn, across=tile.bn), epilogue.code)),
        shared=block.shared,
        # What is constant is prefetched before the previous kernel has ended.
        early=gemm.constant or whole,
        note=f"{tile}{of_two} {'RotaryEmbedding' if turned else epilogue.title}".strip(),
        pitched=gemm.pitched(epilogue.pitched),
    )
