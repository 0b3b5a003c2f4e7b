"""Batch normalizations whose statistics are constants."""

from __future__ import annotations

import numpy as np

from ....runtime.ir.dtypes import DType, float64
from ....runtime.ir.types import Array


def pack_batch_norm(
    scale: Array, b: Array, mean: Array, var: Array, epsilon: float, dtype: DType
) -> Array:
    """Return [c, 2]: scale and shift of each channel."""
    scale, b, mean, var = (data.astype(float64) for data in (scale, b, mean, var))
    factor = scale / np.sqrt(var + epsilon)
    return np.stack([factor, b - mean * factor], axis=-1).astype(dtype)
