"""Resizing, and sampling at grids of coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .case import FLOAT16, FLOAT32, FLOAT64, Case, draw

SYMMETRIC = "half_pixel_symmetric"
TRANSFORMS = ("half_pixel", SYMMETRIC, "pytorch_half_pixel", "asymmetric", "align_corners")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
NOTHING = np.zeros(0, np.float32)


def to_sizes(
    shape: tuple[int, ...], sizes: Sequence[int], dtype: Any = FLOAT32, **attributes: Any
) -> Case:
    inputs = (draw(1, shape, dtype), None, None, np.array(sizes, np.int64))
    return Case("Resize", inputs, attributes, constants=(3,), error=16, note=_text(sizes))


def by_scales(
    shape: tuple[int, ...], scales: Sequence[float], dtype: Any = FLOAT32, **attributes: Any
) -> Case:
    inputs = (draw(1, shape, dtype), None, np.array(scales, np.float32))
    return Case("Resize", inputs, attributes, constants=(2,), error=16, note=_text(scales))


def _text(values: Sequence[float]) -> str:
    return "to" + "x".join(map(str, values))


def cropped(mode: str, **attributes: Any) -> Case:
    roi = np.array([0, 0, 0.1, -0.2, 1, 1, 0.8, 1.1], np.float32)
    inputs = (draw(1, (1, 2, 6, 7)), roi, None, np.array([1, 2, 5, 9]))
    chosen = {"coordinate_transformation_mode": "tf_crop_and_resize", **attributes}
    return Case("Resize", inputs, {"mode": mode, **chosen}, constants=(1, 3), error=16)


def grid(
    shape: tuple[int, ...], output: tuple[int, ...], reach: float = 1.6, **attributes: Any
) -> Case:
    where = reach * np.tanh(draw(2, (shape[0], *output, len(output)))).astype(np.float32)
    return Case("GridSample", (draw(1, shape), where), attributes, error=32)


NEAREST = [
    to_sizes(
        (1, 2, 6, 7),
        (1, 2, *size),
        mode="nearest",
        coordinate_transformation_mode=transform,
        nearest_mode=rounding,
    )
    for size in ((9, 14), (4, 5))
    for transform in TRANSFORMS
    for rounding in ROUNDINGS
]
SMOOTH = [
    to_sizes(
        (1, 2, 6, 7), (1, 2, *size), mode=mode, coordinate_transformation_mode=transform, **more
    )
    for size in ((9, 14), (4, 5), (1, 7))
    for transform in TRANSFORMS
    for mode, more in (
        ("linear", {}),
        ("cubic", {}),
        ("cubic", {"cubic_coeff_a": -0.5, "exclude_outside": 1}),
    )
]
SCALED = [
    by_scales((1, 3, 8, 8), (1, 1, 2, 2), mode="nearest"),
    by_scales((1, 3, 8, 8), (1, 1, 0.5, 0.5), mode="nearest"),
    by_scales((1, 3, 9, 5), (1, 1, 0.6, 2.3), mode="nearest"),
    by_scales((1, 3, 9, 5), (1, 1, 0.6, 2.3), mode="linear"),
    by_scales((1, 3, 9, 5), (1, 1, 0.6, 2.3), mode="cubic"),
    by_scales((1, 3, 10, 5), (1, 1, 0.7, 1.5), mode="nearest", nearest_mode="floor",
              coordinate_transformation_mode="asymmetric"),
    by_scales((1, 32, 13, 13), (1, 1, 2, 2), mode="linear"),
    by_scales((2, 3, 9), (1, 1, 1.7), mode="linear"),
    by_scales((1, 1, 4, 5, 6), (1, 1, 2, 0.5, 1.5), mode="linear"),
    by_scales((1, 5, 6, 3), (1, 1.5, 2, 1), mode="linear"),
    by_scales((1, 3, 8, 8), (1, 1, 2, 2), FLOAT16, mode="nearest"),
    by_scales((1, 3, 8, 8), (1, 1, 2, 0.7), FLOAT64, mode="linear"),
    by_scales((1, 3, 8, 8), (1, 1, 2, 2), np.int8, mode="nearest"),
]  # fmt: skip
CHOSEN = [
    to_sizes((1, 2, 6, 7), (9, 8), axes=(2, 3), mode="linear"),
    to_sizes((1, 2, 6, 7), (9, 8), axes=(3, 2), mode="linear"),
    *(
        to_sizes((1, 2, 6, 7), size, axes=(2, 3), mode=mode, keep_aspect_ratio_policy=policy)
        for size in ((3, 9), (12, 5))
        for policy in ("not_larger", "not_smaller")
        for mode in ("nearest", "linear", "cubic")
    ),
    *(
        to_sizes((1, 2, 12, 17), (1, 2, *size), mode=mode, antialias=1, **more)
        for size in ((5, 4), (24, 9), (11, 17))
        for mode, more in (("linear", {}), ("cubic", {"exclude_outside": 1}))
    ),
    cropped("nearest", extrapolation_value=7.0),
    cropped("linear", extrapolation_value=7.0),
    cropped("cubic", extrapolation_value=7.0),
]
GRIDS = [
    grid(shape, output, mode=mode, padding_mode=padding, align_corners=align)
    for shape, output, modes in (
        ((2, 3, 5, 6), (4, 3), ("linear", "nearest", "cubic")),
        ((1, 2, 3, 4, 5), (2, 3, 2), ("linear", "nearest")),
    )
    for mode in modes
    for padding in ("zeros", "border", "reflection")
    for align in (0, 1)
    # onnxruntime clamps the position itself before it takes four neighbours; PyTorch does not
    if (mode, padding) != ("cubic", "border")
]
CASES = [*NEAREST, *SMOOTH, *SCALED, *CHOSEN, *GRIDS]
