"""Weights of inverted residuals in the order of `inverted_residual.cu`, packed on the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....runtime.ir.dtypes import DType
from ....runtime.ir.types import Array
from ..gemm.f16x3 import TOP, cut, exponents, scales_of
from ..recipe.operands import ceil_div


def pitch(elements: int, itemsize: int) -> int:
    """Return the bytes between rows in shared memory: an odd number of words of 16."""
    return (elements * itemsize // 16 | 1) * 16


def pack_weights(*arrays: Array, chunk: int, width: int, biases: tuple[bool, ...]) -> Array:
    """Return the weights of all chunks, each in the order of shared memory.

    That is, rows of the expansion with its biases, if there is one; then rows of the projection, if
    there is one, the windows and the biases of the depthwise convolution. In float32, rows are in
    halves, the scales of the expansion follow its biases, and those of the projection all chunks.

    Args:
        arrays: for each convolution its weights, and its bias if it has one; of a projection, the
            weights alone.
        chunk: expanded channels per chunk.
        width: rows of the projection.
        biases: whether convolutions before the projection have one.
    """
    dtype = arrays[0].dtype
    layers, left = layers_of(arrays, biases)
    windows, shift = layers[-1]
    hidden = len(windows)
    count = ceil_div(hidden, chunk) * chunk
    projection = left.pop().reshape(-1, hidden) if left else np.zeros((0, hidden), dtype)
    wide = dtype == np.float32
    taps = window_taps(windows[:, 0], count) if wide else window_pairs(windows[:, 0], count)
    scaling = exponents(projection) if wide else None
    second, parts = padded_floats(shift, count), list[Array]()
    for begin in range(0, count, chunk):
        here = slice(begin, begin + chunk)
        for w, b in layers[:-1]:
            matrix = w.reshape(hidden, -1)[here]
            columns = ceil_div(matrix.shape[1], 16) * 16
            parts += [
                projection_rows(matrix, chunk, columns, exponents(matrix) if wide else None),
                padded_floats(b, count)[here],
            ]
            if wide:
                parts.append(_scales(matrix, chunk))
        parts += [
            projection_rows(projection[:, here], width, chunk, scaling),
            taps[:, here],
            second[here],
        ]
    if wide and width:
        parts.append(_scales(projection, width))
    return joined(parts, dtype)


def layers_of(
    arrays: Sequence[Array], biases: Sequence[bool]
) -> tuple[list[tuple[Array, Array]], list[Array]]:
    """Return weights and bias of each convolution but the projection, and what is left.

    Args:
        arrays: see `pack_weights`.
        biases: whether these convolutions have one; empty arrays stand for those they lack.
    """
    left = list(arrays)
    layers = [(left.pop(0), left.pop(0) if has_bias else np.zeros(0)) for has_bias in biases]
    return layers, left


def joined(parts: Sequence[Array], dtype: DType) -> Array:
    """Return the bytes of arrays of any types, one behind the other, as elements of a dtype."""
    return np.concatenate([np.ascontiguousarray(a).view(np.uint8).ravel() for a in parts]).view(
        dtype
    )


def window_taps(w: Array, channels: int) -> Array:
    """Return weights [c, height, width] of float32 as [element, channels], zero-padded."""
    found = np.zeros((w[0].size, channels), np.float32)
    found[:, : len(w)] = w.reshape(len(w), -1).T
    return found


def window_pairs(w: Array, channels: int) -> Array:
    """Return weights [c, height, width] as pairs of elements [pair, channels, 2] of 32 bits.

    A weight is in the upper half for odd channels. Pairs are those of the same column in two rows;
    if the number of rows is odd, neighbours in the last one, of which the last may be alone.

    Args:
        w: the weights, of 16 bits.
        channels: c or more; zero-padded.
    """
    count, height, width = w.shape
    bits = np.zeros((channels, height, width + 1), np.uint32)
    bits[:count, :, :width] = w.view(np.uint16)
    bits[1::2] <<= 16
    found = [bits[:, r : r + 2, s] for r in range(0, height - 1, 2) for s in range(width)]
    if height % 2:
        found += [bits[:, -1, s : s + 2] for s in range(0, width, 2)]
    return np.stack(found)


def projection_rows(matrix: Array, count: int, columns: int, scaling: Array | None = None) -> Array:
    """Return a matrix zero-padded to this many rows, which are `pitch(columns)` bytes apart.

    Args:
        matrix: the matrix.
        count: rows.
        columns: columns of a row.
        scaling: the exponents of the rows of a matrix in float32, which become their high parts and
            then their low parts.
    """
    filled = np.zeros((count, columns), matrix.dtype)
    filled[: matrix.shape[0], : matrix.shape[1]] = matrix
    found = np.zeros((count, pitch(columns, matrix.itemsize)), np.uint8)
    if scaling is not None:
        scaled = np.ldexp(filled[: len(matrix)], TOP + 1 - scaling[:, None])
        halves = np.zeros((count, 2, columns), np.float16)
        halves[: len(matrix), 0], halves[: len(matrix), 1] = cut(scaled)
        filled = halves.reshape(count, 2 * columns)
    found[:, : columns * matrix.itemsize] = filled.view(np.uint8)
    return found


def _scales(matrix: Array, count: int) -> Array:
    """Return the factors of the sums of a matrix's rows, padded with 1 to `count`."""
    found = np.ones(count, np.float32)
    found[: len(matrix)] = scales_of(matrix)[0, : len(matrix)]
    return found


def padded_floats(bias: Array, count: int) -> Array:
    """Return a bias in float32, zero-padded."""
    found = np.zeros(count, np.float32)
    found[: len(bias)] = bias
    return found
