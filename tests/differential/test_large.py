"""Tensors that are computed in blocks, by several threads, or by another algorithm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from . import test_elementwise, test_gather, test_matmul, test_norm, test_reduce, test_shape
from .generate import Dice, LargeDice
from .oracles import SAMPLES, Make, agree
from .sample import Sample, each, summed

COUNT = max(2, SAMPLES // 10)
SLOW = {"Erf", "Unique"}  # their formulas are


def conv(op: str, dice: Dice) -> Sample:
    """Kernels of every common size, strided, grouped, depthwise."""
    kernel = dice.some([1, 1], [3, 3], [3, 3], [3, 3], [5, 5], [7, 7], [1, 7], [3, 1])
    channels, filters = (dice.some(8, 16, 24, 48, 64) for _ in range(2))
    group = dice.some(1, 1, 1, 2, 8, channels)
    filters = group * max(1, filters // group)
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if dice.chance(0.7):
        pads = [k // 2 for k in kernel]
        attributes["pads"] = [*pads, *(max(0, p - dice.randint(0, 1)) for p in pads)]
    if dice.chance(0.4):
        attributes["strides"] = [dice.randint(1, 2) for _ in kernel]
    if dice.chance(0.2):
        attributes["dilations"] = [2, 2]
    image = [dice.randint(13, 40) for _ in kernel]
    x = dice.array(np.float32, (dice.randint(1, 2), channels, *image))
    w = dice.array(np.float32, (filters, channels // group, *kernel))
    b = dice.array(np.float32, (filters,)) if dice.chance(0.5) else None
    if group > 1:
        attributes["group"] = group
    bound = summed(channels // group * kernel[0] * kernel[1] + 1)
    return Sample(op, (x, w, b), attributes, 11, (1, 2), bound=bound)


def pool(op: str, dice: Dice) -> Sample:
    kernel = dice.some([2, 2], [3, 3], [3, 2], [5, 5])
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if dice.chance(0.7):
        attributes["strides"] = [dice.randint(1, 3) for _ in kernel]
    if dice.chance(0.5):
        attributes["pads"] = [dice.randint(0, k // 2) for k in (*kernel, *kernel)]
    x = dice.array(np.float32, (2, dice.some(3, 16, 40), *(dice.randint(13, 60) for _ in kernel)))
    bound = each(0) if op == "MaxPool" else summed(kernel[0] * kernel[1])
    return Sample(op, (x,), attributes, 12 if op == "MaxPool" else 11, bound=bound)


def transposed(op: str, dice: Dice) -> Sample:
    kernel = dice.some([2, 2], [3, 3], [4, 4])
    channels, filters = (dice.some(8, 16, 32) for _ in range(2))
    attributes: dict[str, Any] = {"strides": [2, 2], "pads": [kernel[0] // 2 - 1] * 4}
    x = dice.array(np.float32, (1, channels, dice.randint(9, 30), dice.randint(9, 30)))
    w = dice.array(np.float32, (channels, filters, *kernel))
    return Sample(op, (x, w), attributes, 11, (1,), bound=summed(4 * channels))


MAKERS: dict[str, Make] = {
    **test_elementwise.MAKERS,
    **test_gather.MAKERS,
    **test_matmul.MAKERS,
    **test_norm.MAKERS,
    **test_reduce.MAKERS,
    **test_shape.MAKERS,
    "AveragePool": pool,
    "Conv": conv,
    "ConvTranspose": transposed,
    "MaxPool": pool,
}


@pytest.mark.parametrize("op", [op for op in MAKERS if op not in SLOW])
def test_agrees(op: str) -> None:
    agree(op, MAKERS[op], LargeDice, COUNT)
