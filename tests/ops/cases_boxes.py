"""Pooling over regions."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import FLOAT64, Array, Case, draw

BATCHES = np.array([0, 1, 1, 0, 1])


def boxes(seed: int, low: float, high: float) -> Array:
    corners = np.random.default_rng(seed).uniform(low, high, (5, 2, 2))
    return np.concatenate([corners.min(1), corners.max(1)], 1).astype(np.float32)


def aligned(dtype: Any = np.float32, **attributes: Any) -> Case:
    inputs = (draw(1, (2, 3, 8, 9), dtype), boxes(2, -1, 12).astype(dtype), BATCHES)
    return Case("RoiAlign", inputs, {"output_height": 3, "output_width": 2, **attributes}, error=32)


def pooled(size: tuple[int, int], scale: float) -> Case:
    rois = np.concatenate([BATCHES[:, np.newaxis], boxes(2, 0, 10)], 1).astype(np.float32)
    attributes = {"pooled_shape": size, "spatial_scale": scale}
    return Case("MaxRoiPool", (draw(1, (2, 3, 8, 9)), rois), attributes, error=0)


CASES = [
    *(
        aligned(mode=mode, sampling_ratio=ratio, coordinate_transformation_mode=transform)
        for mode in ("avg", "max")
        for ratio in (0, 2)
        for transform in ("half_pixel", "output_half_pixel")
    ),
    aligned(spatial_scale=0.5),
    aligned(FLOAT64),
    pooled((2, 3), 1.0),
    pooled((3, 3), 0.5),
    pooled((1, 1), 1.0),
]
