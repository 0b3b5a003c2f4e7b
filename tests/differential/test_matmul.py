"""Matrix products of every kind, and determinants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import FLOATS, int8, uint8

from .generate import Array, Dice, Shape
from .oracles import Make, agree
from .sample import Sample, smooth, summed

NARROW = (int8, uint8)


def factors(dice: Dice) -> tuple[Shape, Shape]:
    """Return the shapes of two factors: vectors, matrices, stacks that broadcast."""
    inner, rows, columns = dice.size(), dice.size(), dice.size()
    left, right = dice.broadcast(2, 3)
    a, b = (*left, rows, inner), (*right, inner, columns)
    kind = dice.randint(0, 5)
    return (a if kind != 0 else (inner,)), (b if kind != 1 else (inner,))


def mat_mul(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.dtype(op, opset)
    a, b = (dice.array(dtype, shape) for shape in factors(dice))
    stored = (1,) if dice.chance(0.5) else ()
    bound = summed(a.shape[-1]) if dtype in FLOATS else None
    return Sample(op, (a, b), {}, opset, stored, bound=bound, want=np.matmul)


def gemm(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 6)
    dtype = dice.dtype(op, opset)
    rows, inner, columns = (dice.size(empty=False) for _ in range(3))
    flags = dice.given(transA=(0, 1), transB=(0, 1))
    flags |= dice.given(alpha=lambda: dice.uniform(-2, 2), beta=lambda: dice.uniform(-2, 2))
    low, high = (None, None) if dtype in FLOATS else (0, 1000)
    if dtype not in FLOATS:  # what overflows or is no integer is not specified
        flags |= {"alpha": 1.0, "beta": 1.0}
    a = dice.array(dtype, (inner, rows) if flags.get("transA") else (rows, inner), low, high)
    b = dice.array(dtype, (columns, inner) if flags.get("transB") else (inner, columns), low, high)
    c: Array | None = dice.array(dtype, dice.narrowed((rows, columns)), low, high)
    if opset == 6:
        flags |= {"broadcast": 1}
    if opset >= 11 and dice.chance(0.3):
        c = None

    def want(a: Array, b: Array, c: Array | None = None) -> Array:
        product = (a.T if flags.get("transA") else a) @ (b.T if flags.get("transB") else b)
        alpha, beta = (np.float32(flags.get(name, 1)).astype(a.dtype) for name in ("alpha", "beta"))
        return alpha * product + (0 if c is None else beta * c)

    stored = tuple(i for i in (1, 2) if dice.chance(0.5))
    return Sample(op, (a, b, c), flags, opset, stored, want=want,
                  bound=smooth(inner + 1) if dtype in FLOATS else None)  # fmt: skip


EQUATIONS = (
    ("ij->ji", 1), ("ij", 1), ("ii", 1), ("ii->i", 1), ("ij->", 1), ("i->", 1), ("ijk->ik", 1),
    ("...ij->...ji", 1), ("b...i->b...", 1), ("i,j->ij", 2), ("ij,jk", 2), ("ij,jk->ik", 2),
    ("ij,jk->ki", 2), ("bij,bjk->bik", 2), ("bij, bjk -> bik", 2), ("...ij,...jk->...ik", 2),
    ("ij,ij->", 2), ("ij,ij->ij", 2), ("bqhd,bkhd->bhqk", 2), ("...,...->...", 2), ("ij,j->i", 2),
    ("ij,jk,kl->il", 3), ("i,i,i->i", 3), ("bij,jk,k->bi", 3), ("zY,Yz->", 2), ("ij,...->...ij", 2),
)  # fmt: skip


def einsum(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.dtype(op, opset)
    equation, _ = dice.choice(EQUATIONS)
    sizes = {letter: dice.size() for letter in "bijklqhdzY"}
    stack = dice.shape(0, 2)
    arrays: list[Array] = []
    for term in equation.split("->")[0].replace(" ", "").split(","):
        before, dots, after = term.partition("...")
        middle = dice.narrowed(stack) if dots else ()
        shape = (*(sizes[c] for c in before), *middle, *(sizes[c] for c in after))
        arrays.append(dice.array(dtype, shape, *(() if dtype in FLOATS else (0, 9))))
    terms = int(np.prod(list(sizes.values()), dtype=float)) if "->" in equation else sizes["j"]
    bound = summed(min(terms, 64)) if dtype in FLOATS else None
    return Sample(op, tuple(arrays), {"equation": equation}, opset, bound=bound,
                  want=lambda *x: np.einsum(equation, *x))  # fmt: skip


def integer(op: str, dice: Dice) -> Sample:
    a, b = (dice.array(dice.some(*NARROW), shape) for shape in factors(dice))
    zeros: list[Array | None] = [None, None]
    if dice.chance(0.6):
        shape: Shape = () if a.ndim < 2 or dice.chance(0.6) else (a.shape[-2],)
        zeros[0] = dice.array(a.dtype, shape if a.ndim == 2 else ())
    if dice.chance(0.6):
        zeros[1] = dice.array(b.dtype, () if b.ndim != 2 or dice.chance(0.6) else b.shape[-1:])

    def want(a: Array, b: Array, a0: Array | None = None, b0: Array | None = None) -> Array:
        left = a.astype(np.int32) - (0 if a0 is None else column(a0).astype(np.int32))
        return np.matmul(left, b.astype(np.int32) - (0 if b0 is None else b0.astype(np.int32)))

    stored = tuple(i for i in (1, 2, 3) if dice.chance(0.5))
    return Sample(op, (a, b, *zeros), {}, 10, stored, want=want)


def column(zero: Array) -> Array:
    """Return one number per row as a column."""
    return zero[:, None] if zero.ndim else zero


def quantized(op: str, dice: Dice) -> Sample:
    """Scales are powers of two, so that every rounding of the result is exact."""
    a, b = (dice.array(dice.some(*NARROW), shape) for shape in factors(dice))
    y = dice.some(*NARROW)

    def parameters(dtype: Any) -> tuple[Array, Array]:
        return np.array(2.0 ** dice.randint(-4, 0), np.float32), dice.array(dtype)

    (sa, za), (sb, zb) = parameters(a.dtype), parameters(b.dtype)
    sy, zy = np.array(2.0 ** dice.randint(0, 6), np.float32), dice.array(y)

    def want(*arrays: Array) -> Array:
        left, right = (
            a.astype(np.int64) - za.astype(np.int64),
            b.astype(np.int64) - zb.astype(np.int64),
        )
        scaled = np.rint(np.matmul(left, right) * float(sa) * float(sb) / float(sy)) + zy.astype(
            int
        )
        return np.clip(scaled, np.iinfo(y).min, np.iinfo(y).max).astype(y)

    stored = (1, 2, 4, 5, 6, 7) if dice.chance(0.5) else ()
    inputs = (a, sa, za, b, sb, zb, sy, zy)
    return Sample(op, inputs, {}, dice.opset(op), stored, want=want)


def determinant(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.dtype(op, opset)
    size = dice.randint(1, 4)
    return Sample(op, (dice.array(dtype, (*dice.shape(0, 2), size, size)),), {}, opset,
                  bound=smooth(size**2), want=np.linalg.det)  # fmt: skip


MAKERS: dict[str, Make] = {
    "Det": determinant,
    "Einsum": einsum,
    "Gemm": gemm,
    "MatMul": mat_mul,
    "MatMulInteger": integer,
    "QLinearMatMul": quantized,
}


@pytest.mark.parametrize("op", MAKERS)
def test_agrees(op: str) -> None:
    agree(op, MAKERS[op])
