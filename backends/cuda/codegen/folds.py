"""Reductions as C++ expressions."""

from __future__ import annotations

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType
from ....runtime.ir.graph import Node
from ....runtime.ir.op import Op
from ....runtime.ops.cuts import reduced_axes
from ....runtime.ops.pool import GlobalAveragePool, GlobalMaxPool
from ....runtime.ops.reduce import (
    ArgReduce,
    ReduceL1,
    ReduceL2,
    ReduceLogSum,
    ReduceLogSumExp,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceProd,
    ReduceSum,
    ReduceSumSquare,
)
from ....runtime.ops.shapes import normalize_axis
from ..recipe.operands import Ints
from ..recipe.source import C_TYPES
from .elementwise import greatest, lowest

#: The header that declares composite states.
_HEADERS = {
    "Peak": "norm/logsumexp.cuh",
    "Place": "reduce/argmax.cuh",
    "Variance": "reduce/variance.cuh",
}


@record
class ReduceFormula:
    """A reduction as C++ expressions.

    Attributes:
        combine: combines two states `a` and `b`.
        start: the neutral state; ``LOWEST`` and ``GREATEST`` stand for the limits of the dtype.
        element: the state of one element `x` with index `at`.
        finish: the result from the final state `a` and the number of elements `count`.
        state: the C++ type of a state.
        floating: whether integers are computed in float64.
    """

    combine: str
    start: str = "A(0)"
    element: str = "x"
    finish: str = "a"
    state: str = "A"
    floating: bool = False

    def code(self, dtype: DType) -> str:
        """Return the functions of `reduce.cu` for elements of a dtype."""
        return "\n".join((*self._headers(), *self._functions(dtype)))

    def within(self, space: str, dtype: DType, compute: DType) -> str:
        """Return these functions in a namespace, where A is the type of the arithmetic."""
        kind = f"using A = {C_TYPES[compute]};"
        inside = kind, *self._headers(), *self._functions(dtype)
        return "\n".join((f"namespace {space} {{", *inside, "}"))

    def _headers(self) -> list[str]:
        return [f'#include "{_HEADERS[self.state]}"'] if self.state in _HEADERS else []

    def _functions(self, dtype: DType) -> tuple[str, ...]:
        start = self.start.replace("LOWEST", lowest(dtype)).replace("GREATEST", greatest(dtype))
        head = "__device__ __forceinline__"
        return (
            f"using State = {self.state};",
            f"{head} State start() {{ return {start}; }}",
            f"{head} State element(A x, long long at) {{ return {self.element}; }}",
            f"{head} State combine(State a, State b) {{ return {self.combine}; }}",
            f"{head} auto finish(State a, A count) {{ return {self.finish}; }}",
        )

    def nbytes(self, dtype: DType, index: DType) -> int:
        """Return the size of a state, given the compute type and that of indices."""
        place = 2 * max(dtype.itemsize, index.itemsize)
        words = {"A": 1, "Peak": 2, "Variance": 4}
        return place if self.state == "Place" else words[self.state] * dtype.itemsize


#: The reductions; comparisons propagate NaN.
FOLDS: dict[type[Op], ReduceFormula] = {
    ReduceSum: ReduceFormula("a + b"),
    ReduceMean: ReduceFormula("a + b", finish="a / count", floating=True),
    ReduceMax: ReduceFormula("a > b || a != a ? a : b", "LOWEST"),
    ReduceMin: ReduceFormula("a < b || a != a ? a : b", "GREATEST"),
    ReduceProd: ReduceFormula("a * b", "A(1)"),
    ReduceL1: ReduceFormula("a + b", element="x < A(0) ? -x : x"),
    ReduceL2: ReduceFormula("a + b", element="x * x", finish="sqrt(a)", floating=True),
    ReduceSumSquare: ReduceFormula("a + b", element="x * x"),
    ReduceLogSum: ReduceFormula("a + b", finish="log(a)", floating=True),
    ReduceLogSumExp: ReduceFormula(
        "merged(a, b)",
        "State{-INFINITY, 0}",
        "State{x, 1}",
        "a.top + log(a.sum)",
        "Peak",
        floating=True,
    ),
}
#: Poolings of whole images are reductions of their pixels; they have kernels of other names.
POOLS = {GlobalAveragePool: FOLDS[ReduceMean], GlobalMaxPool: FOLDS[ReduceMax]}
FOLDS |= POOLS
#: Mean squares of differences from the mean.
VARIANCE = ReduceFormula(
    "merged(a, b)",
    "State{A(0), A(0), A(0)}",
    "State{A(1), x, A(0)}",
    "a.square / count",
    "Variance",
)


def folded_axes(node: Node) -> Ints | None:
    """Return the axes along which a node reduces; None if they are not known."""
    if isinstance(node.op, GlobalAveragePool | GlobalMaxPool):
        return tuple(range(2, len(node.operands[0].tensor.dims)))
    return reduced_axes(node)


def keeps_axes(op: Op) -> bool:
    """Whether a result has an axis of size 1 for each that is reduced."""
    is_pooling = isinstance(op, GlobalAveragePool | GlobalMaxPool)
    return is_pooling or bool(getattr(op, "keepdims", 0))


def keeps_order(node: Node) -> bool:
    """Whether the axes of a result are in the order of the input's, in any format of an image.

    Without an axis of pixels, the channels of an image stay the second axis, and last in memory. A
    result of fewer axes than an image has no format, so the axes that are left must be in order.
    """
    op, rank = node.op, len(node.operands[0].tensor.dims)
    if keeps_axes(op):
        return True
    if isinstance(op, ArgReduce):
        axes: Ints | None = (normalize_axis(op.axis, rank),)
    else:
        axes = reduced_axes(node)
    if axes is None:
        return False
    if len(node.output.tensor.dims) >= 3:
        return min(axes, default=0) > 1
    left = [axis for axis in (0, *range(2, rank), *range(1, min(rank, 2))) if axis not in axes]
    return left == sorted(left)
