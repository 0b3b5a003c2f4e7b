"""Pairwise distances."""

from __future__ import annotations

from ....runtime.ir.dtypes import float32, float64
from ....runtime.ops.contrib_distance import CDist
from ..algorithms.registry import Answer, kernel, need_dtypes
from ..recipe.launch import Launch
from ..recipe.operands import Tensor, ceil_div
from .ml_linear import KINDS, WARPS


@kernel(CDist)
def cdist(op: CDist, y: Tensor, a: Tensor, b: Tensor) -> Answer:
    """Compare every row of one input with every row of the other, one warp per row."""
    rows, columns = b.dims
    kind = {"euclidean": "DISTANCE", "sqeuclidean": "SQUARES"}[op.metric]
    return need_dtypes((float32, float64), a) or Launch(
        "ml/linear.cu",
        "kernels",
        grid=(ceil_div(rows, WARPS), 1, 1),
        block=32 * WARPS,
        args={
            **{"x": b, "vectors": a, "y": y, "rows": rows, "columns": columns},
            **{"count": a.dims[0], "gamma": 0.0, "offset": 0.0, "degree": 0.0},
        },
        types=(("X", b.dtype), ("A", b.dtype)),
        constants=(("WARPS", WARPS), ("KERNEL", KINDS.index(kind)), ("CLASSES", 2)),
        note=op.metric,
    )
