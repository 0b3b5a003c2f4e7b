"""Reductions: sums, means and extremes over axes that lie together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ...runtime.dtypes import DType, float32, float64, int32, int64
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
from .launch import Launch, Scratch, Tensor, scalar
from .layout import Ints, ceil_div, order
from .registry import Answer, kernel, need_static

ROWS, COLUMNS = 8, 32
#: Elements of a row, or rows of a column, that one block reduces.
ROW_CHUNK, COLUMN_CHUNK = 4096, 256


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

    @property
    def code(self) -> str:
        """The functions that `reduce.cu` uses."""
        return "\n".join(
            (
                f"__device__ __forceinline__ T start() {{ return T({self.start}); }}",
                f"__device__ __forceinline__ T element(T x) {{ return {self.element}; }}",
                f"__device__ __forceinline__ T combine(T a, T b) {{ return {self.combine}; }}",
                f"__device__ __forceinline__ T finish(T a, T count) {{ return {self.finish}; }}",
            )
        )


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
    """Reduce axes that lie together."""
    refused = need_static(axes=axes)
    if refused:
        return refused
    given = () if axes is None or axes.data is None else tuple(int(a) for a in axes.data)
    along = normalize_axes(given, x.rank) or (
        () if op.noop_with_empty_axes else tuple(range(x.rank))
    )
    return fold(type(op), y, x, along)


def fold(kind: type[Op], y: Tensor, x: Tensor, axes: Ints) -> Answer:
    """Return the launches of a reduction.

    Args:
        kind: one of `FOLDS`.
        y: the result, in the format of x, with or without the reduced axes.
        x: what is reduced, in any format.
        axes: of the logical shape.
    """
    exact = (ReduceSum, ReduceProd, ReduceSumSquare)
    if x.dtype not in (float32, float64) and (x.dtype not in (int32, int64) or kind not in exact):
        return f"dtype {x.dtype.name}"
    shape = _three(x, axes)
    if shape is None:
        return f"axes {axes} do not lie together in memory"
    outer, count, inner = shape
    if not x.size:
        return "nothing to reduce"
    launches: list[Launch] = []
    source: Tensor | Scratch = x
    total, used = count, 0
    while True:
        parts = ceil_div(count, ROW_CHUNK if inner == 1 else COLUMN_CHUNK)
        if outer * parts >= 2**31 or inner > 65535 * COLUMNS:
            return f"{outer} x {count} x {inner} elements"
        last = parts == 1
        target: Tensor | Scratch = y if last else Scratch(used)
        nbytes = outer * parts * inner * x.dtype.itemsize
        used += 0 if last else ceil_div(nbytes, 256) * 256
        ends = (source is x, last)
        launches.append(_pass(kind, x.dtype, (source, target), (outer, count, inner), ends, total))
        if last:
            break
        source, count = target, parts
    return tuple(replace(launch, scratch=used) for launch in launches)


def _pass(
    kind: type[Op],
    dtype: DType,
    operands: tuple[Tensor | Scratch, Tensor | Scratch],
    shape: Ints,
    ends: tuple[bool, bool],
    total: int,
) -> Launch:
    """Return one pass of a reduction.

    Args:
        kind: one of `FOLDS`.
        dtype: of the elements.
        operands: what is read, and where the results or those of parts go.
        shape: (outer, count, inner).
        ends: whether it reads the elements, and whether it gives the results.
        total: number of elements that become one in the end.
    """
    outer, count, inner = shape
    warps = 1
    if inner == 1:
        entry, chunk = "reduce_rows", ROW_CHUNK
        parts = ceil_div(count, chunk)
        warps = 1 if count <= 256 or outer >= 4096 else ROWS
        grid = (ceil_div(outer * parts, ROWS // warps), 1, 1)
        first: np.int32 | np.int64 = np.int64(outer * parts)
    else:
        entry, chunk = "reduce_columns", COLUMN_CHUNK
        parts = ceil_div(count, chunk)
        grid = (outer * parts, ceil_div(inner, COLUMNS), 1)
        first = np.int32(inner)
    return Launch(
        "reduce.cu",
        entry,
        grid=grid,
        block=ROWS * COLUMNS,
        args=(
            *operands,
            first,
            np.int32(parts),
            np.int32(chunk),
            np.int64(count),
            scalar(total, dtype),
        ),
        types=(("T", dtype),),
        constants=(("WARPS", warps), ("FIRST", ends[0]), ("LAST", ends[1])),
        code=FOLDS[kind].code,
        note=f"{kind.__name__} of {count}",
    )


def _three(x: Tensor, axes: Ints) -> Ints | None:
    """Return (outer, reduced, inner) sizes in memory, or None if `axes` lie apart."""
    places = [axis for axis in order(x.rank, x.format) if x.dims[axis] != 1]
    reduced = [i for i, axis in enumerate(places) if axis in axes]
    if not reduced:
        return (x.size, 1, 1)
    first, last = reduced[0], reduced[-1] + 1
    if last - first != len(reduced):
        return None
    sizes = [x.dims[axis] for axis in places]
    return prod(sizes[:first]), prod(sizes[first:last]), prod(sizes[last:])
