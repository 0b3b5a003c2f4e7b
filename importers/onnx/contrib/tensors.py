"""Sliding windows along an axis, and tests for infinities and NaNs."""

from __future__ import annotations

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Anything, T, contrib
from .heads import positions


@contrib("UnfoldTensor")
def unfold_tensor(b: NodeBuilder, x: Anything, *, dim: int = -1, size: int, step: int = 1) -> str:
    """All windows of `size` elements along an axis, `step` apart, in a new last axis."""
    if size < 1 or step < 1:
        raise b.error(f"size={size}, step={step}; expected 1 or more")
    rank = b.rank(x)
    dim += rank if dim < 0 else 0
    last = b.Sub(b.size(x, dim), b.ints(size))
    count = b.Add(b.Div(last, b.ints(step)), b.ints(1))
    starts = b.Mul(b.Unsqueeze(positions(b, count), b.ints(1)), b.ints(step))
    index = b.Add(starts, b.arange(size))
    found = b.Gather(x, index, axis=dim)
    return b.transpose(found, *range(dim + 1), *range(dim + 2, rank + 1), dim + 1)


@contrib("IsAllFinite")
def is_all_finite(b: NodeBuilder, *tensors: T, isinf_only: int = 0, isnan_only: int = 0) -> str:
    """Whether no element is an infinity or a NaN; optionally only one kind is tested."""
    found = [b.Reshape(_strange(b, x, isinf_only, isnan_only), b.ints(-1)) for x in tensors]
    whole = found[0] if len(found) == 1 else b.Concat(*found, axis=0)
    most = b.ReduceMax(b.cast(whole, dtypes.int32), keepdims=0)
    return b.Equal(most, b.constant(np.array(0, np.int32)))


def _strange(b: NodeBuilder, x: str, isinf_only: int, isnan_only: int) -> str:
    if isnan_only:
        return b.IsNaN(x)
    return b.IsInf(x) if isinf_only else b.Or(b.IsNaN(x), b.IsInf(x))
