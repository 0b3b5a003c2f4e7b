"""Products of two tensors of run time, 16-bit floats: `mma.cu` wants one of them turned first."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from .half import HALF_SUMS, HalfProduct, linear_if_faster, multiply_halves
from .half_linear import Linear
from .half_tiles import LAUNCH
from .launch import Launch
from .layout import Ints, ceil_div
from .operands import Packed, Scratch, Tensor
from .registry import Answer, Setting
from .shape import transposition, words_of
from .tail import Tail

#: Blocks along an axis of a grid other than the first.
MOST_STACKED = 65535
#: Bytes a microsecond that `transpose.cu` reads and writes, on an H200.
TURNED = 1.7e6


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
    if transposed and ldb != k:
        return f"16-bit floats: {k} terms, no multiple of 8"
    used = 0 if transposed else count * n * ldb * 2
    product = HalfProduct(
        a=a,
        b=b if transposed else Scratch(0),
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
    if count == 1 and k % 8 == 0 and not product.half_sums:
        given = Linear(y, a, b, product.shape, k, n, bias, across=not transposed)
        turning = 0.0 if transposed else LAUNCH + 2 * used / TURNED
        linear = linear_if_faster(given, product, tail, setting.target, turning)
        if linear is not None:
            return linear
    last = multiply_halves(product, tail, setting.target, used)
    return last if transposed else (_turn(b, (count, k, n, ldb), used), *last)


def _turn(b: Tensor, sizes: Ints, nbytes: int) -> Launch:
    """Return the launch that writes the transposes of [count, k, n] to the workspace."""
    count, k, n, ldb = sizes
    launch = transposition(count, k, n, (n, ldb), words_of(b.dtype), ldb)
    return replace(launch, args={**launch.args, "x": b, "y": Scratch(0)}, scratch=nbytes)
