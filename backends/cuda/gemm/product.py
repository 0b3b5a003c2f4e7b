"""Matrix products and contractions with any element type and strides: `product.cu`.

For everything without tiles.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS, DType, float64
from ....runtime.ir.types import TensorType
from ....runtime.ops.matmul import Det, Einsum, Gemm, einsum_terms
from ..algorithms.registry import Answer, kernel, need_dtypes
from ..codegen.elementwise import NUMBERS
from ..codegen.epilogue import Epilogue, no_epilogue
from ..recipe.launch import Launch, each
from ..recipe.operands import Given, Ints, Scratch, Tensor, broadcast_strides, ceil_div
from ..recipe.source import arithmetic
from .problem import Shape

SIDE = 16


@record
class Strided:
    """Products alpha * a @ b + beta * c of matrices with arbitrary strides.

    Attributes:
        target: where the result is written.
        dtype: of the result.
        a, b, c: the operands; c is None if nothing is added.
        shape: (m, n, k).
        steps: the first six fields of struct `Steps`.
        stack: sizes of the stacked axes, and strides of the matrices in a and b.
        zeros: the zero points of a and b.
        factors: alpha and beta; where these are not 1, integers are summed in float64.
    """

    target: Tensor | Scratch
    dtype: DType
    a: Tensor
    b: Tensor
    shape: Shape
    steps: Ints
    c: Tensor | None = None
    stack: tuple[Ints, Ints, Ints] = ((1,), (0,), (0,))
    zeros: tuple[Tensor | None, Tensor | None] = (None, None)
    factors: tuple[float, float] = (1.0, 1.0)

    def launch(self, epilogue: Epilogue) -> Answer:
        """Return the launch of `product.cu`, with `epilogue` applied to every result."""
        a, b, c, zeros, dtype = self.a, self.b, self.c, self.zeros, self.dtype
        m, n, k = self.shape
        sizes, of_a, of_b = self.stack
        tiles_n = ceil_div(n, SIDE)
        tiles = tiles_n * ceil_div(m, SIDE)
        if tiles * prod(sizes) >= 2**31:
            return f"a stack of {prod(sizes)}"
        zero_a, zero_b = (0 if zero is None or zero.size == 1 else 1 for zero in zeros)
        by = dict(zip(("a_m", "a_k", "b_k", "b_n", "c_m", "c_n"), self.steps, strict=True))
        scaled = self.factors != (1.0, 1.0)
        sums = float64 if scaled and dtype not in FLOATS else arithmetic(dtype)
        return Launch(
            "gemm/product.cu",
            "product",
            grid=(tiles * prod(sizes), 1, 1),
            block=SIDE * SIDE,
            args={
                **{"a": a, "b": b, "c": c, "y": self.target, "a_zero": zeros[0]},
                **{"b_zero": zeros[1], **epilogue.args, "m": m, "n": n, "k": k},
                **{"tiles_n": tiles_n, "tiles": tiles},
                **{"alpha": self.factors[0], "beta": self.factors[1]},
                "by": {**by, "zero_a": zero_a, "zero_b": zero_b},
                **{"stack": sizes, "of_a": of_a, "of_b": of_b},
            },
            types=(
                *(("XA", a.dtype), ("XB", b.dtype), ("XC", a.dtype if c is None else c.dtype)),
                *(("Y", dtype), ("A", sums)),
            ),
            constants=(
                *(("RANK", len(sizes)), ("ADDED", c is not None), ("SCALED", scaled)),
                *(("ZERO_A", zeros[0] is not None), ("ZERO_B", zeros[1] is not None)),
            ),
            code=epilogue.code,
            note=f"{m} x {n} x {k} {epilogue.title}".strip(),
        )


def stacked_product(y: Tensor, a: Tensor, b: Tensor, epilogue: Epilogue) -> Answer:
    """Return the product of vectors, matrices, or broadcast stacks of matrices."""
    refused = need_dtypes(NUMBERS, y, a, b) or _need_own(epilogue)
    if refused:
        return refused
    return stack_of_products(y, y.value.tensor, a, b, epilogue=epilogue)


def _need_own(epilogue: Epilogue) -> str:
    """Return why results need no rounding and no bias; empty if that is so."""
    own, stored = epilogue.sums, epilogue.stored
    if epilogue.bias is not None:
        return "a bias in addition to two operands"
    return "" if own == stored else f"sums of {own.name} that are stored as {stored.name}"


def stack_of_products(
    target: Tensor | Scratch,
    result: TensorType,
    a: Tensor,
    b: Tensor,
    zeros: tuple[Tensor | None, Tensor | None] = (None, None),
    epilogue: Epilogue | None = None,
) -> Answer:
    """Return the launch of numpy's `matmul`, less zero points.

    Args:
        target: where the result is written.
        result: its dtype and shape.
        a: the left operand.
        b: the right operand.
        zeros: one, or one per row of a and column of b.
        epilogue: applied to every result.
    """
    dims = result.dims
    rows = a.dims if a.rank > 1 else (1, *a.dims)
    columns = b.dims if b.rank > 1 else (*b.dims, 1)
    m, k, n = rows[-2], rows[-1], columns[-1]
    outer = dims[: len(dims) - (a.rank > 1) - (b.rank > 1)]
    if epilogue is not None and epilogue.operands and prod(outer) != 1:
        return "a stack with an operand in its epilogue"
    stacks = [
        tuple(
            step * prod(matrices[-2:]) for step in broadcast_strides(matrices[:-2], a.format, outer)
        )
        for matrices in (rows, columns)
    ]
    product = Strided(
        target,
        result.dtype,
        a,
        b,
        shape=(m, n, k),
        steps=(k, 1, n, 1, 0, 0),
        stack=(outer or (1,), stacks[0] or (0,), stacks[1] or (0,)),
        zeros=zeros,
    )
    return product.launch(epilogue or no_epilogue(result.dtype))


def general_product(
    op: Gemm, y: Tensor, a: Tensor, b: Tensor, c: Tensor | None, epilogue: Epilogue
) -> Answer:
    """Return alpha * a' @ b' + beta * c, each optionally transposed, c broadcast."""
    refused = need_dtypes(NUMBERS, y, a, b, c) or _need_own(epilogue)
    if refused:
        return refused
    m, n = y.dims
    k = a.dims[0] if op.transA else a.dims[1]
    of_a = (1, m) if op.transA else (k, 1)
    of_b = (1, k) if op.transB else (n, 1)
    of_c = (0, 0) if c is None else broadcast_strides(c.dims, c.format, y.dims)
    factors = (op.alpha, op.beta if c is not None else 1.0)
    steps = (*of_a, *of_b, *of_c)
    return Strided(y, y.dtype, a, b, (m, n, k), steps, c, factors=factors).launch(epilogue)


@kernel(Einsum)
def einsum(op: Einsum, y: Tensor, *operands: Tensor) -> Answer:
    """Sum products of elements over the letters missing in the result."""
    refused = need_dtypes(NUMBERS, *operands)
    if refused:
        return refused
    terms, result = einsum_terms(op.equation)
    axes = [_letters(term, x.rank) for term, x in zip(terms, operands, strict=True)]
    shared = y.rank - len(result.replace(".", ""))
    kept = _letters(result, y.rank)
    sizes = dict.fromkeys((name for names in axes for name in names), 1)
    for x, names in zip(operands, axes, strict=True):
        sizes |= {name: size for size, name in zip(x.dims, names, strict=True) if size != 1}
    summed = [letter for letter in sizes if letter not in kept]
    if any(letter.startswith(".") for letter in summed) or shared < 0:
        return f"equation {op.equation}"
    args: dict[str, Given] = {}
    for i, (x, names) in enumerate(zip(operands, axes, strict=True)):
        steps = [0 if size == 1 else step for size, step in zip(x.dims, x.strides, strict=True)]
        walk = {
            letter: sum(s for s, name in zip(steps, names, strict=True) if name == letter)
            for letter in sizes
        }
        args[f"x{i}"] = x
        args[f"strides{i}"] = tuple(walk[name] for name in kept) or (0,)
        args[f"steps{i}"] = tuple(walk[name] for name in summed) or (0,)
    return each(
        "gemm/einsum.cu",
        "contract",
        y.size,
        {
            **{"y": y, "count": y.size, "terms": prod(sizes[name] for name in summed)},
            **{"sizes": y.dims or (1,), "summed": tuple(sizes[name] for name in summed) or (1,)},
            **args,
        },
        types=(("T", y.dtype), ("A", arithmetic(y.dtype))),
        constants=(("RANK", max(1, y.rank)), ("SUMMED", max(1, len(summed)))),
        code=f"#define OPERANDS(X) {' '.join(f'X({i})' for i in range(len(operands)))}",
        note=op.equation,
    )


def _letters(term: str, rank: int) -> list[str]:
    """Return a name for every axis; axes of the ellipsis are numbered from the end."""
    before, dot, after = term.partition(".")
    covered = rank - len(before) - len(after) if dot else 0
    return [*before, *(f".{covered - i}" for i in range(covered)), *after]


@kernel(Det)
def det(op: Det, y: Tensor, x: Tensor) -> Answer:
    """Gaussian elimination, one thread per matrix."""
    refused = need_dtypes(FLOATS, x)
    if refused:
        return refused
    compute = arithmetic(x.dtype)
    launch = each(
        "gemm/det.cu",
        "determinant",
        y.size,
        {"x": x, "work": Scratch(0), "y": y, "count": y.size, "n": x.dims[-1]},
        types=(("T", x.dtype), ("A", compute)),
    )
    return replace(launch, scratch=x.size * compute.itemsize)


def products_with(
    target: Tensor | Scratch, dtype: DType, x: Tensor, w: Tensor, width: int
) -> Answer:
    """Return x @ w' of every matrix of w [count, width, k], into [count, rows of x, width].

    Args:
        target: where the result is written.
        dtype: of the results.
        x: [..., k].
        w: [count, width, k].
        width: rows per matrix.
    """
    k = x.dims[-1]
    shape = (prod(x.dims[:-1]), width, k)
    stack = ((w.dims[0],), (0,), (width * k,))
    product = Strided(target, dtype, x, w, shape, (k, 1, 1, k, 0, 0), stack=stack)
    return product.launch(no_epilogue(dtype))
