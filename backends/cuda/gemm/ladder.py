"""Textbook matrix products for teaching, from naive to tiled: the steps of `ladder.cu`."""

from __future__ import annotations

from ....runtime.ir.dtypes import float32
from ....runtime.ops.matmul import MatMul
from ..algorithms.registry import Answer, need_dtypes
from ..algorithms.selection import CONTIGUOUS, Formats
from ..recipe.launch import Launch
from ..recipe.operands import ceil_div
from .multiplication import Multiplication

#: Rows and columns per block, and threads, by algorithm.
BLOCKS = {
    "gemm_naive": (1, 256, 256),
    "gemm_blocked": (32, 32, 1024),
    "gemm_registers": (128, 128, 256),
    "gemm_vectors": (128, 128, 256),
}


def ladder_formats(task: Multiplication) -> Formats | str:
    """Return contiguous formats, or why `ladder.cu` does not apply."""
    refused = need_dtypes((float32,), task.y, task.a, task.b)
    if refused:
        return f"{refused}, not float32"
    if not isinstance(task.op, MatMul) or task.a.rank != 2 or task.b.rank != 2:
        return "not a product of two matrices"
    return CONTIGUOUS


def ladder(task: Multiplication, algorithm: str) -> Answer:
    """Return the launch of one step: [m, k] times [k, n], both unpacked."""
    m, n, k = task.shape
    vector = 4 if algorithm == "gemm_vectors" else 1
    if not k:
        return "no terms"
    if n % vector or k % vector:
        return f"rows of {k} and {n} elements, not all multiples of 4"
    height, width, threads = BLOCKS[algorithm]
    rows = ceil_div(m, height)
    if rows > 65535:
        return f"{rows} rows of blocks"
    return Launch(
        "gemm/ladder.cu",
        "gemm_registers" if algorithm == "gemm_vectors" else algorithm,
        grid=(ceil_div(n, width), rows, 1),
        block=threads,
        args={
            **{"a": task.a, "b": task.b, "y": task.y, **task.epilogue.args},
            **{"m": m, "n": n, "k": k},
        },
        constants=(("VECTOR", vector),),
        code=task.epilogue.code,
        note=f"by {vector} {task.epilogue.title}".strip(),
    )
