"""Products of float32 by constants whose left operand arrives in halves (Hopper): `halves.cu`.

`f32` reads float32, which every block of a tile's row cuts into halves again. Where kernels before
write halves, or where it is cheaper to cut rows once, the product has nothing to convert.
"""

from __future__ import annotations

from functools import cache, partial

from ....runtime.ir.dtypes import float32
from ....runtime.plan.backend import Format
from ..algorithms.registry import Answer
from ..algorithms.selection import Formats
from ..recipe.operands import Packed, ceil_div
from ..recipe.targets import Target
from .f16x3 import in_halves, matrix_refusal, scales_of
from .linear import linear_of
from .multiplication import Multiplication
from .problem import GemmArguments, Linear, Matrix, Problem, packed_matrix
from .schedules import halves
from .tables.f16x3 import HALVES
from .tile import (
    LAUNCH,
    MEMORY,
    TMA_CACHE,
    BlockWork,
    Config,
    TimedConfig,
    clusters_of,
    estimate,
    overlapped,
    ranked,
    suited,
    with_splits,
)

#: Terms that have one scale per row.
BLOCK = 64
#: Minimum rows. With fewer the products alone are faster, but not networks. On an H200 BERT-base
#: takes 1 % longer with 128 rows than with `f32`, but 4 to 8 % less time with 256 to 512 rows, and
#: ViT-B 8 % less with 197.
MIN_ROWS = 129
#: Microseconds of a launch that cuts rows into halves, besides memory traffic.
CUTTING = 2.0


def formats(task: Multiplication) -> Formats | str:
    """Return the formats that `make` needs, or why it does not apply."""
    target, options = task.setting.target, task.setting.options
    if task.a.dtype != float32:
        return f"dtype {task.a.dtype.name}"
    if not target.has_wgmma:
        return f"{target.arch} has no wgmma"
    if options.precision == "tf32":
        return "precision tf32"
    if not task.is_constant or task.b.rank > 2:
        return "not a constant matrix on the right"
    layer = linear_of(task)
    if isinstance(layer, str):
        return layer
    m, n, k = layer.shape
    if m < MIN_ROWS and not task.setting.asked:
        return f"{m} rows, fewer than {MIN_ROWS}"
    if not m or not n or not k or k % BLOCK:
        return f"{m} x {n} x {k}: terms must be a multiple of {BLOCK}"
    if layer.y.size >= 2**31 or layer.a.size >= 2**31:
        return f"{m} x {n} x {k} elements"
    return Format.HALVES, Format.CONTIGUOUS


def time(task: Multiplication) -> float:
    """Return the estimate in microseconds, with cutting unless the kernel before does that."""
    m, n, k = task.shape
    cutting = 0.0 if task.is_cut else CUTTING + 8 * m * k / MEMORY
    return ways_of(Problem(m, n, k), task.setting.target)[0].microseconds + cutting


def variants(task: Multiplication) -> tuple[str, ...]:
    """Return the tiles with the splits worth trying."""
    ways = ways_of(Problem(*task.shape), task.setting.target)
    return tuple(str(w.config) for w in ways if w.microseconds < 1.5 * ways[0].microseconds)


def make(task: Multiplication, variant: str) -> Answer:
    """Return the product of tensors in the formats that `formats` returns."""
    layer, target = linear_of(task), task.setting.target
    if isinstance(layer, str):
        return layer
    assert layer.b.data is not None
    refused = matrix_refusal(layer.b.data, *layer.form)
    if refused:
        return refused
    if variant:
        config = Config.parse(variant, HALVES)
    else:
        config = ways_of(Problem(*layer.shape), target, whole=task.epilogue.halves is not None)[
            0
        ].config
    return halves.multiply(_arguments(layer), task.epilogue, config, target)


def _arguments(layer: Linear) -> GemmArguments:
    _, n, k = layer.shape
    pack = partial(packed_matrix, layer.b, layer.form)
    scales: Packed = pack("scales", scales_of)
    return GemmArguments(
        a=Matrix(layer.a, k),
        b=pack("in halves", in_halves),
        c=layer.y,
        shape=layer.shape,
        ldb=ceil_div(n, 8) * 8,
        ldc=n,
        bias=layer.bias,
        scales=scales,
    )


# ── which tile ───────────────────────────────────────────────────────────────────────────────────


def expected(problem: Problem, config: Config, target: Target) -> float:
    """Return the estimate for a configuration in microseconds."""
    tile, splits = config.tile, config.splits
    m, n, k = problem.m, problem.n, problem.k
    blocks = tile.blocks(problem) * splits
    steps = ceil_div(ceil_div(k, tile.bk), splits)
    cached = blocks * steps * (tile.bm + tile.bn) * tile.bk * 4 / TMA_CACHE
    processors: float = target.processors
    if splits > 2:
        processors = min(processors, clusters_of(splits, target) * splits)
    traffic = 4 * problem.batch * (m * k + m * n + n * k)
    work = BlockWork(blocks, steps, tile.resident, processors, cached, traffic)
    time = overlapped(estimate(tile.cost, work), work, target)
    return LAUNCH + time + (tile.cost.split if splits > 1 else 0)


@cache
def ways_of(problem: Problem, target: Target, *, whole: bool = False) -> tuple[TimedConfig, ...]:
    """Return all configurations with their estimates, fastest first.

    Args:
        problem: the sizes.
        target: the GPU.
        whole: whether tiles must have whole blocks of columns, to store them in halves.
    """
    fitting = [tile for tile in HALVES if not whole or tile.bn % BLOCK == 0]
    usable = [tile for tile in fitting if halves.shared(Config(tile)) <= target.shared]
    configs = with_splits(suited(usable, problem), problem, target, clusters=True)
    return tuple(ranked(configs, lambda config: expected(problem, config, target)))
