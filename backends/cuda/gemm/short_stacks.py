"""Products of many matrices with few rows and terms: `short_stacks.cu`.

Where each window has its own weights (VOLO), 9 rows of 9 terms are multiplied by 32 columns, for
thousands of windows. A tile for each of them would be empty for the most part, and end before its
block has started.
"""

from __future__ import annotations

from math import prod

from ....runtime.ir.dtypes import float32
from ....runtime.ops.matmul import MatMul
from ..algorithms.registry import Answer
from ..algorithms.selection import CONTIGUOUS, Formats
from ..recipe.launch import Launch
from ..recipe.operands import ceil_div
from .atoms import HALVES
from .multiplication import Multiplication
from .short import LAUNCH, MEMORY

#: Maximum rows and terms, and minimum products.
SHORT, MANY = 16, 1 << 10
#: Bytes of a word, threads per block, and bytes of the left matrices of a block.
WORD, THREADS, KEPT = 16, 128, 1 << 15


def stacks_formats(task: Multiplication) -> Formats | str:
    """Return the formats, or why `short_stacks.cu` is not for a product."""
    m, n, k = task.shape
    y, a, b = task.y, task.a, task.b
    if a.dtype not in HALVES | {float32}:
        return f"dtype {a.dtype.name}"
    if not isinstance(task.op, MatMul) or task.is_constant:
        return "not a product of two computed stacks"
    if b.rank < 3 or not a.dims[:-2] == b.dims[:-2] == y.dims[:-2]:
        return "stacks that are broadcast"
    if not 0 < m <= SHORT or not 0 < k <= SHORT or prod(y.dims[:-2]) < MANY:
        return f"{m} x {n} x {k}: for at least {MANY} of at most {SHORT} rows and terms"
    words, rest = divmod(n * a.dtype.itemsize, WORD)
    if rest or not 0 < words <= THREADS // WORD:
        return f"{n} columns, for up to {THREADS // WORD} words of {WORD} bytes"
    return CONTIGUOUS


def stacks_time(task: Multiplication) -> float:
    """Return an estimate in microseconds."""
    elements = task.a.size + task.b.size + task.y.size
    return LAUNCH + elements * task.a.dtype.itemsize / MEMORY


def multiply_short_stacks(task: Multiplication, variant: str) -> Answer:
    """Return the launch of the products; there are no variants."""
    epilogue = task.epilogue
    if epilogue.operands or epilogue.bias is not None or epilogue.halves is not None:
        return "operands of an epilogue, or results in halves"
    (m, n, k), itemsize = task.shape, task.a.dtype.itemsize
    products, words = prod(task.y.dims[:-2]), n * itemsize // WORD
    together = min(THREADS // words, KEPT // (m * k * itemsize)) // WORD * WORD
    return Launch(
        "gemm/short_stacks.cu",
        "multiply_short_stacks",
        grid=(ceil_div(products, together), 1, 1),
        block=THREADS,
        args={"a": task.a, "b": task.b, "y": task.y, **epilogue.args, "products": products},
        types=epilogue.types,
        constants=(
            *(("M", m), ("N", n), ("K", k)),
            *(("PRODUCTS", together), ("THREADS", THREADS)),
        ),
        code=epilogue.code,
        note=f"{products} of {m} x {n} x {k} {epilogue.title}".strip(),
    )
