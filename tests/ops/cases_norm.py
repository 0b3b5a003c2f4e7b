"""Normalizations: axes, batches, dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Array, Case, draw


def batchnorm(
    shape: tuple[int, ...], *, dtype: Any = FLOAT32, stored: bool = True, **more: Any
) -> Case:
    channels = (shape[1],) if len(shape) > 1 else (1,)
    x, scale, shift, mean = (draw(i, s, dtype) for i, s in enumerate([shape, *[channels] * 3]))
    variance = np.abs(draw(9, channels, dtype)) + np.asarray(0.5, dtype)
    inputs = (x, scale, shift, mean, variance.astype(dtype))
    constants = (1, 2, 3, 4) if stored else ()
    return Case("BatchNormalization", inputs, more, constants=constants, error=16, opset=15)


def layer_norm(
    shape: tuple[int, ...], axis: int, *, dtype: Any = FLOAT32, bias: bool = True, **more: Any
) -> Case:
    inner = shape[axis % len(shape) :]
    x, scale, b = draw(1, shape, dtype), draw(2, inner, dtype), draw(3, inner, dtype)
    inputs = (x, scale, b) if bias else (x, scale)
    return Case("LayerNormalization", inputs, {"axis": axis, **more}, error=32)


ALPHA = float(np.float32(1e-4))  # attributes are float32, their defaults too


def lrn(x: Array, size: int, alpha: float = ALPHA, beta: float = 0.75, bias: float = 1.0) -> Array:
    """The definition, in float64."""
    wide = x.astype(np.float64)
    total = np.zeros_like(wide)
    channels = x.shape[1]
    for c in range(channels):
        low, high = max(0, c - (size - 1) // 2), min(channels, c + -(-(size - 1) // 2) + 1)
        total[:, c] = np.square(wide[:, low:high]).sum(1)
    return wide / (bias + alpha / size * total) ** beta


def normalized(
    op: str, shape: tuple[int, ...], *more: Array, dtype: Any = FLOAT32, **a: Any
) -> Case:
    return Case(op, (draw(1, shape, dtype), *more), a, error=32)


BATCH_NORM = [
    batchnorm((2, 3, 5, 7)),
    batchnorm((2, 3, 5, 7), stored=False),
    batchnorm((4, 3)),
    batchnorm((2, 3, 9)),
    batchnorm((1, 2, 3, 4, 5), epsilon=0.1),
    batchnorm((1, 256, 28, 28)),
    batchnorm((2, 3, 5, 7), dtype=FLOAT64, epsilon=0.125),
    batchnorm((2, 3, 5, 7), dtype=FLOAT16),
    batchnorm((2, 3, 5, 7), dtype=BFLOAT16),
]
LRN = [
    Case(
        "LRN",
        (3 * draw(1, shape, dtype),),
        {"size": size, **more},
        want=lambda x, size=size, more=more: lrn(x, size, **more),
        error=16,
    )
    for shape, size, dtype, more in (
        ((2, 7, 5, 6), 5, FLOAT32, {}),
        ((2, 7, 5, 6), 4, FLOAT32, {}),
        ((1, 3, 5, 6), 1, FLOAT32, {"alpha": 0.5}),
        ((1, 3, 5, 6), 9, FLOAT32, {"alpha": 0.5, "beta": 0.5, "bias": 2.0}),
        ((1, 64, 56, 56), 5, FLOAT32, {"alpha": 1e-2}),
        ((2, 5), 3, FLOAT32, {}),
        ((2, 7, 5, 6), 3, FLOAT64, {}),
        ((2, 7, 5, 6), 3, FLOAT16, {}),
        ((2, 7, 5, 6), 3, BFLOAT16, {}),
    )
]
SOFTMAX = [
    normalized(op, shape, dtype=dtype, axis=axis)
    for op in ("Softmax", "LogSoftmax")
    for shape, axis in (((2, 3, 4), -1), ((2, 3, 4), 0), ((2, 3, 4), 1), ((5,), 0), ((2, 1000), 1))
    for dtype in (FLOAT32, FLOAT64, FLOAT16, BFLOAT16)
]
HARDMAX = [normalized("Hardmax", (2, 3, 4), axis=axis) for axis in (-1, 0, 1)]
LAYER_NORM = [
    layer_norm((2, 3, 4), -1),
    layer_norm((2, 3, 4), 1),
    layer_norm((2, 3, 4), 0),
    layer_norm((2, 3, 4), -1, bias=False),
    layer_norm((2, 3, 4), -1, dtype=FLOAT64, epsilon=0.125),
    layer_norm((2, 3, 4), -1, dtype=FLOAT16),
]
OTHERS = [
    normalized("InstanceNormalization", (2, 3, 4, 5), draw(2, (3,)), draw(3, (3,))),
    normalized("InstanceNormalization", (2, 3, 9), draw(2, (3,)), draw(3, (3,)), epsilon=0.1),
    normalized("GroupNormalization", (2, 6, 4, 5), draw(2, (6,)), draw(3, (6,)), num_groups=3),
    normalized("LpNormalization", (2, 3, 4), axis=1, p=1),
    normalized("LpNormalization", (2, 3, 4), axis=-1, p=2),
    normalized("MeanVarianceNormalization", (2, 3, 4, 5)),
    normalized("MeanVarianceNormalization", (2, 3, 4), axes=[1, 2]),
]
CASES = [*BATCH_NORM, *LRN, *SOFTMAX, *HARDMAX, *LAYER_NORM, *OTHERS]
