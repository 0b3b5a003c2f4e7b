"""Graphs of one node over axes of few elements."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tercet.runtime.ir.dtypes import float16, float32

from .dry import normal
from .samples import Sample, sample, scalar


def edges(n: int) -> Iterator[Sample]:
    """Yield nodes over axes of `n` elements, beside and below the sizes of warps and blocks."""
    line, columns, square = normal(n), normal(3, n, 5), normal(2, n, n)
    for dtype in (float32, float16, np.dtype(np.int8)):
        yield sample("Add", [line.astype(dtype), np.ones(1, dtype)])
    for dtype in (float32, float16, np.dtype(np.int32)):
        yield sample("ReduceSum", [columns.astype(dtype), np.array([1])], (1,))
    for axis in (1, 2):
        flipped = np.ascontiguousarray(columns.swapaxes(1, axis))
        yield sample("Softmax", [flipped], axis=axis)
        yield sample("ReduceMax" if n else "ReduceSum", [flipped, np.array([axis])], (1,))
        yield sample("CumSum", [flipped, scalar(axis, np.int64)])
        yield sample("CumSum", [flipped, scalar(axis, np.int64)], (1,), reverse=1)
        yield sample("LpNormalization", [flipped], axis=axis)
        if n:
            yield sample("ArgMax", [flipped], axis=axis)
            yield sample("Compress", [flipped, normal(flipped.shape[axis]) > 0], axis=axis)
            yield sample("TopK", [flipped, np.array([(n + 1) // 2])], (1,), 2, axis=axis)
    yield sample("CumSum", [normal(2, 8 * n), scalar(1, np.int64)], (1,), exclusive=1)
    yield sample("NonZero", [np.round(square)])
    yield sample("LayerNormalization", [normal(4, n), normal(n), normal(n)])
    yield sample("Transpose", [columns], perm=(2, 1, 0))
    yield sample("Concat", [line, normal(1), line], axis=0)
    yield sample("Pad", [columns, np.array([0, 2, 0, 1, 1, 0])], (1,))
    yield sample("Tile", [columns, np.array([1, 2, 3])], (1,))
    yield sample("Trilu", [square])
    picked = np.arange(n)[::-1].copy()
    yield sample("Gather", [columns, picked], axis=1)
    yield sample("ScatterND", [line, picked[:, None], line], reduction="add")
    yield sample("ScatterElements", [line, picked, line], reduction="max")
    yield sample("OneHot", [picked, scalar(n, np.int64), normal(2)], (1,))
    yield sample("QuantizeLinear", [columns, scalar(0.1), scalar(3, np.uint8)])
    for dtype in (float32, float16):
        a, b = normal(7, n).astype(dtype), normal(n, 5).astype(dtype)
        yield sample("MatMul", [square.astype(dtype), normal(n, 3).astype(dtype)])
        if n:
            yield sample("Gemm", [a, b, normal(5).astype(dtype)], (1, 2))
            yield sample("Gemm", [b, a], transA=1, transB=1)
    if n:
        image = normal(1, 3, 5, n)
        yield sample("MaxPool", [image], kernel_shape=(3, 3), pads=(1, 1, 1, 1))
        yield sample("Conv", [image, normal(4, 3, 3, 3)], (1,), pads=(1, 1, 1, 1))
        yield sample(
            "Conv", [image.astype(float16), normal(4, 3, 3, 3).astype(float16)], pads=(1,) * 4
        )
        yield sample("ConvTranspose", [image, normal(3, 2, 3, 3)], (1,), strides=(2, 2))
        sizes = np.array([1.0, 1.0, 1.5, 0.7 if n > 1 else 2.0], np.float32)
        yield sample("Resize", [image, None, sizes], (2,), mode="linear")
        yield sample("Attention", [normal(1, 2, 3, 8), normal(1, 2, n, 8), normal(1, 2, n, 8)])
        yield sample("LSTM", [normal(2, 1, n), normal(1, 12, n), normal(1, 12, 3)], outputs=3)
