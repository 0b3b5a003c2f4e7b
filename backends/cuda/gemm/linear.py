"""Matrix products: selection between `gemv.cu`, `simt.cu` and tensor core schedules."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Value
from ....runtime.ir.types import TensorType
from ....runtime.ops.matmul import Gemm
from ..algorithms.registry import Answer, Setting, need_dtypes
from ..codegen.copies import copy_strided
from ..codegen.epilogue import Epilogue
from ..recipe.launch import behind, launches_of, reading, sharing
from ..recipe.operands import Packed, Scratch, Tensor, broadcast_strides, ceil_div
from . import f16, f32
from .atoms import HALVES
from .gemv import MAX_ROWS, multiply_rows
from .multiplication import Multiplication, batch_axes, stacks
from .pack import pack_bias, pack_columns
from .problem import Batch, GemmArguments, Linear, Matrix, Problem, widest
from .schedules import simt

#: Minimum rows of a product for which a matrix is copied.
SPREAD_ROWS = 16
#: Element types with tiles.
TILED = frozenset({float32}) | HALVES

# ── operators ────────────────────────────────────────────────────────────────────────────────────


def tiled(task: Multiplication) -> Answer:
    """Multiply (stacked) matrices by the algorithm named in `Setting.algorithm`."""
    refused = need_dtypes(TILED, task.y, task.a, task.b, task.c)
    if refused:
        return refused
    layer = linear_of(task)
    if isinstance(layer, Linear):
        return _product(layer, task.epilogue, task.setting)
    return layer if isinstance(task.op, Gemm) else _stack(task)


def linear_of(task: Multiplication) -> Linear | str:
    """Return a product with a single right matrix, or why no kernel supports it."""
    y, a, b = task.y, task.a, task.b
    if isinstance(task.op, Gemm):
        return _gemm(task, task.op)
    if b.rank > 2:
        return "a stack of matrices on the right"
    n = b.dims[1] if b.rank == 2 else 1
    k = b.dims[0]
    return Linear(y, a, b, (prod(a.dims) // max(k, 1), n, k), bias=task.epilogue.bias)


def _stack(task: Multiplication) -> Answer:
    """Multiply stacks of matrices."""
    y, a, b, epilogue, setting = task.y, task.a, task.b, task.epilogue, task.setting
    if a.rank < 2 or setting.algorithm == "gemv" or epilogue.bias is not None:
        return "a stack of matrices on the right"
    count, rows = stacks(y, a, b)
    apart = prod(b.dims[:-2]) not in (1, count) or prod(a.dims[:-1]) not in (rows, count * rows)
    if a.dtype != float32:
        made = f16.product(y, a, b, epilogue, setting)
        return _spread(task) if apart and isinstance(made, str) else made
    return _spread(task) if apart else _stacked(task)


def _spread(task: Multiplication) -> Answer:
    """Multiply stacks of which one is broadcast along some axes: it is copied along these first."""
    y, separate = task.y, batch_axes(task.y, task.a, task.b)
    if stacks(y, task.a, task.b)[1] < SPREAD_ROWS:
        return f"stacks of {task.a.value.tensor} and {task.b.value.tensor} are broadcast"
    batch = (*y.dims[:separate], *(1,) * (y.rank - 2 - separate))
    wide: dict[Tensor, Tensor] = {}
    for operand, outer in ((task.a, y.dims[:-2]), (task.b, batch)):
        if prod(operand.dims[:-2]) not in (1, prod(outer)):
            dims = (*outer, *operand.dims[-2:])
            wide[operand] = Tensor(Value("spread", TensorType(operand.dtype, dims)))
    task = replace(task, a=wide.get(task.a, task.a), b=wide.get(task.b, task.b))
    made = tiled(task)
    if isinstance(made, str):
        return made
    launches = launches_of(made)
    for narrow, copy in wide.items():
        there = Scratch(behind(launches))
        first = copy_strided(copy, narrow, broadcast_strides(narrow.dims, narrow.format, copy.dims))
        nbytes = there.offset + copy.size * copy.dtype.itemsize
        launches = tuple(
            reading(each, lambda at, copy=copy, there=there: there if at == copy else at)
            for each in (replace(first, scratch=nbytes), *launches)
        )
    return sharing(*launches)


def _gemm(task: Multiplication, op: Gemm) -> Linear | str:
    """Return two matrices with their factor, and the constants to add."""
    y, a, b, c = task.y, task.a, task.b, task.c
    if op.transA:
        return "transA=1"
    if b.data is None and (op.alpha != 1 or (op.transB and a.dtype == float32)):
        return f"alpha={op.alpha}, transB={op.transB} with a computed second operand"
    m, n = y.dims
    bias: Tensor | Packed | None = None
    if c is not None and op.beta != 0:
        if c.data is None or c.size not in (1, n) or (c.size > 1 and c.dims[-1] != n):
            return f"c of {c.value.tensor}, not one constant per column"
        bias = Packed((c.value,), ("bias", n, op.beta), partial(pack_bias, n=n, beta=op.beta))
    form = (op.alpha, bool(op.transB))
    return Linear(y, a, b, (m, n, a.dims[1]), form, bias)


def _product(layer: Linear, epilogue: Epilogue, setting: Setting) -> Answer:
    """Return one product."""
    a, b, form, (m, n, k) = layer.a, layer.b, layer.form, layer.shape
    alpha, transposed = form
    if k == 0 or layer.y.size >= 2**31 or a.size >= 2**31:
        return f"{m} x {n} x {k} elements"
    if setting.takes("gemv") and b.data is not None and m <= MAX_ROWS:
        return multiply_rows((layer,), epilogue, setting.target)
    if setting.algorithm == "gemv":
        return f"{m} rows, more than {MAX_ROWS}"
    if a.dtype != float32:
        if b.data is None:
            bias = layer.bias
            return f16.product(layer.y, a, b, epilogue, setting, transposed=transposed, bias=bias)
        return f16.linear(layer, epilogue, setting)
    if _tensor_cores_pay(layer, setting):
        refused = f32.halves_refusal(layer, setting) if epilogue.halves else ""
        return refused or f32.linear(layer, epilogue, setting)
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
    gemm = GemmArguments(source, columns, layer.y, layer.shape, ldb, n, bias=layer.bias)
    return simt.multiply(gemm, epilogue, setting)


def _stacked(task: Multiplication) -> Answer:
    """Return a stack of products; every stack has the result's length or one matrix."""
    y, a, b, epilogue, setting = task.y, task.a, task.b, task.epilogue, task.setting
    k, n = b.dims[-2:]
    count, m = stacks(y, a, b)
    if k == 0:
        return "no terms"
    of = prod(a.dims[:-1]) // max(m, 1), prod(b.dims[:-2])
    if any(stack not in (1, count) for stack in of):
        return f"stacks of {a.value.tensor} and {b.value.tensor} are broadcast"
    if count > 65535:
        return f"a stack of {count}"
    of_a, of_b = m * k if of[0] == count else 0, k * n if of[1] == count else 0
    batch = Batch(count, of_a, of_b, m * n)
    if setting.algorithm == "tensor_cores" and not of_b:
        return "a stack times one computed matrix"
    layer = Linear(y, a, b, (m, n, k), batch=batch)
    if of_b and _tensor_cores_pay(layer, setting):
        return f32.linear(layer, epilogue, setting)
    source = Matrix(a, k, widest((4, 2), k))
    return simt.multiply(GemmArguments(source, b, y, (m, n, k), n, n, batch), epilogue, setting)


def _tensor_cores_pay(layer: Linear, setting: Setting) -> bool:
    """Whether tensor cores are requested or estimated to be faster."""
    if setting.algorithm:
        return setting.algorithm == "tensor_cores"
    problem = Problem(*layer.shape, layer.batch.count)
    plain = simt.choose(problem, setting.target).microseconds
    return f32.linear_time(problem, layer.b.data is not None, setting) < plain
