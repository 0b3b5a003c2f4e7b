"""Quantized pooling, convolution, softmax and mean."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Float32, Int32, Kind, contrib
from .quantized import Q, W, dequantized, last_channels, quantized

#: The dtype of a result, given by its zero point.
Y = Annotated[str, Kind("Y", frozenset({dtypes.int8, dtypes.uint8}))]


@contrib("QLinearSoftmax")
def q_linear_softmax(
    b: NodeBuilder,
    x: Q,
    x_scale: Float32,
    x_zero_point: Q | None,
    y_scale: Float32,
    y_zero_point: Q,
    *,
    axis: int = -1,
    opset: int,
) -> str:
    """Quantized softmax along `axis`; before opset 13 over all axes from there on."""
    values = dequantized(b, x, x_scale, x_zero_point)
    if opset < 13:
        axis += b.rank(x) if axis < 0 else 0
        y = b.reshape_like(b.Softmax(b.Flatten(values, axis=axis), axis=1), x)
    else:
        y = b.Softmax(values, axis=axis)
    return quantized(b, y, _whole_steps(b, y_scale), y_zero_point, x)


def _whole_steps(b: NodeBuilder, scale: str) -> str:
    """Return the scale of which a whole number makes 1: the next one that is not less."""
    known = b.value(scale)
    if known is None:
        return b.Reciprocal(b.Floor(b.Reciprocal(scale)))
    with np.errstate(divide="ignore"):
        return b.constant(np.asarray(1 / np.floor(1 / known), np.float32))


@contrib("QLinearReduceMean")
def q_linear_reduce_mean(
    b: NodeBuilder,
    data: Q,
    data_scale: Float32,
    data_zero_point: Q | None,
    reduced_scale: Float32,
    reduced_zero_point: Q | None = None,
    *,
    axes: tuple[int, ...],
    keepdims: int,
) -> str:
    """Quantized mean over some axes."""
    values = dequantized(b, data, data_scale, data_zero_point)
    y = b.ReduceMean(values, b.ints(*axes), keepdims=keepdims)
    return quantized(b, y, reduced_scale, reduced_zero_point, data)


@contrib("QLinearAveragePool")
def q_linear_average_pool(
    b: NodeBuilder,
    x: Q,
    x_scale: Float32,
    x_zero_point: Q | None,
    y_scale: Float32,
    y_zero_point: Q | None = None,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    kernel_shape: tuple[int, ...],
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> str:
    """Quantized AveragePool of [N, C, …], or [N, …, C] with `channels_last`."""
    values = last_channels(b, dequantized(b, x, x_scale, x_zero_point), channels_last)
    pooled = b.AveragePool(
        values,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        kernel_shape=kernel_shape,
        pads=pads or None,
        strides=strides or None,
    )
    y = last_channels(b, pooled, channels_last, back=True)
    return quantized(b, y, y_scale, y_zero_point, x)


@contrib("QLinearGlobalAveragePool")
def q_linear_global_average_pool(
    b: NodeBuilder,
    x: Q,
    x_scale: Float32,
    x_zero_point: Q,
    y_scale: Float32,
    y_zero_point: Q,
    *,
    channels_last: int = 0,
) -> str:
    """Quantized mean of each channel."""
    values = dequantized(b, x, x_scale, x_zero_point)
    rank = b.rank(x)
    axes = range(1, rank - 1) if channels_last else range(2, rank)
    return quantized(b, b.ReduceMean(values, b.ints(*axes)), y_scale, y_zero_point, x)


@contrib("QLinearConv")
def q_linear_conv(
    b: NodeBuilder,
    x: Q,
    x_scale: Float32,
    x_zero_point: Q,
    w: W,
    w_scale: Float32,
    w_zero_point: W,
    y_scale: Float32,
    y_zero_point: Y,
    bias: Int32 | None = None,
    *,
    auto_pad: str = "NOTSET",
    channels_last: int = 0,
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> str:
    """ONNX's operator on [N, C, …], or [N, …, C] with `channels_last`; weights are [M, C, …]."""
    y = b.QLinearConv(
        last_channels(b, x, channels_last),
        *(x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, bias),
        auto_pad=auto_pad,
        dilations=dilations or None,
        group=group,
        kernel_shape=kernel_shape or None,
        pads=pads or None,
        strides=strides or None,
    )
    return last_channels(b, y, channels_last, back=True)
