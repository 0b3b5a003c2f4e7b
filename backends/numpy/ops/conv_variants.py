"""Col2Im, deformable and causal convolutions."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ....runtime.ir.dtypes import DType, float32, float64, string
from ....runtime.ir.types import Array
from ....runtime.ops.conv import CausalConvWithState, Col2Im, DeformConv
from ....runtime.ops.window import Window, window
from ..engine.registry import kernel
from ..numerics.interpolate import sampled, surrounded_by_zeros
from ..numerics.products import multiply


def _arithmetic(dtype: DType) -> DType:
    return float64 if dtype == float64 else float32


def _by_channel(b: Array, rank: int) -> Array:
    return b.reshape(-1, *[1] * (rank - 2))


def _folded(columns: Array, geometry: Window, size: tuple[int, ...]) -> Array:
    """Return the sums of overlapping windows at their positions in an image.

    Args:
        columns: the windows' elements [images, *kernel, *windows].
        geometry: of the windows.
        size: of the images.
    """
    padded = zip(geometry.pads_begin, size, geometry.pads_end, strict=True)
    image = np.zeros((len(columns), *map(sum, padded)), columns.dtype)
    for tap in np.ndindex(geometry.kernel):
        axes = zip(tap, geometry.dilations, geometry.output, geometry.strides, strict=True)
        places = [slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in axes]
        image[(slice(None), *places)] += columns[(slice(None), *tap)]
    shown = [slice(b, b + n) for b, n in zip(geometry.pads_begin, size, strict=True)]
    return image[(slice(None), *shown)]


@kernel(Col2Im)
def col2im(op: Col2Im, x: Array, image_shape: Array, block_shape: Array) -> Array:
    """Sum blocks into images."""
    if x.dtype == string:
        raise ValueError("strings cannot be added")
    size = tuple(image_shape.tolist())
    geometry = window(op, size, tuple(block_shape.tolist()))
    channels = x.shape[1] // prod(geometry.kernel)
    columns = x.reshape(len(x) * channels, *geometry.kernel, *geometry.output)
    return _folded(columns, geometry, size).reshape(len(x), channels, *size)


@kernel(DeformConv)
def deform_conv(
    op: DeformConv,
    x: Array,
    w: Array,
    offset: Array,
    b: Array | None = None,
    mask: Array | None = None,
) -> Array:
    """Sample at shifted positions and multiply by the weights."""
    dtype = _arithmetic(x.dtype)
    n, channels, *spatial = x.shape
    axes, filters = len(spatial), len(w)
    geometry = window(op, tuple(spatial), w.shape[2:])
    taps, output = prod(geometry.kernel), geometry.output
    count = prod(output)
    moved = offset.astype(dtype).reshape(n, op.offset_group, 1, taps, axes, *output)
    places = [
        surrounded_by_zeros(position.reshape(n, op.offset_group, 1, taps * count), size)
        for position, size in zip(_positions(geometry, moved), spatial, strict=True)
    ]
    grouped = x.astype(dtype).reshape(n, op.offset_group, channels // op.offset_group, *spatial)
    samples = sampled(grouped, places).reshape(*grouped.shape[:3], taps, count)
    if mask is not None:
        samples *= mask.reshape(n, op.offset_group, 1, taps, count)
    columns = samples.reshape(n, op.group, channels // op.group * taps, count)
    weights = w.astype(dtype).reshape(op.group, filters // op.group, prod(w.shape[1:]))
    result = multiply(weights, columns).reshape(n, filters, *output)
    if b is not None:
        result += _by_channel(b, x.ndim)
    return result.astype(x.dtype)


def _positions(geometry: Window, moved: Array) -> list[Array]:
    """Return the sampling positions along each axis: [n, groups, 1, taps, *output]."""
    axes = len(geometry.kernel)
    kernel_grid = np.indices(geometry.kernel).reshape(axes, -1, *[1] * axes)
    output_grid = np.indices(geometry.output)
    attributes = (geometry.strides, geometry.pads_begin, geometry.dilations)
    return [
        output_grid[i] * stride - pad + kernel_grid[i] * dilation + moved[:, :, :, :, i]
        for i, (stride, pad, dilation) in enumerate(zip(*attributes, strict=True))
    ]


@kernel(CausalConvWithState)
def causal_conv_with_state(
    op: CausalConvWithState,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    past_state: Array | None = None,
) -> tuple[Array, Array]:
    """Convolve each channel with its own past."""
    dtype = _arithmetic(x.dtype)
    size = weight.shape[2]
    past = np.zeros((*x.shape[:2], size - 1), x.dtype) if past_state is None else past_state
    signal = np.concatenate([past, x], 2)
    windows = sliding_window_view(signal.astype(dtype), size, 2)
    result = multiply(windows, weight.astype(dtype).reshape(-1, size, 1))[..., 0]
    if bias is not None:
        result += bias[:, np.newaxis]
    if op.activation != "none":
        result *= 0.5 * np.tanh(0.5 * result) + 0.5
    return result.astype(x.dtype), signal[:, :, signal.shape[2] - (size - 1) :]
