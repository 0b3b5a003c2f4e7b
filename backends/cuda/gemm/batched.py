"""Batched products by constants inside an algorithm (Winograd, FFT).

Both other operands are in the workspace. The products run in plain float32, or on tensor cores with
three tf32 products each, whichever is estimated to be faster; accuracy is equal.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ....runtime.ir.graph import Value
from ....runtime.ir.types import Array
from ..algorithms.registry import Setting
from ..codegen.epilogue import NO_EPILOGUE
from ..recipe.launch import Launch
from ..recipe.operands import Packed, Scratch, ceil_div
from . import tf32x3
from .pack import in_parts, padded
from .problem import Batch, GemmArguments, Matrix, Problem, RowKind, widest
from .schedules import simt


@dataclass(frozen=True, slots=True)
class Products:
    """Products c[i] = a[i] @ b[i].

    Attributes:
        problem: batch and sizes.
        a: [count, m, k].
        c: [count, m, n].
        source: the constant that the matrices b derive from.
        layout: identifies the packing.
        pack: makes b, [count, k, n].
    """

    problem: Problem
    a: Scratch
    c: Scratch
    source: Value
    layout: Hashable
    pack: Callable[[Array], Array]


def _times(problem: Problem, setting: Setting) -> tuple[float, float]:
    """Return the estimates in microseconds with and without tensor cores."""
    shape = (problem.m, problem.n, problem.k)
    plain = simt.choose(problem, setting.target).microseconds
    return tf32x3.time_of(shape, problem.batch, True, setting), plain


def time_of(problem: Problem, setting: Setting) -> float:
    """Return the estimate of a batch in microseconds."""
    return min(_times(problem, setting))


def multiply(products: Products, setting: Setting) -> tuple[Launch, ...]:
    """Return the launches of a batch; they need no workspace beyond the operands."""
    problem, parts = products.problem, tf32x3.parts_of(setting)
    parted, plain = _times(problem, setting)
    shape = (problem.m, problem.n, problem.k)
    found = tf32x3.problem_of(shape, problem.batch, RowKind.MATRIX, parts)
    if parted < plain:
        config = tf32x3.choose(found, parts, setting.target).config
        if config.splits == 1 or config.tile.wgmma:  # other tiles need workspace for partial sums
            order = (products.layout, "parts", parts)
            gemm = _gemm(products, order, partial(_in_parts, pack=products.pack, parts=parts))
            return tf32x3.multiply(gemm, NO_EPILOGUE, setting, config=config)
    gemm = _gemm(products, (products.layout, "fours"), partial(_fours, pack=products.pack))
    return simt.multiply(gemm, NO_EPILOGUE, setting, simt.unsplit(problem, setting.target))


def _gemm(products: Products, order: Hashable, pack: Callable[[Array], Array]) -> GemmArguments:
    p = products.problem
    ldb = ceil_div(p.n, 4) * 4
    return GemmArguments(
        a=Matrix(products.a, p.k, widest((4, 2), p.k)),
        b=Packed((products.source,), order, pack),
        c=products.c,
        shape=(p.m, p.n, p.k),
        ldb=ldb,
        ldc=p.n,
        batch=Batch(p.batch, p.m * p.k, p.k * ldb, p.m * p.n),
    )


def _fours(source: Array, pack: Callable[[Array], Array]) -> Array:
    """Return [count, k, n] with columns zero-padded to a multiple of four."""
    return padded(np.asarray(pack(source), np.float32), 4)


def _in_parts(source: Array, pack: Callable[[Array], Array], parts: int) -> Array:
    return in_parts(pack(source).astype(np.float32).transpose(0, 2, 1), parts)
