"""Products of two tensors of run time, 16-bit floats: one is turned first, if it has to be."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from .half import HALF_SUMS, HalfProduct, linear_if_faster, multiply_halves
from .half_linear import Linear
from .launch import Launch, Packed, Scratch, Tensor
from .layout import Ints, ceil_div
from .registry import Answer, Setting
from .shape import transposition, words_of
from .tail import Tail

#: Blocks along an axis of a grid other than the first.
MOST_STACKED = 65535


def half_product(
    y: Tensor,
    a: Tensor,
    b: Tensor,
    tail: Tail,
    setting: Setting,
    *,
    transposed: bool = False,
    bias: Packed | Tensor | None = None,
) -> Answer:
    """Return a @ b of matrices, or of stacks of them.

    Args:
        y: [..., m, n].
        a: [..., m, k].
        b: [..., k, n], or [n, k] if `transposed`; as many matrices as there are, or one.
        tail: applied to every result.
        setting: the GPU.
        transposed: how b lies.
        bias: [n] or None.
    """
    if a.rank < 2 or b.rank < 2:
        return "a vector"
    k, n = a.dims[-1], y.dims[-1]
    if not k or k % 2:
        return f"16-bit floats: {k} terms"
    if prod(b.dims[:-2]) == 1:
        count, of_a, m = 1, 0, prod(a.dims[:-1])
    else:
        count, m = prod(y.dims[:-2]), a.dims[-2]
        of_a = m * k if prod(a.dims[:-2]) == count else 0
        if prod(b.dims[:-2]) != count or prod(a.dims[:-2]) not in (1, count):
            return f"stacks of {a.value.tensor} and {b.value.tensor} are broadcast"
    if max(y.size, a.size, b.size) >= 2**31 or count > MOST_STACKED // 8:
        return f"a stack of {count}"
    ldb = ceil_div(k, 8) * 8
    launches: tuple[Launch, ...] = ()
    turned: Tensor | Scratch = b
    used = 0
    if not transposed or ldb != k:
        if transposed:
            return f"16-bit floats: {k} terms, no multiple of 8"
        turned, used = Scratch(0), count * n * ldb * 2
        launches = (_turn(b, (count, k, n, ldb), used),)
    product = HalfProduct(
        a=a,
        b=turned,
        c=y,
        shape=(m, n, k),
        lda=k,
        ldb=ldb,
        ldc=n,
        batch=(count, of_a, n * ldb if count > 1 else 0, m * n),
        bias=bias,
        vector=next(v for v in (8, 4, 2) if k % v == 0),
        half_sums=setting.way == HALF_SUMS,
    )
    linear = None
    if count == 1 and k % 8 == 0 and not product.half_sums:
        given = Linear(y, a, turned, product.shape, k, n, bias)
        linear = linear_if_faster(given, product, tail, setting.target)
    last = multiply_halves(product, tail, setting.target, used) if linear is None else (linear,)
    return (*launches, *last)


def _turn(b: Tensor, sizes: Ints, nbytes: int) -> Launch:
    """Return the launch that writes the transposes of [count, k, n] to the workspace."""
    count, k, n, ldb = sizes
    launch = transposition(count, k, n, (n, ldb), words_of(b.dtype), ldb)
    return replace(launch, args=(Scratch(0), b, *launch.args[2:]), scratch=nbytes)
