"""Matrix products: ranks, broadcasting, transposition, addends, dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INTEGERS, Case, draw


def gemm(
    a: tuple[int, ...],
    b: tuple[int, ...],
    c: tuple[int, ...] | None = None,
    *,
    dtype: Any = FLOAT32,
    constants: tuple[int, ...] = (1, 2),
    **attributes: Any,
) -> Case:
    inputs = [draw(1, a, dtype), draw(2, b, dtype)]
    inputs += [] if c is None else [draw(3, c, dtype)]
    stored = tuple(i for i in constants if i < len(inputs))
    return Case("Gemm", tuple(inputs), attributes, constants=stored, error=32)


def matmul(
    a: tuple[int, ...], b: tuple[int, ...], *, dtype: Any = FLOAT32, stored: bool = False
) -> Case:
    inputs = draw(1, a, dtype), draw(2, b, dtype)
    return Case("MatMul", inputs, constants=(1,) if stored else (), error=32)


def wrapping_product(a: Any, b: Any) -> Any:
    """Integers as mathematics has them, cut to the dtype's bits."""
    bits = a.dtype.itemsize * 8
    exact = a.astype(object) @ b.astype(object)
    wrapped = np.vectorize(lambda v: v & (2**bits - 1), otypes=[object])(exact)
    return wrapped.astype(np.uint64).astype(a.dtype)


MATMUL = [
    matmul((3, 4), (4, 5)),
    matmul((3, 4), (4, 5), stored=True),
    matmul((4,), (4,)),
    matmul((4,), (4, 5)),
    matmul((3, 4), (4,)),
    matmul((2, 3, 4), (4,)),
    matmul((4,), (2, 4, 5)),
    matmul((2, 3, 4), (4, 5)),
    matmul((3, 4), (2, 4, 5)),
    matmul((2, 1, 3, 4), (1, 6, 4, 5)),
    matmul((6, 3, 4), (2, 6, 4, 5)),
    matmul((1, 4), (4, 1)),
    matmul((300, 200), (200, 400), stored=True),
    matmul((1, 900), (900, 3000), stored=True),
    matmul((24, 60, 50), (24, 50, 60)),
    matmul((2, 400, 90), (90, 100)),
    matmul((400, 90), (2, 90, 100)),
    *(matmul((2, 3, 4), (4, 5), dtype=t) for t in (FLOAT64, FLOAT16, BFLOAT16)),
    matmul((3, 4), (4, 5), dtype=FLOAT16, stored=True),
    *(
        Case("MatMul", (draw(1, (2, 3, 4), t), draw(2, (4, 5), t)), want=wrapping_product, error=0)
        for t in INTEGERS
        if t.itemsize >= 4
    ),
]
GEMM = [
    gemm((3, 4), (4, 5)),
    gemm((3, 4), (4, 5), (5,)),
    gemm((3, 4), (4, 5), (1, 5)),
    gemm((3, 4), (4, 5), (3, 1)),
    gemm((3, 4), (4, 5), (3, 5)),
    gemm((3, 4), (4, 5), (1,)),
    gemm((3, 4), (4, 5), ()),
    gemm((4, 3), (4, 5), (5,), transA=1),
    gemm((3, 4), (5, 4), (5,), transB=1),
    gemm((4, 3), (5, 4), (5,), transA=1, transB=1, alpha=0.5, beta=2.0),
    gemm((3, 4), (4, 5), (5,), beta=0.0),
    gemm((3, 4), (4, 5), (3, 5), alpha=0.25, beta=0.5, constants=()),
    gemm((1, 2048), (1000, 2048), (1000,), transB=1),
    gemm((1, 2048), (2048, 1000), (1000,)),
    gemm((300, 200), (200, 400), (300, 1)),
    *(gemm((3, 4), (4, 5), (5,), dtype=t) for t in (FLOAT64, FLOAT16, BFLOAT16)),
    gemm((3, 4), (4, 5), (5,), dtype=FLOAT16, constants=(), beta=0.5),
]
EINSUM = [
    Case("Einsum", tuple(draw(i, s) for i, s in enumerate(shapes)), {"equation": text}, error=32)
    for text, shapes in (
        ("ij,jk->ik", ((3, 4), (4, 5))),
        ("ij, jk", ((3, 4), (4, 5))),
        ("bhid,bhjd->bhij", ((2, 3, 4, 5), (2, 3, 6, 5))),
        ("...ij,...jk->...ik", ((2, 3, 4), (2, 4, 5))),
        ("ii->i", ((4, 4),)),
        ("ij->", ((3, 4),)),
        ("i,j->ij", ((3,), (4,))),
        ("ij->ji", ((3, 4),)),
    )
]
CASES = [*MATMUL, *GEMM, *EINSUM]
