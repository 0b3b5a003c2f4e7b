"""Quantization, and products of integers: exact sums in floats wide enough, for BLAS has no other.

A sum of n products of two differences of bytes is below n * 255 * 255 in magnitude. Up to 2**24
float32 holds it exactly, up to 2**53 float64 does.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ....runtime.ir.dtypes import (
    INTEGERS,
    DType,
    float8e8m0,
    float32,
    float64,
    int32,
    int64,
    uint8,
)
from ....runtime.ir.types import Array
from ....runtime.ops.quantize import (
    ConvInteger,
    DequantizeLinear,
    DynamicQuantizeLinear,
    MatMulInteger,
    QLinearConv,
    QLinearMatMul,
    QuantizeLinear,
)
from ....runtime.ops.window import window
from ..engine.registry import kernel
from ..numerics.convert import convert, round_to_integer
from ..windows.columns import windows

# ── to integers and back ─────────────────────────────────────────────────────────────────────────


def _spread(parameter: Array, shape: tuple[int, ...], axis: int, block_size: int) -> Array:
    """Return a scale or zero point such that it broadcasts to `shape`."""
    if parameter.size == 1 and not block_size:
        return parameter.reshape(())
    axis = 0 if len(shape) == 1 else axis % len(shape)
    if not block_size:
        return parameter.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.take(parameter, np.arange(shape[axis]) // block_size, axis)


def _saturated(ratio: Array, zero_point: Array | None, to: DType, saturate: bool = True) -> Array:
    """Return round(ratio) + zero_point within the range of `to`; floats are not rounded first."""
    wide = ratio if ratio.dtype == float64 else ratio.astype(float32, copy=False)
    if to in INTEGERS:
        wide = np.rint(wide)
    if zero_point is not None:
        wide = wide + zero_point.astype(wide.dtype, copy=False)
    return round_to_integer(wide, to) if to in INTEGERS else convert(wide, to, saturate=saturate)


@kernel(QuantizeLinear)
def quantize_linear(
    op: QuantizeLinear, x: Array, scale: Array, zero_point: Array | None = None
) -> Array:
    """Return saturate(round(x / scale) + zero_point)."""
    to = op.output_dtype or (uint8 if zero_point is None else zero_point.dtype)
    dtype = op.precision or scale.dtype
    dtype = {float8e8m0: float32, int32: float64}.get(dtype, dtype)
    divisor = _spread(scale, x.shape, op.axis, op.block_size).astype(dtype, copy=False)
    if zero_point is not None:
        zero_point = _spread(zero_point, x.shape, op.axis, op.block_size)
    return _saturated(x.astype(dtype, copy=False) / divisor, zero_point, to, bool(op.saturate))


@kernel(DequantizeLinear)
def dequantize_linear(
    op: DequantizeLinear, x: Array, scale: Array, zero_point: Array | None = None
) -> Array:
    """Return (x - zero_point) * scale."""
    wide = x if x.dtype in INTEGERS else x.astype(float32)
    if zero_point is not None:
        wide = wide.astype({int32: int64}.get(x.dtype, int32) if x.dtype in INTEGERS else float32)
        wide = wide - _spread(zero_point, x.shape, op.axis, op.block_size).astype(wide.dtype)
    factor = _spread(scale, x.shape, op.axis, op.block_size).astype(float32, copy=False)
    return convert(wide.astype(float32, copy=False) * factor, op.output_dtype or scale.dtype)


@kernel(DynamicQuantizeLinear)
def dynamic_quantize_linear(op: DynamicQuantizeLinear, x: Array) -> tuple[Array, Array, Array]:
    """Quantize to uint8 by the range of `x` and 0; the scale of zeros alone is 1."""
    low, high = x.min(initial=0), x.max(initial=0)
    scale = np.asarray(high - low, float32) / np.float32(255)
    scale = np.where(scale == 0, np.float32(1), scale)
    zero_point = round_to_integer(-low / scale, uint8)
    return _saturated(x / scale, zero_point, uint8), scale, zero_point


# ── products ─────────────────────────────────────────────────────────────────────────────────────


def _exact(rows: int) -> DType:
    """Return the dtype that holds sums of `rows` products of bytes."""
    return float32 if rows * 255 * 255 <= 1 << 24 else float64


def _centred(x: Array, zero_point: Array | None, dtype: DType) -> Array:
    """Return x - zero_point."""
    wide = x.astype(dtype)
    return wide if zero_point is None else wide - zero_point.astype(dtype)


def _wrapped(sums: Array) -> Array:
    """Return exact sums as int32, where they wrap around."""
    return sums.astype(int64).astype(int32)


def _by_filter(parameter: Array | None, rank: int) -> Array | None:
    """Return one element, or one per filter, such that it broadcasts to weights of `rank` axes."""
    return None if parameter is None else parameter.reshape(-1, *[1] * (rank - 1))


def _convolved(
    op: QLinearConv | ConvInteger,
    x: Array,
    w: Array,
    x_zero_point: Array | None,
    w_zero_point: Array | None,
) -> Array:
    """Return the convolution of x - x_zero_point with w - w_zero_point, exactly."""
    dtype = _exact(prod(w.shape[1:]))
    weights = _centred(w, _by_filter(w_zero_point, w.ndim), dtype)
    weights = weights.reshape(op.group, len(w) // op.group, prod(w.shape[1:]))
    geometry = window(op, x.shape[2:], w.shape[2:])
    borders = zip(geometry.pads_begin, geometry.pads_end, strict=True)
    x_zero_point = None if x_zero_point is None else x_zero_point.reshape(())
    padded = np.pad(_centred(x, x_zero_point, dtype), [(0, 0), (0, 0), *borders])
    result = np.empty((len(x), *weights.shape[:2], prod(geometry.output)), dtype)
    for image, target in zip(padded, result, strict=True):
        columns = windows(image, geometry, geometry.output)
        np.matmul(weights, columns.reshape(op.group, weights.shape[2], -1), out=target)
    return result.reshape(len(x), len(w), *geometry.output)


@kernel(ConvInteger)
def conv_integer(
    op: ConvInteger,
    x: Array,
    w: Array,
    x_zero_point: Array | None = None,
    w_zero_point: Array | None = None,
) -> Array:
    """Convolve integers into int32."""
    return _wrapped(_convolved(op, x, w, x_zero_point, w_zero_point))


@kernel(QLinearConv)
def qlinear_conv(
    op: QLinearConv,
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    w: Array,
    w_scale: Array,
    w_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    b: Array | None = None,
) -> Array:
    """Convolve integers and quantize the sums."""
    sums = _wrapped(_convolved(op, x, w, x_zero_point, w_zero_point))
    if b is not None:
        sums += b.reshape(-1, *[1] * (x.ndim - 2))
    by_filter = w_scale.reshape(-1, *[1] * (x.ndim - 2))
    factor = x_scale.reshape(()) * by_filter / y_scale.reshape(())
    return _saturated(sums.astype(float32) * factor, y_zero_point, y_zero_point.dtype)


def _by_row(parameter: Array) -> Array:
    """Return one element, or one per row, such that it broadcasts to matrices."""
    return parameter.reshape(-1, 1) if parameter.ndim == 1 else parameter


def _product(a: Array, b: Array, a_zero_point: Array | None, b_zero_point: Array | None) -> Array:
    """Return the matrix product of a - a_zero_point and b - b_zero_point, exactly for integers."""
    dtype = _exact(a.shape[-1])
    rows = None if a_zero_point is None else _by_row(a_zero_point)
    wide = _centred(a, rows, dtype).reshape(a.shape), _centred(b, b_zero_point, dtype)
    return np.matmul(*wide)


@kernel(MatMulInteger)
def matmul_integer(
    op: MatMulInteger,
    a: Array,
    b: Array,
    a_zero_point: Array | None = None,
    b_zero_point: Array | None = None,
) -> Array:
    """Multiply matrices of integers into int32."""
    return _wrapped(_product(a, b, a_zero_point, b_zero_point))


@kernel(QLinearMatMul)
def qlinear_matmul(
    op: QLinearMatMul,
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
) -> Array:
    """Multiply quantized matrices and quantize the sums."""
    sums = _product(a, b, a_zero_point, b_zero_point)
    if a.dtype in INTEGERS and b.dtype in INTEGERS:
        sums = _wrapped(sums)
    scales = (_by_row(a_scale), b_scale, _by_row(y_scale))
    of_a, of_b, of_y = (scale.astype(float32) for scale in scales)
    ratio = sums.astype(float32) * (of_a * of_b / of_y)
    shifted = _saturated(ratio, _by_row(y_zero_point), y_zero_point.dtype)
    return shifted.reshape(sums.shape)
