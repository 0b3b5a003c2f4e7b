"""The greatest elements, and running totals."""

from __future__ import annotations

from math import prod

import numpy as np

from ...runtime.dtypes import int32, int64
from ...runtime.ops.reduce import CumProd, CumSum, Cumulative
from ...runtime.ops.search import TopK
from ...runtime.ops.shapes import normalize_axis
from .compile import C_TYPES, arithmetic
from .elementwise import NUMBERS
from .launch import Ints64, Tensor, each
from .registry import Answer, kernel, need_dtypes


@kernel(TopK, outputs=2)
def top_k(
    op: TopK, y: Tensor | None, x: Tensor, k: Tensor, *, more: tuple[Tensor | None, ...] = ()
) -> Answer:
    """Rank every element by comparing it with all others of its line."""
    refused = need_dtypes(NUMBERS, x)
    if refused:
        return refused
    places = more[0] if more else None
    result = y or places
    if result is None:
        return "none of its outputs is read"
    axis = normalize_axis(op.axis, x.rank)
    sizes = (x.dims[axis], result.dims[axis], prod(x.dims[axis + 1 :]))
    return each(
        "topk.cu",
        "top_k",
        x.size if result.size else 0,
        *(x, y, places, np.int64(x.size), *map(np.int32, sizes)),
        types=(("T", x.dtype), ("A", arithmetic(x.dtype))),
        constants=(("LARGEST", bool(op.largest)),),
        note=f"{sizes[1]} of {sizes[0]}",
    )


@kernel(CumSum, CumProd)
def cumulative(op: Cumulative, y: Tensor, x: Tensor, axis: Tensor) -> Answer:
    """Go along every line."""
    refused = need_dtypes(NUMBERS, x) or need_dtypes((int32, int64), axis)
    if refused or not x.rank:
        return refused or "a scalar has no axis"
    along = axis.ints[0] if axis.known is not None else 0
    compute, sums = arithmetic(x.dtype), isinstance(op, CumSum)
    lines = x.size // max(1, min(x.dims)) if axis.known is None else x.size // max(1, x.dims[along])
    kind = C_TYPES[compute]
    sign = "+" if sums else "*"
    start = "0" if sums else "1"
    return each(
        "cumulative.cu",
        "accumulate",
        lines,
        *(x, None if axis.known is not None else axis, y, np.int64(x.size), np.int32(along)),
        Ints64(x.dims),
        types=(("T", x.dtype), ("I", axis.dtype), ("A", compute)),
        constants=(
            *(("RANK", x.rank), ("REVERSE", bool(op.reverse))),
            ("EXCLUSIVE", bool(op.exclusive)),
        ),
        code=(
            f"constexpr {kind} START = {start};\n"
            f"__device__ __forceinline__ {kind} combine({kind} a, {kind} b)"
            f" {{ return a {sign} b; }}"
        ),
    )
