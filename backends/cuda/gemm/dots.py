"""Products of stacks of matrices that would leave tiles empty: `dots.cu`.

Divisors of linear attention are products by a vector each, and frames of atoms have 3 x 3 elements.
"""

from __future__ import annotations

from math import prod

from ....runtime.ir.dtypes import float32
from ....runtime.ops.matmul import MatMul
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer
from ..algorithms.selection import CONTIGUOUS, Formats
from ..recipe.launch import Launch
from ..recipe.operands import Ints, broadcast_strides, ceil_div, merge
from .atoms import HALVES
from .multiplication import Multiplication
from .tile import LAUNCH, MEMORY

#: Maximum size of the second largest of M, N and K, unless M or N is 1.
SMALL = 4
THREADS, WARP = 256, 32
#: Products per microsecond and multiprocessor, and microseconds per term of a thread.
PRODUCTS, TERM = 1.5e4, 0.02


def dots_formats(task: Multiplication) -> Formats | str:
    """Return the formats, or why `dots.cu` is not for a product."""
    if not isinstance(task.op, MatMul) or min(task.a.rank, task.b.rank) < 2:
        return "not a product of matrices"
    if task.a.dtype not in HALVES | {float32}:
        return f"dtype {task.a.dtype.name}"
    if task.b.data is not None:
        return "a constant matrix on the right"
    m, n, k = _shape(task)
    if min(m, n) != 1 and sorted((m, n, k))[1] > SMALL:
        return f"{m} x {n} x {k}: for single rows or columns, and matrices of few elements"
    if not k or not task.y.size or task.y.size * WARP >= 2**31:
        return f"{task.y.size} results"
    return CONTIGUOUS


def dots_time(task: Multiplication) -> float:
    """Return an estimate in microseconds."""
    k, size = task.a.dims[-1], task.y.size
    read = (task.a.size + task.b.size) * task.a.dtype.itemsize
    traffic = read + size * task.y.dtype.itemsize
    products = size * k / PRODUCTS / task.setting.target.processors
    return LAUNCH + max(traffic / MEMORY, products) + TERM * ceil_div(k, _lanes(task))


def multiply_dots(task: Multiplication, variant: str) -> Answer:
    """Return the launch of a product; there are no variants."""
    a, b, y, epilogue = task.a, task.b, task.y, task.epilogue
    if epilogue.bias is not None or epilogue.halves is not None:
        return "a bias in addition to two operands, or results in halves"
    m, n, k = _shape(task)
    batch = y.dims[:-2]
    steps: list[Ints] = []
    for x in (a, b):
        of_matrices = broadcast_strides(x.dims[:-2], Format.CONTIGUOUS, batch)
        steps.append(tuple(step * prod(x.dims[-2:]) for step in of_matrices))
    stack, (of_a, of_b) = merge(batch, steps)
    lanes = _lanes(task)
    return Launch(
        "gemm/dots.cu",
        "dots",
        grid=(ceil_div(y.size * lanes, THREADS), 1, 1),
        block=THREADS,
        args={
            **{"a": a, "b": b, "y": y, **epilogue.args, "count": y.size, "m": m, "n": n, "k": k},
            **{"stack": stack, "of_a": of_a, "of_b": of_b},
        },
        types=epilogue.types,
        constants=(("THREADS", THREADS), ("LANES", lanes), ("RANK", len(stack))),
        code=epilogue.code,
        note=f"{m} x {n} x {k} {epilogue.title}".strip(),
    )


def _shape(task: Multiplication) -> tuple[int, int, int]:
    """Return M, N and K of one matrix of the stack."""
    *_, m, n = task.y.dims
    return m, n, task.a.dims[-1]


def _lanes(task: Multiplication) -> int:
    """Return how many threads share a result: terms are adjacent unless there are columns."""
    _, n, k = _shape(task)
    return 1 if n > 1 else min(WARP, 1 << max(0, (k // 4).bit_length() - 1))
