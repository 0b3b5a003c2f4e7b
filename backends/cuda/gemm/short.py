"""Products of matrices with short rows by a constant: `short.cu`.

A layer over the heads of an attention (CaiT) has four terms and four columns. Tiles for tensor
cores would be empty, and slower than memory.
"""

from __future__ import annotations

from math import gcd

from ....runtime.ops.matmul import Gemm
from ..algorithms.registry import Answer
from ..algorithms.selection import CONTIGUOUS, Formats
from ..recipe.launch import Launch
from ..recipe.operands import ceil_div
from .atoms import HALVES
from .linear import linear_of
from .multiplication import Multiplication

#: Maximum terms and columns, and minimum rows.
SHORT, MANY = 16, 1 << 14
#: Threads per block, and rows per thread.
THREADS, PER = 256, 2
#: Microseconds of a launch, and bytes of memory per microsecond.
LAUNCH, MEMORY = 2.0, 3e6


def short_formats(task: Multiplication) -> Formats | str:
    """Return the formats, or why `short.cu` is not for a product."""
    m, n, k = task.shape
    if task.a.dtype not in HALVES:
        return f"dtype {task.a.dtype.name}"
    if not task.is_constant or task.b.rank != 2:
        return "not a constant matrix on the right"
    if isinstance(task.op, Gemm) and (task.op.transA or task.op.transB or task.op.alpha != 1):
        return "a Gemm with factors or transposed matrices"
    if not 0 < n <= SHORT or not 0 < k <= SHORT or m < MANY:
        return f"{m} x {n} x {k}: for at least {MANY} rows of at most {SHORT} elements"
    return CONTIGUOUS


def short_time(task: Multiplication) -> float:
    """Return an estimate in microseconds."""
    m, n, k = task.shape
    return LAUNCH + m * (k * task.a.dtype.itemsize + n * task.y.dtype.itemsize) / MEMORY


def multiply_short(task: Multiplication, variant: str) -> Answer:
    """Return the launch of a product; there are no variants."""
    layer, epilogue = linear_of(task), task.epilogue
    if isinstance(layer, str):
        return layer
    m, n, k = layer.shape
    sizes = k * layer.a.dtype.itemsize, n * epilogue.stored.itemsize
    return Launch(
        "gemm/short.cu",
        "multiply_short",
        grid=(ceil_div(m, THREADS * PER), 1, 1),
        block=THREADS,
        args={
            **{"a": layer.a, "b": layer.b, "y": layer.y, "bias": layer.bias, **epilogue.args},
            "m": m,
        },
        types=epilogue.types,
        constants=(
            *(("K", k), ("N", n), ("PER", PER)),
            *(("ALIGNED_A", gcd(16, sizes[0])), ("ALIGNED_Y", gcd(16, sizes[1]))),
            *epilogue.flags(layer.bias),
        ),
        code=epilogue.code,
        note=f"{m} x {n} x {k} {epilogue.title}".strip(),
    )
