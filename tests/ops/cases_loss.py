"""Losses: reductions, weights, positions that are ignored."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import FLOAT16, FLOAT32, FLOAT64, Case, draw


def loss(
    op: str, shape: tuple[int, ...], *, weighted: bool = True, dtype: Any = FLOAT32, **more: Any
) -> Case:
    target = np.random.default_rng(2).integers(0, shape[1], (shape[0], *shape[2:]))
    inputs = (draw(1, shape, dtype), target)
    if weighted:
        inputs = (*inputs, np.abs(draw(3, (shape[1],), dtype)))
    return Case(op, inputs, more, error=32)


CASES = [
    *(
        loss(op, shape, reduction=reduction, ignore_index=ignored)
        for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
        for shape in ((6, 4), (3, 4, 2, 3))
        for reduction in ("none", "mean", "sum")
        for ignored in (-1, 2)
    ),
    loss("SoftmaxCrossEntropyLoss", (6, 4), weighted=False),
    loss("SoftmaxCrossEntropyLoss", (6, 4), dtype=FLOAT64),
    loss("NegativeLogLikelihoodLoss", (6, 4), dtype=FLOAT16),
]
