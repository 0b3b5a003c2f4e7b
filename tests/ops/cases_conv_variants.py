"""Transposed convolutions, folding, and convolutions over shifted positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import FLOAT16, FLOAT32, FLOAT64, Case, draw


def transposed(
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    *,
    bias: bool = True,
    dtype: Any = FLOAT32,
    **attributes: Any,
) -> Case:
    filters = weight[1] * attributes.get("group", 1)
    inputs = (draw(1, shape, dtype), draw(2, weight, dtype))
    if bias:
        inputs = (*inputs, draw(3, (filters,), dtype))
    return Case("ConvTranspose", inputs, attributes, constants=(1,), error=32)


def deformed(offset_group: int, mask: bool, **attributes: Any) -> Case:
    x, w = draw(1, (2, 4, 6, 7)), draw(2, (6, 4 // attributes.get("group", 1), 3, 2))
    offset = draw(3, (2, offset_group * 12, 4, 6))
    inputs = (x, w, offset, draw(4, (6,)))
    if mask:
        inputs = (*inputs, draw(5, (2, offset_group * 6, 4, 6)))
    return Case("DeformConv", inputs, {"offset_group": offset_group, **attributes}, error=64)


TRANSPOSED = [
    transposed((1, 3, 4, 5), (3, 2, 3, 3)),
    transposed((2, 3, 4, 5), (3, 2, 2, 2), strides=(2, 2)),
    transposed((2, 3, 4, 5), (3, 2, 3, 3), strides=(2, 3), pads=(1, 0, 1, 2), bias=False),
    transposed((1, 3, 4, 5), (3, 2, 3, 3), strides=(2, 2), output_padding=(1, 1)),
    transposed((1, 3, 4, 5), (3, 2, 3, 2), dilations=(2, 3)),
    transposed((1, 6, 4, 5), (6, 2, 3, 3), group=3),
    transposed((1, 6, 4, 5), (6, 1, 1, 5), group=6, strides=(1, 2)),
    transposed((1, 3, 4, 5), (3, 2, 3, 3), strides=(2, 2), output_shape=(8, 10)),
    transposed((1, 3, 4, 5), (3, 2, 3, 3), strides=(2, 2), auto_pad="SAME_UPPER"),
    transposed((1, 3, 4, 5), (3, 2, 3, 3), strides=(2, 2), auto_pad="SAME_LOWER"),
    transposed((1, 3, 9), (3, 2, 4), strides=(2,)),
    transposed((1, 3, 3, 4, 2), (3, 2, 2, 3, 2), strides=(2, 1, 2)),
    transposed((1, 64, 20, 20), (64, 64, 2, 2), strides=(2, 2)),
    transposed((1, 3, 4, 5), (3, 2, 3, 3), dtype=FLOAT16),
    transposed((1, 3, 4, 5), (3, 2, 3, 3), dtype=FLOAT64),
]
FOLDED = [
    Case("Col2Im", (draw(1, (2, 12, 20)), np.array([5, 7]), np.array([2, 3])), constants=(1, 2)),
    Case(
        "Col2Im",
        (draw(1, (1, 12, 9)), np.array([7, 8]), np.array([2, 3])),
        {"strides": (2, 2), "dilations": (1, 2), "pads": (0, 1, 0, 1)},
        constants=(1, 2),
    ),
    Case("Col2Im", (draw(1, (1, 16, 8)), np.full(3, 3), np.full(3, 2)), constants=(1, 2)),
]
DEFORMED = [
    deformed(1, False),
    deformed(1, True),
    deformed(2, True),
    deformed(2, True, group=2),
]
CASES = [*TRANSPOSED, *FOLDED, *DEFORMED]
