"""Reductions, all of which are left to the cuda kernels; measurements of cuDNN's engine.

Measured with cuDNN 9.19 on an H200: its only engine for reductions supports rows, columns, or whole
matrices (MUL, AVG, NORM1 and NORM2 have none, and no operation can follow a reduction in a graph).
"""

from __future__ import annotations

from collections.abc import Set

from ...runtime.ir.graph import Graph, Node
from ...runtime.ir.op import Op
from ...runtime.ops.pool import GlobalAveragePool, GlobalMaxPool
from ...runtime.ops.reduce import (
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
from ...runtime.options import Options
from .registry import claims

_SUM = (
    "cuDNN adds partial sums in order of completion: over 4096x768 elements, no two runs gave the"
    " same result"
)
_EXTREME = "cuDNN's extrema ignore NaN, and give -3.4e38 for a row of negative infinities"

REASONS: dict[type[Op], str] = {
    **dict.fromkeys((ReduceSum, ReduceMean, ReduceL1, ReduceSumSquare, GlobalAveragePool), _SUM),
    **dict.fromkeys((ReduceL2, ReduceLogSum, ReduceLogSumExp), _SUM),
    **dict.fromkeys((ReduceMax, ReduceMin, GlobalMaxPool), _EXTREME),
    ReduceProd: "cuDNN has no engine for products of elements",
}


@claims(*REASONS)
def reduction(graph: Graph, node: Node, free: Set[Node], options: Options) -> str:
    """Return why cuDNN does not reduce."""
    return REASONS[type(node.op)]
