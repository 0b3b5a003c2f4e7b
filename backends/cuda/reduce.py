"""Reductions: sums, means and extremes over axes that lie together."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ...runtime.op import Op
from ...runtime.ops.reduce import (
    Reduce,
    ReduceL1,
    ReduceL2,
    ReduceLogSum,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceProd,
    ReduceSum,
    ReduceSumSquare,
)
from ...runtime.ops.shapes import normalize_axes
from .compile import C_TYPES
from .elementwise import NUMBERS, compute_type
from .launch import Launch, Tensor
from .layout import Ints, ceil_div, order
from .registry import Answer, kernel, need_static

ROWS, COLUMNS = 8, 32


@dataclass(frozen=True, slots=True)
class Fold:
    """How elements become one, as C++ expressions.

    Attributes:
        combine: of `a` and `b`.
        start: what changes nothing when combined.
        element: of `x`: what is combined.
        finish: of `a`, the whole, and `count`, the number of elements.
    """

    combine: str
    start: str = "0"
    element: str = "x"
    finish: str = "a"


#: The reductions; comparisons let NaN through.
FOLDS: dict[type[Op], Fold] = {
    ReduceSum: Fold("a + b"),
    ReduceMean: Fold("a + b", finish="a / count"),
    ReduceMax: Fold("a > b || a != a ? a : b", "__int_as_float(0xff800000)"),
    ReduceMin: Fold("a < b || a != a ? a : b", "__int_as_float(0x7f800000)"),
    ReduceProd: Fold("a * b", "1"),
    ReduceL1: Fold("a + b", element="x < T(0) ? -x : x"),
    ReduceL2: Fold("a + b", element="x * x", finish="sqrt(a)"),
    ReduceSumSquare: Fold("a + b", element="x * x"),
    ReduceLogSum: Fold("a + b", finish="log(a)"),
}


@kernel(*FOLDS)
def reduce(op: Reduce, y: Tensor, x: Tensor, axes: Tensor | None = None) -> Answer:
    refused = need_static(axes=axes)
    if refused:
        return refused
    given = () if axes is None or axes.data is None else tuple(int(a) for a in axes.data)
    along = normalize_axes(given, len(x.dims)) or (
        () if op.noop_with_empty_axes else tuple(range(len(x.dims)))
    )
    return fold(type(op), y, x, along)


def fold(kind: type[Op], y: Tensor, x: Tensor, axes: Ints) -> Answer:
    """Return the launch of a reduction.

    Args:
        kind: one of `FOLDS`.
        y: the result, in the format of x, with or without the reduced axes.
        x: what is reduced, in any format.
        axes: of the logical shape.
    """
    if x.dtype not in NUMBERS or compute_type(x.dtype) != C_TYPES[x.dtype]:
        return f"dtype {x.dtype.name}"
    if x.dtype.kind != "f" and kind not in (ReduceSum, ReduceProd, ReduceSumSquare):
        return f"dtype {x.dtype.name}"
    shape = _three(x, axes)
    if shape is None:
        return f"axes {axes} do not lie together in memory"
    outer, count, inner = shape
    if not count:
        return "nothing to reduce"
    how = FOLDS[kind]
    code = "\n".join(
        (
            f"__device__ __forceinline__ T start() {{ return T({how.start}); }}",
            f"__device__ __forceinline__ T element(T x) {{ return {how.element}; }}",
            f"__device__ __forceinline__ T combine(T a, T b) {{ return {how.combine}; }}",
            f"__device__ __forceinline__ T finish(T a, T count) {{ return {how.finish}; }}",
        )
    )
    types = (("T", x.dtype),)
    note = f"{kind.__name__} of {count}"
    if inner == 1:
        warps = 1 if count <= 256 or outer >= 4096 else ROWS
        return Launch(
            "reduce.cu",
            "reduce_rows",
            grid=(ceil_div(outer, ROWS // warps), 1, 1),
            block=ROWS * COLUMNS,
            args=(x, y, np.int32(outer), np.int32(count)),
            types=types,
            constants=(("WARPS", warps),),
            code=code,
            note=note,
        )
    if inner > 65535 * COLUMNS:
        return f"{inner} columns"
    return Launch(
        "reduce.cu",
        "reduce_columns",
        grid=(outer, ceil_div(inner, COLUMNS), 1),
        block=ROWS * COLUMNS,
        args=(x, y, np.int32(count), np.int32(inner)),
        types=types,
        constants=(("WARPS", 1),),
        code=code,
        note=note,
    )


def _three(x: Tensor, axes: Ints) -> Ints | None:
    """Return (outer, reduced, inner) sizes in memory, or None if `axes` lie apart."""
    places = [axis for axis in order(len(x.dims), x.format) if x.dims[axis] != 1]
    reduced = [i for i, axis in enumerate(places) if axis in axes]
    if not reduced:
        return (x.size, 1, 1)
    first, last = reduced[0], reduced[-1] + 1
    if last - first != len(reduced):
        return None
    sizes = [x.dims[axis] for axis in places]
    return prod(sizes[:first]), prod(sizes[first:last]), prod(sizes[last:])
