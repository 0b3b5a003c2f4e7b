"""GEMM of few rows of float32 on Hopper as three float16 products, weights as left operand.

The kernel is `swap_f16x3.cu`: rows of A, or windows of an image, arrive in halves, or a block cuts
rows once, and weights are requested before the kernel waits. Sliced-K, and split-K across the CTAs
of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from math import hypot, inf, prod
from typing import Any

from .....runtime.base.record import record
from .....runtime.plan.format import HALVES_BLOCK
from ...codegen.epilogue import Epilogue
from ...recipe.launch import Launch
from ...recipe.operands import Ints, Scratch, Tensor, ceil_div
from ...recipe.targets import Target
from ..atoms import F16X3
from ..problem import GemmArguments, Image, Problem, RowKind, Source
from ..tile import (
    CLUSTERED,
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
from . import image_halves
from .multistage import SplitK
from .swap_ab import MOMENTS, RowsNorm

#: What the names of its forms begin with.
PREFIX = "swap "
#: How many of them are tried.
MOST = 3
#: Maximum rows of A in halves, of those that are cut, windows of images, and of these in a block.
#: (Estimates are fitted to 49 to 197 rows, and to 49 to 3136 windows in blocks of 24 to 56.)
MAX_ROWS, MAX_CUT_ROWS, MAX_WINDOWS, WINDOWS_OF_BLOCK = 512, 256, 4096, 64
#: Share of the multiprocessors that a form may have beside other kernels.
BESIDE = 0.4
#: Columns of a block, which are rows of weights; bytes of the two halves of a step of one.
COLUMNS, STEP_BYTES = 64, 4 * HALVES_BLOCK
#: Warpgroups that share the steps of a block, and for each number the maximum rows of a block with
#: which registers suffice, if rows are cut and if they are in halves.
SLICES = {2: (64, 104), 3: (48, 72)}
#: Share of the clusters that would fit which start together, of three, four and more blocks: on an
#: H200 36 of three do, but not 40, and 28 of four, as do 16 of six, but not 18.
STARTING = {1: 1.0, 2: 1.0, 3: 0.9, 4: 0.95}
STARTING_LARGE = 0.75
#: Threads that bring operands; those of windows bring scales one by one.
LOADERS, WINDOW_LOADERS = 32, 64
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
#: Microseconds of joining the sums of two blocks, if most multiprocessors have one, but so few that
#: none waits for a place.
#: BERT-base takes 1.9 % less time at batch 1 on an H200 with it.
JOIN_PAIRS = 0.25
#: The same of a third slice of windows, and the rows of which fewer take no less: wgmma reads the
#: weights of a product for as long as it multiplies these. From 47 forms of eight convolutions by
#: 3x3 within ResNet-50.
THIRD_SLICE, FEWEST_ROWS = 0.25, 32


@record
class Boxes:
    """What differs where windows are read from boxes of pixels; see `boxes.py`.

    Attributes:
        rows: arguments that say where they are.
        constants: of the windows.
        tiles: patches of the result.
        each: steps of a block, at most.
        shared: bytes of shared memory of a block.
    """

    rows: Mapping[str, Any]
    constants: tuple[tuple[str, int], ...]
    tiles: int
    each: int
    shared: int


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


def refusal(gemm: GemmArguments, target: Target, *, ready: bool = False) -> str:
    """Return why the kernel does not apply to constants in halves; empty if it does.

    Args:
        gemm: the product.
        target: the GPU.
        ready: whether rows of A are in halves.
    """
    (m, _, k), a = gemm.shape, gemm.a
    if not target.has_wgmma:
        return "no wgmma"
    most = _most_rows(ready=ready, windows=a.rows is RowKind.WINDOWS)
    if m > most or k % _divisor(ready=ready) or not k or gemm.batch.count > 1:
        return f"{m} rows of {k} terms"
    if not gemm.constant or not isinstance(a.data, Tensor):
        return "operands in the workspace"
    if isinstance(a, Image) and (a.squares or a.frames):
        return "squares, or frames of a volume"
    strided = isinstance(a, Image) and prod(a.view.strides) > 1
    return "windows" if not ready and (a.rows is RowKind.WINDOWS or strided) else ""


def _divisor(*, ready: bool) -> int:
    """Return what divides the terms."""
    return HALVES_BLOCK if ready else 4


def _most_rows(*, ready: bool, windows: bool) -> int:
    if not ready:
        return MAX_CUT_ROWS
    return MAX_WINDOWS if windows else MAX_ROWS


def choose(
    gemm: GemmArguments, target: Target, *, ready: bool = False, concurrent: bool = False
) -> TimedConfig | None:
    """Return the tile and splits with the lowest estimate; None if there are none.

    Args:
        gemm: the product.
        target: the GPU.
        ready: whether rows of A are in halves.
        concurrent: whether other kernels run beside it, to which it leaves multiprocessors.
    """
    if refusal(gemm, target, ready=ready):
        return None
    (m, n, _), windows = gemm.shape, gemm.a.rows is RowKind.WINDOWS
    ways: Iterable[TimedConfig] = ways_of(gemm.shape, target, ready=ready, windows=windows)
    if concurrent:
        most = BESIDE * target.processors
        ways = (way for way in ways if way.tile.count(m, n) * way.config.splits <= most)
    return next(iter(ways), None)


@lru_cache(MAX_KEPT)
def ways_of(
    shape: Ints, target: Target, *, ready: bool = False, windows: bool = False
) -> tuple[TimedConfig, ...]:
    """Return all configurations with their estimates, fastest first; see `choose`."""

    def time(config: Config) -> float:
        return expected(shape, config, target, ready=ready, windows=windows)

    found = configs(shape, target, ready=ready)
    usable = (c for c in found if not windows or c.tile.bm <= WINDOWS_OF_BLOCK)
    return tuple(ranked(usable, time))


def configs(shape: Ints, target: Target, *, ready: bool) -> Iterator[Config]:
    """Yield tiles with splits such that all blocks run at once."""
    m, n, k = shape
    steps, columns = ceil_div(k, HALVES_BLOCK), ceil_div(n, COLUMNS)
    for parts in range(1, ceil_div(m, 8) + 1):
        rows = ceil_div(ceil_div(m, parts), 8) * 8
        if rows * (parts - 1) >= m:  # as many rows as with fewer parts
            continue
        for splits in range(1, min(MAX_CLUSTER, steps) + 1):
            together = target.processors if splits == 1 else clusters_of(splits, target)
            if parts * columns > together * STARTING.get(splits, STARTING_LARGE):
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


def expected(
    shape: Ints, config: Config, target: Target, *, ready: bool, windows: bool = False
) -> float:
    """Return the estimate for a configuration in microseconds."""
    (m, n, k), tile, splits = shape, config.tile, config.splits
    each, blocks = ceil_div(ceil_div(k, HALVES_BLOCK), splits), tile.count(m, n) * splits
    read = STEP_BYTES * each * (tile.bm + COLUMNS)
    late = read
    if 2 * blocks <= target.processors:  # the kernel before leaves room: weights are there
        late -= STEP_BYTES * tile.stages * COLUMNS
    reading = late / PROCESSOR
    if late == read:
        reading = max(reading, blocks * read / (CACHE * target.processors / 132))
    rows = max(tile.bm, FEWEST_ROWS) if windows else tile.bm
    multiplying = 3 * each * rows * COLUMNS * HALVES_BLOCK / PRODUCTS
    of_step = OF_STEP if ready else OF_CUT + CUT_ROW * tile.bm
    time = BEGIN + OF_ROW * tile.bm + hypot(reading, multiplying)
    if windows and tile.slices == 3:
        time += THIRD_SLICE
    pairs = ready and not windows and splits == 2 and late == read
    near = pairs and blocks <= CLUSTERED * target.processors
    join = JOIN_PAIRS if near else JOIN if splits > 1 else 0.0
    return time + ceil_div(each, tile.slices) * of_step + join


# ── the recipe ───────────────────────────────────────────────────────────────────────────────────


def tried(problem: Problem, target: Target, *, ready: bool = False) -> tuple[str, ...]:
    """Return the names of forms that are worth trying; see `choose`."""
    ways = _ways(problem, target, ready=ready)
    return tuple(PREFIX + str(way.config) for way in ways[:MOST])


def time_of(problem: Problem, target: Target, *, ready: bool = False) -> float:
    """Return the estimate of the fastest form; infinite if there is none. See `choose`."""
    best = fastest(problem, target, ready=ready)
    return best.microseconds if best else inf


def fastest(problem: Problem, target: Target, *, ready: bool = False) -> TimedConfig | None:
    """Return the form with the lowest estimate; None if there is none. See `choose`."""
    return next(iter(_ways(problem, target, ready=ready)), None)


def _ways(problem: Problem, target: Target, *, ready: bool) -> tuple[TimedConfig, ...]:
    (m, n, k), windows = (problem.m, problem.n, problem.k), problem.windows
    if (windows and not ready) or problem.batch > 1 or not target.has_wgmma:
        return ()
    if k % _divisor(ready=ready) or not k:
        return ()
    if m > _most_rows(ready=ready, windows=windows):
        return ()
    return ways_of((m, n, k), target, ready=ready, windows=windows)


def named(form: str, gemm: GemmArguments, target: Target, *, ready: bool = False) -> Config | None:
    """Return the configuration of a form; None if it is another kernel's. See `choose`."""
    if not form.startswith(PREFIX) or refusal(gemm, target, ready=ready):
        return None
    windows = gemm.a.rows is RowKind.WINDOWS
    ways = ways_of(gemm.shape, target, ready=ready, windows=windows)
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
    boxes: Boxes | None = None,
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
        boxes: windows whose pixels are cut once; None if there are none.
    """
    (m, n, k), tile, splits, a = gemm.shape, config.tile, config.splits, gemm.a
    windows = a if ready and isinstance(a, Image) else None
    form = _form_of(gemm, config, ready=ready, norm=norm, moments=moments, boxes=boxes)
    measured = moments is not None and norm is None
    kept = kept_fours(gemm.shape, config) if norm and norm.kept else 0
    return Launch(
        "gemm/swap_f16x3.cu",
        form.entry,
        grid=(form.tiles * ceil_div(n, COLUMNS), splits, 1),
        block=128 * tile.slices + form.threads,
        args={
            **form.rows,
            **{"w": gemm.b, "scales": gemm.scales},
            **{"c": gemm.c if epilogue.plain else None, "halves": epilogue.halves},
            **{"bias": gemm.bias, **epilogue.args, "m": m, "n": n, "ldc": gemm.ldc},
            **{"rows_w": ceil_div(n, 8) * 8, "tiles_m": form.tiles},
        },
        types=(*gemm.elements, *epilogue.aliases),
        constants=(
            *tile.constants("BM", "SLICES", "STAGES"),
            *(("EACH", form.each), ("K", k), ("A_IN_HALVES", ready)),
            *(("NORMALIZED", norm is not None), ("CENTRED", bool(norm and norm.centred))),
            *(("MEASURED", measured), ("KEPT", kept)),
            ("SPLIT", int(SplitK.CLUSTER if splits > 1 else SplitK.WHOLE)),
            ("POINTWISE", windows is not None and image_halves.is_pointwise(windows)),
            *(boxes.constants if boxes else ()),
            *(("VECTOR_C", gemm.vector_c(4, 2)), *epilogue.flags(gemm.bias)),
        ),
        code=_code(tile, epilogue, windowed=windows is not None),
        shared=target.alone(form.shared),
        cluster=(1, splits, 1),
        note=_note(config, epilogue, norm, ready=ready, measured=measured),
        pitched=tuple(
            t for t in gemm.pitched(epilogue.pitched) if windows is None or t is not a.data
        ),
    )


def _code(tile: CtaTile, epilogue: Epilogue, *, windowed: bool) -> str:
    """Return the generated code."""
    macros = f"#define WINDOWED {int(windowed)}", f"#define BOXES {tile.boxes}"
    return "\n".join((F16X3.code(tile.bm), epilogue.halves_code, epilogue.code, *macros))


def _note(
    config: Config, epilogue: Epilogue, norm: RowsNorm | None, *, ready: bool, measured: bool
) -> str:
    """Return what plans say of a launch."""
    halves, before = " in halves" * ready, ", moments" * measured
    after = f" after {norm.kind}," if norm else ""
    return f"{F16X3.title}{halves}{after} {config}{before} {epilogue.title}".strip()


@record
class _Form:
    """An entry of the kernel for one product.

    Attributes:
        entry: its name.
        threads: that bring operands.
        rows: arguments that say where rows of A are.
        tiles: of these rows.
        each: steps of a block.
        shared: its bytes of shared memory.
    """

    entry: str
    threads: int
    rows: Mapping[str, Any]
    tiles: int
    each: int
    shared: int


def _form_of(
    gemm: GemmArguments,
    config: Config,
    *,
    ready: bool,
    norm: RowsNorm | None,
    moments: Scratch | None,
    boxes: Boxes | None,
) -> _Form:
    """Return the entry for the rows of a product; see `launch`."""
    if boxes:
        boxed = boxes.rows, boxes.tiles, boxes.each, boxes.shared
        return _Form("swap_f16x3_boxes", LOADERS, *boxed)
    (m, _, k), tile, a = gemm.shape, config.tile, gemm.a
    each = ceil_div(ceil_div(k, HALVES_BLOCK), config.splits)
    nbytes = shared(tile, each, config.splits, ready=ready, normalized=norm is not None)
    sizes = ceil_div(m, tile.bm), each, nbytes
    if ready and isinstance(a, Image):
        rows = image_halves.arguments(a, tile.bm, stored=m)
        return _Form("swap_f16x3_windows", WINDOW_LOADERS, rows, *sizes)
    rows = {**_rows_of(a, m, ready=ready), **_norm_args(norm), "moments": moments}
    return _Form("swap_f16x3", LOADERS, rows, *sizes)


def _rows_of(a: Source, m: int, *, ready: bool) -> dict[str, Any]:
    """Return the arguments that say where the rows of A are that are no windows."""
    if ready:
        return {"a": a.data, "lda": ceil_div(m, 8) * 8}
    stored = a.data if isinstance(a, Image) and isinstance(a.data, Tensor) else a
    return {"a": a.data, "lda": stored.row}


def _norm_args(norm: RowsNorm | None) -> dict[str, Any]:
    """Return the arguments that say how rows are normalized."""
    if norm is None:
        names = "columns", "rows_a", "scale", "shift", "kept"
        return {**dict.fromkeys(names), "epsilon": 0.0}
    return {
        **{"columns": norm.columns, "epsilon": norm.epsilon, "rows_a": norm.rows},
        **{"scale": norm.scale, "shift": norm.shift, "kept": norm.kept},
    }


def kept_fours(shape: Ints, config: Config) -> int:
    """Return how many fours of normalized rows a thread stores, if these are stored as well."""
    (_, n, k), tile = shape, config.tile
    blocks = ceil_div(n, COLUMNS) * config.splits
    parts = ceil_div(tile.bm * (k // HALVES_BLOCK), blocks)
    return ceil_div(parts * HALVES_BLOCK // 4, 128 * tile.slices)
