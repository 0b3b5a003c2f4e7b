"""Products of float32 by constants whose left operand arrives in halves (Hopper): `halves.cu`.

`f32` reads float32, which every block of a tile's row cuts into halves again. Where kernels before
write halves, or where it is cheaper to cut rows once, the product has nothing to convert.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial

from ....runtime.ir.dtypes import float32
from ....runtime.plan.format import HALVES_BLOCK, Format
from ..algorithms.registry import Answer
from ..algorithms.selection import Formats
from ..recipe.operands import Packed, ceil_div
from ..recipe.targets import Target
from .f16x3 import in_halves, matrix_refusal, scales_of
from .linear import linear_of
from .multiplication import Multiplication
from .problem import GemmArguments, Linear, Matrix, Problem, packed_matrix
from .schedules import halves, swap_f16x3
from .tables.f16x3 import HALVES
from .tile import MARGIN, MAX_KEPT, MEMORY, Config, TimedConfig

#: Minimum rows, of those that the kernel before stores in halves and of others. On an H200
#: BERT-base and DistilBERT take 10 % less time with 128 rows than with `f32`.
MIN_ROWS, MIN_WHOLE = 17, 65
#: Microseconds of a launch that cuts rows into halves, besides memory traffic.
CUTTING = 2.0


def formats(task: Multiplication) -> Formats | str:
    """Return the formats that `make` needs, or why it does not apply."""
    refused = refusal(task, MIN_ROWS if task.is_cut else MIN_WHOLE)
    return refused or (Format.HALVES, Format.CONTIGUOUS)


def refusal(task: Multiplication, least: int = MIN_ROWS) -> str:
    """Return why the product does not apply; empty if it does.

    Args:
        task: the product.
        least: minimum rows, unless the algorithm was asked for.
    """
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
    if m < least and not task.setting.asked:
        return f"{m} rows, fewer than {least}"
    if not m or not n or not k or k % HALVES_BLOCK:
        return f"{m} x {n} x {k}: terms must be a multiple of {HALVES_BLOCK}"
    if layer.y.size >= 2**31 or layer.a.size >= 2**31:
        return f"{m} x {n} x {k} elements"
    return ""


def time(task: Multiplication) -> float:
    """Return the estimate in microseconds, with cutting unless the kernel before does that."""
    m, n, k = task.shape
    cutting = 0.0 if task.is_cut else CUTTING + 8 * m * k / MEMORY
    problem, target = Problem(m, n, k), task.setting.target
    found = ways_of(problem, target)[0].microseconds
    return min(found, swap_f16x3.time_of(problem, target, ready=True)) + cutting


def variants(task: Multiplication) -> tuple[str, ...]:
    """Return the tiles with the splits worth trying."""
    target = task.setting.target
    ways = ways_of(Problem(*task.shape), target)
    found = (str(w.config) for w in ways if w.microseconds < 1.5 * ways[0].microseconds)
    return *found, *swap_f16x3.tried(Problem(*task.shape), target, ready=True)


def make(task: Multiplication, variant: str) -> Answer:
    """Return the product of tensors in the formats that `formats` returns."""
    layer, target = linear_of(task), task.setting.target
    if isinstance(layer, str):
        return layer
    assert layer.b.data is not None
    refused = matrix_refusal(layer.b.data, *layer.form)
    if refused:
        return refused
    gemm = arguments_of(layer)
    swapped = swap_f16x3.named(variant, gemm, target, ready=True)
    if variant and swapped is None:
        return halves.multiply(gemm, task.epilogue, Config.parse(variant, HALVES), target)
    ways = ways_of(Problem(*layer.shape), target, whole=task.epilogue.halves is not None)
    few = swap_f16x3.choose(gemm, target, ready=True)
    if swapped is None and few and few.microseconds < MARGIN * ways[0].microseconds:
        swapped = few.config
    if swapped is not None:
        return swap_f16x3.launch(gemm, task.epilogue, swapped, target, ready=True)
    return halves.multiply(gemm, task.epilogue, ways[0].config, target)


def arguments_of(layer: Linear) -> GemmArguments:
    """Return a product of rows in halves."""
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


@lru_cache(MAX_KEPT)
def ways_of(problem: Problem, target: Target, *, whole: bool = False) -> tuple[TimedConfig, ...]:
    """Return all configurations with their estimates, fastest first; see `halves.timed_configs`."""
    m, n, k = problem.m, problem.n, problem.k
    traffic = 4 * problem.batch * (m * k + m * n + n * k)
    return halves.timed_configs(HALVES, replace(problem, traffic=traffic), target, whole=whole)
