"""Reductions, all of which are left to the cuda kernels; measurements of cuDNN's engine.

Measured with cuDNN 9.19 on an H200, whose one engine for reductions takes rows, columns, or all of
a matrix (MUL, AVG, NORM1 and NORM2 have none, and nothing can follow a reduction in its graph).
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
    "cuDNN adds parts of a sum in the order in which they get done: no run over 4096x768 elements"
    " gave what another one gave"
)
_EXTREME = "cuDNN's extremes leave NaN out, and make -3.4e38 of a row of minus infinities"

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
