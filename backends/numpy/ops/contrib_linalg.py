"""Matrix inverse and dynamic time warping; see `runtime.ops.contrib_linalg`."""

from __future__ import annotations

import numpy as np

from ....runtime.ir.dtypes import float32, float64
from ....runtime.ir.types import Array
from ....runtime.ops.contrib_linalg import DynamicTimeWarping, Inverse
from ..engine.registry import kernel


@kernel(Inverse)
def inverse(op: Inverse, x: Array) -> Array:
    """Return inverses; NaN for singular matrices."""
    wide = x if x.dtype == float64 else x.astype(float32)
    try:
        return np.linalg.inv(wide).astype(x.dtype)
    except np.linalg.LinAlgError:
        found = np.full(x.shape, np.nan, x.dtype)
        for at in np.ndindex(x.shape[:-2]):
            if np.linalg.det(wide[at]):
                found[at] = np.linalg.inv(wide[at])
        return found


@kernel(DynamicTimeWarping)
def dynamic_time_warping(op: DynamicTimeWarping, x: Array) -> Array:
    """Return the path with the smallest sum, traced back from its end."""
    costs = x.reshape(x.shape[-2:])
    m, n = costs.shape
    sums = np.full((m + 1, n + 1), np.inf, float32)
    sums[0, 0] = 0
    came = np.zeros((m + 1, n + 1), np.int8)
    for column in range(1, n + 1):
        for row in range(1, m + 1):
            both, above, left = (
                sums[row - 1, column - 1],
                sums[row - 1, column],
                sums[row, column - 1],
            )
            step = 0 if both < above and both < left else 1 if above < both and above < left else 2
            came[row, column] = step
            sums[row, column] = costs[row - 1, column - 1] + (both, above, left)[step]
    came[0], came[:, 0] = 2, 1
    row, column = m, n
    path: list[tuple[int, int]] = []
    while row > 0 or column > 0:
        path.append((row - 1, column - 1))
        step = came[row, column]
        row, column = row - (step != 2), column - (step != 1)
    return np.array(path[::-1], np.int32).reshape(-1, 2).T
