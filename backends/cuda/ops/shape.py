"""Operators that create tensors of a shape: constants, ranges, diagonals, triangles."""

from __future__ import annotations

from ....runtime.ops.shape import ConstantOfShape, EyeLike, Range, Trilu
from ..algorithms.registry import Answer, kernel, need_dtypes
from ..codegen.copies import fill, place
from ..codegen.elementwise import ANY
from ..recipe.operands import Tensor, words_of


@kernel(ConstantOfShape)
def constant_of_shape(op: ConstantOfShape, y: Tensor, shape: Tensor) -> Answer:
    """Repeat one element."""
    return fill(y, op.fill)


@kernel(EyeLike)
def eye_like(op: EyeLike, y: Tensor, x: Tensor) -> Answer:
    """Fill a diagonal with ones."""
    refused = need_dtypes(ANY, y)
    if refused:
        return refused
    return place("diagonal", y, y.dtype, {"columns": y.dims[1], "k": op.k})


@kernel(Range)
def range_(op: Range, y: Tensor, start: Tensor, limit: Tensor, delta: Tensor) -> Answer:
    """Count from `start`."""
    return place("range", y, y.dtype, {"start": start, "delta": delta})


@kernel(Trilu)
def trilu(op: Trilu, y: Tensor, x: Tensor, k: Tensor | None = None) -> Answer:
    """Keep a triangle of every matrix."""
    args = {"x": x, "k": k, "rows": x.dims[-2], "columns": x.dims[-1]}
    return place("triangle", y, words_of(x.dtype), args, UPPER=bool(op.upper))
