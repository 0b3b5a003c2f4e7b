"""Batched products by constants inside an algorithm (Winograd, FFT).

Both other operands are in the workspace. The products run in plain float32, or on tensor cores with
three products each, whichever is estimated to be faster; accuracy is equal. Left operands may be in
halves already (`in_halves`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.types import Array
from ....runtime.plan.format import HALVES_BLOCK
from ..algorithms.registry import Setting
from ..codegen.epilogue import NO_EPILOGUE
from ..recipe.launch import Launch
from ..recipe.operands import Packed, Scratch, Tensor, ceil_div
from . import f16x3, f32, f32_tiles, in_halves
from .pack import padded
from .problem import Batch, GemmArguments, Matrix, Order, Problem, widest
from .schedules import halves, simt

#: Factor by which products in halves must be estimated to be faster, as transforms into halves take
#: 20 % longer than others. Of 23 Winograd convolutions on an H100, the six that it selects take
#: 9 % less to 0.5 % more; the others would take 2.5 % less (one of them) to 18 % more.
HALVES_MARGIN = 0.85
#: Bytes of a row of 32 terms in halves.
ROW = 128


@record
class Products:
    """Products c[i] = a[i] @ b[i].

    Attributes:
        problem: batch and sizes.
        a: [count, m, k].
        c: [count, m, n].
        source: weights [m, c, *kernel], constants, that the matrices b derive from.
        layout: identifies the packing.
        pack: makes b, [count, k, n].
    """

    problem: Problem
    a: Scratch
    c: Scratch
    source: Tensor
    layout: Hashable
    pack: Callable[[Array], Array]


def _times(problem: Problem, setting: Setting) -> tuple[float, float]:
    """Return the estimates in microseconds with and without tensor cores."""
    plain = simt.choose(problem, setting.target).microseconds
    return f32.time_of(problem, True, setting), plain


def time_of(problem: Problem, setting: Setting) -> float:
    """Return the estimate of a batch in microseconds."""
    return min(_times(problem, setting))


def time_in_halves(problem: Problem, setting: Setting) -> float | None:
    """Return the estimate of `multiply_in_halves`; None if it does not apply or is hardly faster.

    It does not depend on what constants are.
    """
    target = setting.target
    if not target.has_wgmma or setting.options.precision == "tf32" or problem.k % HALVES_BLOCK:
        return None
    time = in_halves.ways_of(problem, target)[0].microseconds
    return time if time < HALVES_MARGIN * time_of(problem, setting) else None


def multiply_in_halves(products: Products, setting: Setting) -> Launch | None:
    """Return the launch of a batch whose matrices a are in halves; see `stride_in_halves`.

    None if it does not pay, or if the constants cannot be in halves.
    """
    p, source = products.problem, products.source
    assert source.data is not None
    if time_in_halves(p, setting) is None or f16x3.filter_refusal(source.data, 1):
        return None
    gemm = GemmArguments(
        a=Matrix(products.a, p.k),
        b=_packed(products, "in halves", f16x3.in_halves),
        c=products.c,
        shape=(p.m, p.n, p.k),
        ldb=ceil_div(p.n, 8) * 8,
        ldc=p.n,
        batch=Batch(p.batch, stride_in_halves(p) // 4, 0, p.m * p.n),
        scales=_packed(products, "scales", f16x3.scales_of),
    )
    config = in_halves.ways_of(p, setting.target)[0].config
    return halves.multiply(gemm, NO_EPILOGUE, config, setting.target)


def rows_in_halves(problem: Problem) -> int:
    """Return the rows of a matrix a in halves: a multiple of eight."""
    return ceil_div(problem.m, 8) * 8


def stride_in_halves(problem: Problem) -> int:
    """Return the bytes from one matrix a in halves to the next, each like `Format.HALVES`."""
    numbers = rows_in_halves(problem) * problem.k
    return ceil_div(4 * numbers + 4 * numbers // HALVES_BLOCK, ROW) * ROW


def multiply(products: Products, setting: Setting) -> tuple[Launch, ...]:
    """Return the launches of a batch; they need no workspace beyond the operands."""
    problem = products.problem
    parted, plain = _times(problem, setting)
    if parted < plain:
        arithmetic = f32.filter_arithmetic(setting, problem, products.source)
        config = f32_tiles.choose(problem, arithmetic.atom, setting.target).config
        if config.splits == 1 or config.tile.wgmma:  # other tiles need workspace for partial sums
            b, scales = arithmetic.packed(partial(_packed, products))
            gemm = replace(_gemm(products, b), scales=scales)
            return f32.multiply(gemm, NO_EPILOGUE, setting, arithmetic, config=config)
    pack = partial(_fours, pack=products.pack)
    gemm = _gemm(products, Packed((products.source.value,), (products.layout, "fours"), pack))
    return simt.multiply(gemm, NO_EPILOGUE, setting, simt.unsplit(problem, setting.target))


def _gemm(products: Products, b: Packed) -> GemmArguments:
    p = products.problem
    ldb = ceil_div(p.n, 4) * 4
    return GemmArguments(
        a=Matrix(products.a, p.k, widest((4, 2), p.k)),
        b=b,
        c=products.c,
        shape=(p.m, p.n, p.k),
        ldb=ldb,
        ldc=p.n,
        batch=Batch(p.batch, p.m * p.k, p.k * ldb, p.m * p.n),
    )


def _fours(source: Array, pack: Callable[[Array], Array]) -> Array:
    """Return [count, k, n] with columns zero-padded to a multiple of four."""
    return padded(np.asarray(pack(source), np.float32), 4)


def _packed(products: Products, order: str, arrange: Order) -> Packed:
    """Return the matrices b in an order of tensor cores."""
    pack = partial(_arranged, pack=products.pack, arrange=arrange)
    return Packed((products.source.value,), (products.layout, order), pack)


def _arranged(source: Array, pack: Callable[[Array], Array], arrange: Order) -> Array:
    return arrange(pack(source).astype(np.float32).transpose(0, 2, 1))
