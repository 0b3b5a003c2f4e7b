"""Graphs of one node for normalizations and softmax: rows of one block, and shared ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tercet.backends.cuda.norm.norm_rows import MAX_EARLY
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.types import Array

from .dry import normal
from .samples import Sample, sample

#: Elements of rows that several blocks share, or would if there were enough bytes of them.
LONG, ODD = 40000, 37013


def layer(rows: int, count: int, dtype: DType = float32, **how: Any) -> Sample:
    """Return a LayerNormalization that gives out its statistics."""
    x, scale, shift = (
        normal(*shape).astype(dtype) for shape in ((rows, count), (count,), (count,))
    )
    return sample("LayerNormalization", [x + dtype.type(3), scale, shift], outputs=3, **how)


def constant(rows: int, count: int, dtype: DType) -> Sample:
    """Return a LayerNormalization by constants, of rows whose mean is far from zero."""
    x, scale, shift = normal(rows, count) + 7, normal(count), normal(count, 2)[:, 0]
    given = [each.astype(dtype) for each in (x, scale, shift)]
    return sample("LayerNormalization", given, constant=(1, 2))


def channels(kind: str, shape: tuple[int, ...], dtype: DType = float32, **how: Any) -> Sample:
    """Return a normalization with a scale and a shift for every channel."""
    x, scale, shift = (normal(*s).astype(dtype) for s in (shape, shape[1:2], shape[1:2]))
    return sample(kind, [x, scale, shift], **how)


def batch(shape: tuple[int, ...]) -> Sample:
    """Return the batch normalization of training."""
    scale, shift, mean, variance = (normal(shape[1], n)[:, 0].copy() for n in (1, 2, 3, 4))
    inputs: list[Array] = [normal(*shape), scale, shift, mean, np.abs(variance)]
    return sample("BatchNormalization", inputs, outputs=3, training_mode=1)


def samples() -> list[Sample]:
    """Return everything that the kernels tell apart."""
    return [*_rows(), *_planes(), *_softmax(), *_strange()]


def _rows() -> Iterator[Sample]:
    for count in (1, 31, 32, 33, 127, 1009, 8200):
        yield layer(3, count)
    yield layer(0, 40)
    # Several rows per warp, the last of which not all have one.
    for rows, count in ((37, 32), (21, 96), (19, 160), (9, 24), (11, 320), (7, 384)):
        yield layer(rows, count, float16)
    yield sample("RMSNormalization", [normal(13, 96), normal(96)])
    # Every thread has as many words as others, or not; of a warp, its parts, or several.
    for rows, count in ((5, 768), (37, 96), (50, 1536), (70, 4096), (9, 152), (6, 77), (3, 520)):
        yield from (constant(rows, count, dtype) for dtype in (float16, float32, bfloat16))
    yield constant(17000, 64, float16)
    for dtype in (float32, float16, bfloat16, float64):
        yield layer(2, LONG, dtype)
    yield layer(2, ODD)
    yield layer(1, ODD, float16)
    long = normal(2, 3, LONG)
    yield sample("LayerNormalization", [long[0], normal(3, LONG)], axis=0)
    yield sample("LayerNormalization", [long, normal(LONG)], axis=1)
    yield sample("LayerNormalization", [normal(5, 3, 33), normal(1, 33)], axis=1)
    # More blocks than load scale and shift ahead.
    many = normal(4 * MAX_EARLY + 3, 12)
    yield sample("LayerNormalization", [many, normal(12), normal(12)], axis=1)
    yield sample("RMSNormalization", [long[0], normal(LONG)])
    for p in (1, 2):
        yield sample("LpNormalization", [long[0]], p=p)
    yield sample("LpNormalization", [np.zeros((2, 5), np.float32)])
    yield sample("LpNormalization", [normal(2, 17000, 2)], axis=1)


def _planes() -> Iterator[Sample]:
    yield channels("InstanceNormalization", (2, 3, 7, 7))
    yield channels("InstanceNormalization", (1, 3, 140, 130))
    yield channels("InstanceNormalization", (1, 2, 5, 80, 91), float16)
    yield channels("GroupNormalization", (1, 6, 90, 84), num_groups=2)
    yield channels("GroupNormalization", (1, 6, 91, 83), float16, num_groups=2)
    yield channels("GroupNormalization", (5, 12), num_groups=3)
    yield sample("MeanVarianceNormalization", [normal(3, 2, 90, 80)])
    yield batch((3, 2, 90, 80))
    yield batch((7, 5))


def _softmax() -> Iterator[Sample]:
    for dtype in (float32, float16, float64):
        yield sample("Softmax", [(3 * normal(2, LONG)).astype(dtype)])
        yield sample("LogSoftmax", [(3 * normal(2, 700)).astype(dtype)])
    yield sample("LogSoftmax", [normal(1, ODD)])
    for count in (0, 1, 31, 33, 1009):
        yield sample("Softmax", [normal(3, count)])
    for dtype in (float32, float16, bfloat16):  # several rows per warp
        for rows, count in ((300, 32), (261, 196), (203, 49), (140, 1024), (201, 7)):
            x = (3 * normal(rows, count)).astype(dtype)
            x[1], x[2, 1:], x[3, 0], x[4, :2] = -np.inf, -np.inf, np.nan, np.inf
            yield sample("Softmax", [x])
        yield sample("LogSoftmax", [(3 * normal(150, 65)).astype(dtype)])
        for rows, count, columns in ((1300, 37, 4), (1303, 9, 8), (1140, 7, 16), (1261, 33, 2)):
            x = (3 * normal(rows, count, columns)).astype(dtype)  # columns side by side
            x[1], x[2, 1:, 1], x[3, 0, 1], x[4, :2, 0] = -np.inf, -np.inf, np.nan, np.inf
            yield sample("Softmax", [x], axis=1)
        yield sample("LogSoftmax", [(3 * normal(1250, 17, 4)).astype(dtype)], axis=1)
    labels = np.array([7, LONG - 1])
    yield sample("SoftmaxCrossEntropyLoss", [normal(2, LONG), labels], reduction="none")


def far(count: int, dtype: DType = float32) -> Sample:
    """Return a row with a mean 3000 times its deviation, where squares of elements cancel out."""
    x = (normal(2, count) / 4 + np.float32(750)).astype(dtype)
    return sample("LayerNormalization", [x, np.ones(count, dtype)], outputs=3)


def _strange() -> Iterator[Sample]:
    """Yield rows with a NaN or an infinity, and for softmax one of nothing else."""
    for value in (np.nan, np.inf, -np.inf):
        for count in (100, 20012):
            x = normal(3, count)
            x[1, count // 3] = value
            yield sample("LayerNormalization", [x, normal(count)], outputs=3)
            x = x.copy()
            x[0, : count // 2] = -np.inf
            x[2] = value
            yield sample("Softmax", [x])
            yield sample("LogSoftmax", [x])
