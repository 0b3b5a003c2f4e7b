"""GEMM of few rows of float32 on Hopper as three float16 products, weights as left operand.

The kernel is `swap_f16x3.cu`: rows of A arrive in halves, or a block cuts them once, and weights
are requested before the kernel waits. Sliced-K, and split-K across the CTAs of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import hypot, inf, prod

from .....runtime.plan.format import HALVES_BLOCK
from ...codegen.epilogue import Epilogue
from ...recipe.launch import Launch
from ...recipe.operands import Ints, Scratch, Tensor, ceil_div
from ...recipe.targets import Target
from ..atoms import F16X3
from ..problem import GemmArguments, Image, Problem, RowKind
from ..tile import (
    MAX_CLUSTER,
    MAX_KEPT,
    Config,
    Cost,
    CtaTile,
    TimedConfig,
    clusters_of,
    inbox,
    ranked,
)
from .multistage import SplitK
from .swap_ab import MOMENTS, RowsNorm

#: What the names of its forms begin with.
PREFIX = "swap "
#: How many of them are tried.
MOST = 3
#: Maximum rows of A. (Estimates are fitted to 49 to 197.)
MAX_ROWS = 256
#: Columns of a block, which are rows of weights; bytes of the two halves of a step of one.
COLUMNS, STEP_BYTES = 64, 4 * HALVES_BLOCK
#: Warpgroups that share the steps of a block, and for each number the maximum rows of a block with
#: which registers suffice, if rows are cut and if they are in halves.
SLICES = {2: (64, 104), 3: (48, 72)}
#: Share of the clusters that would fit which start together, of up to four blocks and of more:
#: on an H200 28 of four and 36 of three do, as do 16 of six, but not 18.
STARTING = (0.95, 0.75)
#: Tiles in which a warpgroup cuts rows in turns.
BUFFERS = 2
#: Bytes per microsecond that one multiprocessor reads, and that all read of the L2 cache; products
#: per microsecond of a multiprocessor. Fitted, as is what follows, to 29 products in chains on an
#: H200 (ViT-B, BERT-base and ResNet-50), from which estimates differ by 6 %.
PROCESSOR, CACHE, PRODUCTS = 105e3, 10e6, 4.05e6
#: Share of the estimate of `wgmma_rs.cu`, which is a sixth too high where these are measured, and
#: microseconds, up to which products whose rows are cut pay: with longer ones ResNeXt-50 takes 3 %
#: more time at batch 1, ResNet-50 2 % at batch 4.
MARGIN_CUT, MAX_CUT = 0.79, 5.0
#: Microseconds of a kernel besides its steps, at first and per row of a block; of joining the sums
#: of a cluster; and of a step of a warpgroup, in halves, or with rows to cut, of which each takes
#: so long.
BEGIN, OF_ROW, JOIN, OF_STEP, OF_CUT, CUT_ROW = 0.95, 0.023, 0.5, 0.05, 0.25, 0.0105


def shared(tile: CtaTile, each: int, splits: int, *, ready: bool, normalized: bool = False) -> int:
    """Return the bytes of shared memory of a block.

    Args:
        tile: its tile.
        each: its steps.
        splits: the blocks of its cluster.
        ready: whether rows of A are in halves.
        normalized: whether they are normalized.
    """
    tiles_a = tile.stages if ready else tile.slices * BUFFERS
    tiles = STEP_BYTES * (tiles_a * tile.bm + tile.stages * COLUMNS)
    sums = 4 * tile.slices * tile.bm * (COLUMNS + 4)
    rest = 4 * tiles_a * tile.bm + 16 * each
    moments = tile.bm * MOMENTS if normalized else 0
    return ceil_div(max(tiles, sums) + rest, 16) * 16 + moments + inbox(tile.bm, COLUMNS, splits)


# ── which tile ───────────────────────────────────────────────────────────────────────────────────


def refusal(gemm: GemmArguments, target: Target) -> str:
    """Return why the kernel does not apply to constants in halves; empty if it does."""
    (m, _, k), a = gemm.shape, gemm.a
    if not target.has_wgmma:
        return "no wgmma"
    if m > MAX_ROWS or k % HALVES_BLOCK or not k or gemm.batch.count > 1:
        return f"{m} rows of {k} terms"
    if not gemm.constant or not isinstance(a.data, Tensor):
        return "operands in the workspace"
    strided = isinstance(a, Image) and (a.squares or prod(a.view.strides) > 1 or a.frames)
    return "windows" if a.rows is RowKind.WINDOWS or strided else ""


def choose(gemm: GemmArguments, target: Target, *, ready: bool = False) -> TimedConfig | None:
    """Return the tile and splits with the lowest estimate; None if there are none.

    Args:
        gemm: the product.
        target: the GPU.
        ready: whether rows of A are in halves.
    """
    ways = () if refusal(gemm, target) else ways_of(gemm.shape, target, ready=ready)
    return ways[0] if ways else None


@lru_cache(MAX_KEPT)
def ways_of(shape: Ints, target: Target, *, ready: bool = False) -> tuple[TimedConfig, ...]:
    """Return all configurations with their estimates, fastest first; see `choose`."""
    found = configs(shape, target, ready=ready)
    return tuple(ranked(found, lambda config: expected(shape, config, target, ready=ready)))


def configs(shape: Ints, target: Target, *, ready: bool) -> Iterator[Config]:
    """Yield tiles with splits such that all blocks run at once."""
    m, n, k = shape
    steps, columns = k // HALVES_BLOCK, ceil_div(n, COLUMNS)
    for parts in range(1, ceil_div(m, 8) + 1):
        rows = ceil_div(ceil_div(m, parts), 8) * 8
        if rows * (parts - 1) >= m:  # as many rows as with fewer parts
            continue
        for splits in range(1, min(MAX_CLUSTER, steps) + 1):
            together = target.processors if splits == 1 else clusters_of(splits, target)
            if parts * columns > together * (1.0 if splits < 3 else STARTING[splits > 4]):
                break
            for slices, most in SLICES.items():
                if rows <= most[ready] and (
                    tile := _fitted(rows, slices, ceil_div(steps, splits), splits, target, ready)
                ):
                    yield Config(tile, splits)


def _fitted(
    rows: int, slices: int, each: int, splits: int, target: Target, ready: bool
) -> CtaTile | None:
    """Return a tile with as many stages of weights as fit: all steps, or two per slice."""
    for stages in range(each, min(each, 2 * slices) - 1, -1):
        warps, cost = (4, 1), Cost(0, 0, 0)
        tile = CtaTile(
            *(rows, COLUMNS, HALVES_BLOCK, stages, warps, "wgmma", 1, cost), slices=slices
        )
        if shared(tile, each, splits, ready=ready) <= target.shared:
            return tile
    return None


def most_of(other: float) -> float:
    """Return what rows that are cut must be estimated to take less than, in place of `other`."""
    return min(MARGIN_CUT * other, MAX_CUT)


def expected(shape: Ints, config: Config, target: Target, *, ready: bool) -> float:
    """Return the estimate for a configuration in microseconds."""
    (m, n, k), tile, splits = shape, config.tile, config.splits
    each, blocks = ceil_div(k // HALVES_BLOCK, splits), tile.count(m, n) * splits
    read = STEP_BYTES * each * (tile.bm + COLUMNS)
    late = read
    if 2 * blocks <= target.processors:  # the kernel before leaves room: weights are there
        late -= STEP_BYTES * tile.stages * COLUMNS
    reading = late / PROCESSOR
    if late == read:
        reading = max(reading, blocks * read / (CACHE * target.processors / 132))
    multiplying = 3 * each * tile.bm * COLUMNS * HALVES_BLOCK / PRODUCTS
    of_step = OF_STEP if ready else OF_CUT + CUT_ROW * tile.bm
    time = BEGIN + OF_ROW * tile.bm + hypot(reading, multiplying)
    return time + ceil_div(each, tile.slices) * of_step + (JOIN if splits > 1 else 0.0)


# ── the recipe ───────────────────────────────────────────────────────────────────────────────────


def tried(problem: Problem, target: Target, *, ready: bool = False) -> tuple[str, ...]:
    """Return the names of forms that are worth trying; see `choose`."""
    ways = _ways(problem, target, ready=ready)
    return tuple(PREFIX + str(way.config) for way in ways[:MOST])


def time_of(problem: Problem, target: Target, *, ready: bool = False) -> float:
    """Return the estimate of the fastest form; infinite if there is none. See `choose`."""
    return next((way.microseconds for way in _ways(problem, target, ready=ready)), inf)


def _ways(problem: Problem, target: Target, *, ready: bool) -> tuple[TimedConfig, ...]:
    m, n, k = problem.m, problem.n, problem.k
    if problem.windows or problem.batch > 1 or m > MAX_ROWS or k % HALVES_BLOCK:
        return ()
    return ways_of((m, n, k), target, ready=ready) if target.has_wgmma else ()


def named(form: str, gemm: GemmArguments, target: Target, *, ready: bool = False) -> Config | None:
    """Return the configuration of a form; None if it is another kernel's. See `choose`."""
    if not form.startswith(PREFIX) or refusal(gemm, target):
        return None
    ways = ways_of(gemm.shape, target, ready=ready)
    return next((way.config for way in ways if PREFIX + str(way.config) == form), None)


def launch(
    gemm: GemmArguments,
    epilogue: Epilogue,
    config: Config,
    target: Target,
    *,
    ready: bool = False,
    norm: RowsNorm | None = None,
    moments: Scratch | None = None,
) -> Launch:
    """Return the launch of a product.

    Args:
        gemm: the product; its `b` is packed by `in_halves`, regardless of `ldb`.
        epilogue: applied to every result.
        config: tile and splits.
        target: the GPU.
        ready: whether rows of A are in `Format.HALVES`.
        norm: the normalization of rows in halves; None if there is none.
        moments: where those of rows of A are, if these are normalized, or else those of results in
            halves are stored; None if nowhere.
    """
    (m, n, k), tile, splits, a = gemm.shape, config.tile, config.splits, gemm.a
    each, tiles_m = ceil_div(k // HALVES_BLOCK, splits), ceil_div(m, tile.bm)
    lda = ceil_div(m, 8) * 8 if ready else a.row
    if not ready and isinstance(a, Image) and isinstance(a.data, Tensor):
        lda = a.data.row
    halves = " in halves" if ready else ""
    before = ", moments" if moments is not None and norm is None else ""
    after = f" after {norm.kind}," if norm else ""
    kept = kept_fours(gemm.shape, config) if norm and norm.kept else 0
    return Launch(
        "gemm/swap_f16x3.cu",
        "swap_f16x3",
        grid=(tiles_m * ceil_div(n, COLUMNS), splits, 1),
        block=128 * tile.slices + 32,
        args={
            **{"a": a.data, "w": gemm.b, "scales": gemm.scales},
            **{"c": gemm.c if epilogue.plain else None, "halves": epilogue.halves},
            **{"bias": gemm.bias, **epilogue.args, "m": m, "n": n, "lda": lda, "ldc": gemm.ldc},
            **{"rows_w": ceil_div(n, 8) * 8, "tiles_m": tiles_m, "moments": moments},
            **{"columns": norm and norm.columns, "epsilon": norm.epsilon if norm else 0.0},
            **{"rows_a": norm and norm.rows, "kept": norm and norm.kept},
            **{"scale": norm and norm.scale, "shift": norm and norm.shift},
        },
        types=(*gemm.elements, *epilogue.aliases),
        constants=(
            *tile.constants("BM", "SLICES", "STAGES"),
            *(("EACH", each), ("K", k), ("A_IN_HALVES", ready)),
            *(("NORMALIZED", norm is not None), ("CENTRED", bool(norm and norm.centred))),
            *(("MEASURED", bool(before)), ("KEPT", kept)),
            ("SPLIT", int(SplitK.CLUSTER if splits > 1 else SplitK.WHOLE)),
            *(("VECTOR_C", gemm.vector_c(4, 2)), *epilogue.flags(gemm.bias)),
        ),
        code="\n".join((F16X3.code(tile.bm), epilogue.halves_code, epilogue.code)),
        shared=target.alone(shared(tile, each, splits, ready=ready, normalized=norm is not None)),
        cluster=(1, splits, 1),
        note=f"{F16X3.title}{halves}{after} {config}{before} {epilogue.title}".strip(),
        pitched=gemm.pitched(epilogue.pitched),
    )


def kept_fours(shape: Ints, config: Config) -> int:
    """Return how many fours of normalized rows a thread stores, if these are stored as well."""
    (_, n, k), tile = shape, config.tile
    blocks = ceil_div(n, COLUMNS) * config.splits
    parts = ceil_div(tile.bm * (k // HALVES_BLOCK), blocks)
    return ceil_div(parts * HALVES_BLOCK // 4, 128 * tile.slices)
