"""Poolings: windows of every kind, positions of maxima, what averages count."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from .case import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Case, draw


def pool(
    op: str, x: tuple[int, ...], kernel: list[int], *, dtype: Any = FLOAT32, **attributes: Any
) -> Case:
    outputs = attributes.pop("outputs", 1)
    given = {"kernel_shape": kernel, **attributes}
    return Case(op, (draw(1, x, dtype),), given, outputs=outputs, error=16)


WINDOWS: list[tuple[tuple[int, ...], list[int], dict[str, Any]]] = [
    ((1, 3, 9, 8), [3, 3], {}),
    ((2, 3, 9, 8), [3, 3], {"strides": [2, 2]}),
    ((1, 3, 9, 8), [3, 3], {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((1, 3, 9, 8), [3, 2], {"strides": [1, 3], "pads": [0, 1, 2, 0]}),
    ((1, 3, 10, 8), [3, 3], {"strides": [2, 3], "ceil_mode": 1}),
    ((1, 3, 9, 8), [3, 3], {"strides": [3, 3], "pads": [1, 0, 1, 1], "ceil_mode": 1}),
    ((1, 3, 5, 4), [9, 4], {"strides": [5, 2], "ceil_mode": 1}),  # as EfficientNet's last one
    ((1, 3, 5, 4), [8, 7], {"strides": [8, 7], "pads": [1, 0, 1, 1], "ceil_mode": 1}),
    ((1, 3, 9, 8), [3, 3], {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 3, 9, 8), [2, 2], {"auto_pad": "SAME_LOWER"}),
    ((1, 3, 9, 8), [3, 3], {"auto_pad": "VALID"}),
    ((1, 3, 9, 8), [1, 1], {}),
    ((1, 3, 9, 8), [1, 1], {"strides": [2, 2]}),
    ((2, 3, 5, 4), [5, 4], {}),
    ((2, 3, 5, 4), [5, 4], {"pads": [1, 1, 1, 1]}),
    ((1, 2, 11), [4], {"strides": [3], "pads": [1, 2]}),
    ((1, 2, 5, 6, 7), [2, 3, 2], {"strides": [2, 1, 3], "pads": [1, 0, 0, 0, 2, 1]}),
    ((1, 3, 12, 12), [3, 2], {"dilations": [2, 3], "pads": [1, 0, 1, 0]}),
    ((1, 64, 56, 56), [3, 3], {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 300, 250), [2, 2], {"strides": [2, 2]}),
]

MAXIMA = [pool("MaxPool", x, kernel, **more) for x, kernel, more in WINDOWS]
POSITIONS = [
    pool("MaxPool", x, kernel, outputs=2, storage_order=order, **more)
    for (x, kernel, more), order in product(WINDOWS[:-2], (0, 1))
    if len(kernel) == 2 or not order
]
AVERAGES = [
    pool("AveragePool", x, kernel, count_include_pad=padding, **more)
    for (x, kernel, more), padding in product(WINDOWS, (0, 1))
]
# onnxruntime has no dilated LpPool and gets its ceil_mode wrong.
NORMS = [
    pool("LpPool", x, kernel, p=p, **more)
    for (x, kernel, more), p in product(WINDOWS, (1, 2, 3))
    if "dilations" not in more and "ceil_mode" not in more
]
GLOBAL = [
    Case(op, (draw(1, shape),), attributes, error=16)
    for op, attributes in (
        ("GlobalAveragePool", {}),
        ("GlobalMaxPool", {}),
        ("GlobalLpPool", {"p": 2}),
        ("GlobalLpPool", {"p": 3}),
    )
    for shape in ((2, 3, 5, 7), (1, 4, 1, 1), (2, 3, 9), (1, 2, 3, 4, 5))
]
DTYPES = [
    pool(op, (2, 3, 9, 8), [3, 3], dtype=dtype, strides=[2, 2], pads=[1, 1, 0, 1])
    for op in ("MaxPool", "AveragePool", "LpPool")
    for dtype in (FLOAT16, BFLOAT16, FLOAT64)
    if (op, dtype) != ("LpPool", FLOAT64)
] + [
    pool("MaxPool", (2, 3, 9, 8), [3, 3], dtype=np.dtype(dtype), pads=[1, 1, 1, 1])
    for dtype in (np.int8, np.uint8)
]

CASES = [*MAXIMA, *POSITIONS, *AVERAGES, *NORMS, *GLOBAL, *DTYPES]
