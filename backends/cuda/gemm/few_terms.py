"""Products of rows with few elements by a constant matrix: `few_terms.cu`.

Coordinates, points and the variables of a series are two to a few elements. A layer of these stores
much more than it reads; tiles of tensor cores would multiply zeros, and need rows of whole words.
"""

from __future__ import annotations

from math import gcd

import numpy as np

from ....runtime.ir.dtypes import float32
from ....runtime.ir.types import Array
from ..algorithms.registry import Answer
from ..algorithms.selection import CONTIGUOUS, Formats
from ..recipe.launch import Launch
from ..recipe.operands import ceil_div
from .atoms import HALVES
from .linear import linear_of
from .multiplication import Multiplication
from .problem import packed_matrix
from .short import LAUNCH, MEMORY

#: Maximum terms. On an H200, 32768 rows of 3 terms by 256 columns take 3 us less than on tensor
#: cores, and of 8 terms 1 us more in float16, 6 in float32.
FEW = 4
#: Threads per block, bytes of a word, and maximum rows of a thread.
THREADS, WORD, PER = 256, 16, 8


def few_terms_formats(task: Multiplication) -> Formats | str:
    """Return the formats, or why `few_terms.cu` is not for a product."""
    m, n, k = task.shape
    if task.a.dtype not in HALVES | {float32}:
        return f"dtype {task.a.dtype.name}"
    if not task.is_constant or task.b.rank != 2:
        return "not a constant matrix on the right"
    if not 0 < k <= FEW or not m or not n:
        return f"{m} x {n} x {k}: for rows of up to {FEW} elements"
    return CONTIGUOUS


def few_terms_time(task: Multiplication) -> float:
    """Return an estimate in microseconds."""
    m, n, k = task.shape
    traffic = m * (k * task.a.dtype.itemsize + n * task.epilogue.stored.itemsize)
    return LAUNCH + traffic / MEMORY


def multiply_few_terms(task: Multiplication, variant: str) -> Answer:
    """Return the launch of a product; there are no variants."""
    layer, epilogue = linear_of(task), task.epilogue
    if isinstance(layer, str):
        return layer
    if epilogue.halves is not None:
        return "results in halves"
    m, n, k = layer.shape
    vector = gcd(n, WORD // epilogue.stored.itemsize)
    across = min(THREADS, n // vector)
    groups, beside = ceil_div(n // vector, across), THREADS // across
    alone = m * groups // (beside * task.setting.target.processors)
    rows = beside * max(1, min(PER, alone))
    return Launch(
        "gemm/few_terms.cu",
        "multiply_few_terms",
        grid=(ceil_div(m, rows), groups, 1),
        block=THREADS,
        args={
            **{"a": layer.a, "b": packed_matrix(layer.b, layer.form, "as rows", transposed)},
            **{"y": layer.y, "bias": layer.bias, **epilogue.args, "m": m},
        },
        types=epilogue.types,
        constants=(
            *(("K", k), ("N", n), ("VECTOR", vector), ("ACROSS", across), ("ROWS", rows)),
            *epilogue.flags(layer.bias),
        ),
        code=epilogue.code,
        note=f"{m} x {n} x {k} {epilogue.title}".strip(),
    )


def transposed(rows: Array) -> Array:
    """Return columns as rows: [..., n, k] as [..., k, n]."""
    return np.ascontiguousarray(np.swapaxes(rows, -1, -2))
