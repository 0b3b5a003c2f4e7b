"""Matrix products: `gemv.cu` for a few rows, which memory bounds, `simt.cu` for more."""

from __future__ import annotations

from functools import partial
from math import prod

from ....runtime.ir.dtypes import float32
from ....runtime.ops.matmul import Gemm as GemmOp
from ..algorithms.registry import Answer, Setting, need_dtypes
from ..codegen.epilogue import Epilogue
from ..recipe.layout import ceil_div
from ..recipe.operands import Packed, Tensor
from . import f16, tf32x3
from .atoms import HALVES
from .gemv import MAX_ROWS, multiply_rows
from .pack import Form, pack_bias, pack_columns
from .problem import Batch, Gemm, Matrix, Problem, Shape, widest
from .schedules import simt

#: The types that have tiles.
TILED = frozenset({float32}) | HALVES

# ── operators ────────────────────────────────────────────────────────────────────────────────────


def tiled_matmul(y: Tensor, a: Tensor, b: Tensor, epilogue: Epilogue, setting: Setting) -> Answer:
    """Multiply matrices, or stacks of them, by the algorithm that `Setting.algorithm` names."""
    refused = need_dtypes(TILED, y, a, b)
    if refused:
        return refused
    if b.rank <= 2:
        n = b.dims[1] if b.rank == 2 else 1
        k = b.dims[0]
        shape = (prod(a.dims) // max(k, 1), n, k)
        return _product(y, a, b, shape, (1.0, False), epilogue.bias, epilogue, setting)
    if a.rank < 2 or setting.algorithm == "gemv" or epilogue.bias is not None:
        return "a stack of matrices on the right"
    if a.dtype != float32:
        return f16.product(y, a, b, epilogue, setting)
    return _stacked(y, a, b, epilogue, setting)


def tiled_gemm(
    op: GemmOp,
    y: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    epilogue: Epilogue,
    setting: Setting,
) -> Answer:
    """Multiply two matrices, scale, and add constants, as `Setting.algorithm` says."""
    refused = need_dtypes(TILED, y, a, b, c)
    if refused:
        return refused
    if op.transA:
        return "transA=1"
    if b.data is None and (op.alpha != 1 or (op.transB and a.dtype == float32)):
        return f"alpha={op.alpha}, transB={op.transB} with a second operand of run time"
    m, n = y.dims
    bias: Tensor | Packed | None = None
    if c is not None and op.beta != 0:
        if c.data is None or c.size not in (1, n) or (c.size == n and c.dims[-1] != n):
            return f"c of {c.value.tensor}, not one constant a column"
        bias = Packed((c.value,), ("bias", n, op.beta), partial(pack_bias, n=n, beta=op.beta))
    return _product(
        y, a, b, (m, n, a.dims[1]), (op.alpha, bool(op.transB)), bias, epilogue, setting
    )


def _product(
    y: Tensor,
    a: Tensor,
    b: Tensor,
    shape: Shape,
    form: Form,
    bias: Tensor | Packed | None,
    epilogue: Epilogue,
    setting: Setting,
) -> Answer:
    """Return a @ b with `a` of any rank and `b` [k, n], or [n, k] where form[1] says transposed."""
    m, n, k = shape
    alpha, transposed = form
    if k == 0 or y.size >= 2**31 or a.size >= 2**31:
        return f"{m} x {n} x {k} elements"
    if setting.takes("gemv") and b.data is not None and m <= MAX_ROWS:
        return multiply_rows(y, a, b, shape, form, bias, epilogue, setting.target)
    if setting.algorithm == "gemv":
        return f"{m} rows, more than {MAX_ROWS}"
    if a.dtype != float32:
        if b.data is None:
            return f16.product(y, a, b, epilogue, setting, transposed=form[1], bias=bias)
        return f16.linear(y, a, b, shape, form, bias, epilogue, setting)
    if _tensor_cores_pay(shape, 1, b, setting):
        return tf32x3.linear(y, a, b, shape, form, bias, epilogue, setting)
    ldb = n
    columns: Tensor | Packed = b
    if b.data is not None:
        ldb = ceil_div(n, 4) * 4
        if form != (1.0, False) or ldb != n:
            columns = Packed(
                (b.value,),
                ("columns", *form),
                partial(pack_columns, alpha=alpha, transposed=transposed),
            )
    source = Matrix(a, k, widest((4, 2), k))
    return simt.multiply(Gemm(source, columns, y, shape, ldb, n, bias=bias), epilogue, setting)


def _stacked(y: Tensor, a: Tensor, b: Tensor, epilogue: Epilogue, setting: Setting) -> Answer:
    """Return a stack of products; all stacks as long as the result's, or a single matrix."""
    (m, k), n = a.dims[-2:], b.dims[-1]
    count = prod(y.dims[:-2])
    if (epilogue.operands and count != 1) or k == 0:
        return "a stack with an operand behind it"
    stacks = [prod(operand.dims[:-2]) for operand in (a, b)]
    if any(stack not in (1, count) for stack in stacks):
        return f"stacks of {a.value.tensor} and {b.value.tensor} are broadcast"
    if count > 65535:
        return f"a stack of {count}"
    of_a, of_b = m * k if stacks[0] == count else 0, k * n if stacks[1] == count else 0
    batch = Batch(count, of_a, of_b, m * n)
    if setting.algorithm == "tensor_cores" and not of_b:
        return "a stack times one matrix of run time"
    if of_b and _tensor_cores_pay((m, n, k), count, b, setting):
        form = (1.0, False)
        return tf32x3.linear(y, a, b, (m, n, k), form, None, epilogue, setting, batch)
    source = Matrix(a, k, widest((4, 2), k))
    return simt.multiply(Gemm(source, b, y, (m, n, k), n, n, batch), epilogue, setting)


def _tensor_cores_pay(shape: Shape, count: int, b: Tensor, setting: Setting) -> bool:
    """Whether tensor cores are wanted, or expected to be the faster ones."""
    if setting.algorithm:
        return setting.algorithm == "tensor_cores"
    plain = simt.choose(Problem(*shape, count), setting.target).microseconds
    return tf32x3.time_of(shape, count, b.data is not None, setting) < plain
