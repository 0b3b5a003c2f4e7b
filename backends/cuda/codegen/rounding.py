"""Generated code for rounding to integers and narrow floats."""

from __future__ import annotations

import ml_dtypes

from ....runtime.ir.dtypes import FLOAT8S, INTEGERS, DType, float8e8m0
from ..recipe.source import C_TYPES


def narrow(to: DType, compute: DType, *, saturate: bool = True) -> str:
    """Return the C++ rounding function of `quantize.cu`."""
    kind, wide = C_TYPES[to], C_TYPES[compute]
    head = f"__device__ __forceinline__ {kind} narrow({wide} x, {wide} zero)"
    if to in INTEGERS:
        limits = ml_dtypes.iinfo(to)
        ends = f"{wide}({int(limits.min)}.0), {wide}({int(limits.max)}.0)"
        whole = "int64" if to.itemsize > 1 else "int"
        body = f"{kind}({whole}(saturated(rint(x) + zero, {ends})))"
    elif to in FLOAT8S and to != float8e8m0 and saturate:
        body = f"{kind}::saturated(float(x + zero))"
    else:
        body = f"{kind}(float(x + zero))"
    return f'#include "elementwise/functions.cuh"\n{head} {{ return {body}; }}'
