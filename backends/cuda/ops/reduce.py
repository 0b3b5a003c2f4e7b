"""Reductions over any axes: sums, means, extrema and their positions."""

from __future__ import annotations

from ....runtime.ops.reduce import ArgMax, ArgMin, ArgReduce, Reduce
from ....runtime.ops.shapes import normalize_axis
from ..algorithms.registry import Answer, kernel, need_known
from ..codegen.fold_kernel import fold
from ..codegen.folds import FOLDS, POOLS, ReduceFormula, keeps_order
from ..recipe.operands import Tensor


@kernel(*(kind for kind in FOLDS if kind not in POOLS), follows=keeps_order, widens=True)
def reduce(op: Reduce, y: Tensor, x: Tensor, axes: Tensor | None = None) -> Answer:
    """Reduce any axes."""
    refused = need_known(axes=axes)
    if refused:
        return refused
    given = None if axes is None else axes.ints
    return fold(FOLDS[type(op)], y, x, op.axes(given, x.rank), type(op).__name__)


@kernel(ArgMax, ArgMin, follows=keeps_order)
def arg_reduce(op: ArgReduce, y: Tensor, x: Tensor) -> Answer:
    """Return the index of the largest or smallest element along an axis."""
    largest, last = isinstance(op, ArgMax), bool(op.select_last_index)
    place = ReduceFormula(
        f"better<{int(largest)}, {int(last)}>(a, b)",
        f"State{{{'LOWEST' if largest else 'GREATEST'}, {'0' if last else '~Index(0)'}}}",
        *("State{x, Index(at)}", "a.at", "Place"),
    )
    return fold(place, y, x, (normalize_axis(op.axis, x.rank),), type(op).__name__)
