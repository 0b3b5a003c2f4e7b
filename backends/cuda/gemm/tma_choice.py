"""16-bit products whose operands are fed by TMA: which kernel, if any is estimated to be faster."""

from __future__ import annotations

from dataclasses import replace

from ..algorithms.registry import Setting
from ..codegen.epilogue import Epilogue
from ..codegen.epilogue_operands import size_of
from ..recipe.launch import Launch
from ..recipe.operands import Tensor, ceil_div
from ..recipe.targets import Target
from .forms import tma_tile
from .pack import EIGHTS
from .problem import GemmArguments, Matrix, packed_matrix
from .schedules import multistage, tma, tma_persistent, tma_staging
from .tile import MARGIN, STEPS_AHEAD, WEIGHTS_MARGIN


def fed_by_tma(gemm: GemmArguments, epilogue: Epilogue, setting: Setting) -> Launch | None:
    """Return the launch of a TMA kernel, if estimated to be faster."""
    target = setting.target
    if gemm.shape[2] % 8 or not target.has_wgmma:
        return None
    least, product = multistage.time_of(gemm, target, epilogue), tma_staging.TmaProduct(gemm)
    tile = None if epilogue.reads_along else tma_tile([product], setting, "product", gemm.shape)
    fed = None if tile is None else tile[1:]
    if fed and fed[0].microseconds >= MARGIN * multistage.time_of(gemm, target):
        fed = None
    if fed and fed[0].tile.deep:  # others have not been compared with those of tma_persistent.cu
        least = min(least, fed[0].microseconds / MARGIN)
    found = persistent(gemm, epilogue, target, least)
    if found is None and fed:
        choice, staging = fed
        return tma.multiply(product, epilogue, choice.config, staging, target)
    return found


def persistent(
    gemm: GemmArguments, epilogue: Epilogue, target: Target, other: float
) -> Launch | None:
    """Return the launch of `tma_persistent.cu` if estimated to be faster than `multistage.cu`.

    Args:
        gemm: the product.
        epilogue: applied to every result.
        target: the GPU.
        other: microseconds of `multistage.cu`.
    """
    best = tma_persistent.choose(gemm, epilogue, target)
    if best is None:
        return None
    deep = gemm.constant and best.tile.deep
    margin = WEIGHTS_MARGIN if deep and _waits(gemm, target) else MARGIN
    if best.microseconds >= margin * other:
        return None
    return tma_persistent.multiply(gemm, epilogue, best.tile, target)


def computed(
    gemm: GemmArguments, epilogue: Epilogue, target: Target, other: float
) -> Launch | None:
    """Return `persistent` for a computed right operand, [k][n] or [n][k], or a stack of them.

    The products of a stack, whose right operands are [k][n], may have one left operand (layers over
    the tokens of Mixer). If it is constant, its rows are padded to whole words.
    """
    (_, _, k), batch, a = gemm.shape, gemm.batch, gemm.a.data
    if batch.count == 1:
        return persistent(gemm, epilogue, target, other) if k % 8 == 0 else None
    if not gemm.across or not batch.b or batch.heads > 1:
        return None
    if any(size_of(each) != batch.count * batch.c for each in epilogue.along):
        return None  # all products read the same one
    if isinstance(a, Tensor) and a.data is not None and not batch.a:
        packed = packed_matrix(a, (1.0, True), "in eights", EIGHTS)
        gemm = replace(gemm, a=Matrix(packed, ceil_div(k, 8) * 8))
    return persistent(gemm, epilogue, target, other)


def _waits(gemm: GemmArguments, target: Target) -> bool:
    """Whether `multistage.cu` waits for weights from memory: it has few of its steps in flight."""
    config = multistage.choose(multistage.problem_of(gemm), target, across=gemm.across).config
    steps = ceil_div(ceil_div(gemm.shape[2], config.tile.bk), config.splits)
    return steps > STEPS_AHEAD * config.tile.stages
