"""Pairwise distances; see `runtime.ops.contrib_distance`."""

from __future__ import annotations

import numpy as np

from ....runtime.ir.types import Array
from ....runtime.ops.contrib_distance import CDist
from ..engine.registry import kernel
from ..numerics.distances import squared_distances


@kernel(CDist)
def cdist(op: CDist, a: Array, b: Array) -> Array:
    """Return the distances, computed in float64, so that close points lose no digits."""
    squares = squared_distances(a, b)
    return (np.sqrt(squares) if op.metric == "euclidean" else squares).astype(a.dtype)
