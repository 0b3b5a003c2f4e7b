"""Quantization, and products of integers, which must be exact."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import BFLOAT16, FLOAT16, FLOAT32, Array, Case, draw

BYTES = (np.uint8, np.int8)


def scales(seed: int, *shape: int, dtype: Any = FLOAT32, times: float = 1.0) -> Array:
    return np.asarray(times * (0.02 + 0.05 * np.abs(draw(seed, shape))), dtype)


def quantized(
    shape: tuple[int, ...], scale: Array, to: Any, *, zero: bool = True, **attributes: Any
) -> Case:
    points = (np.asarray(draw(3, scale.shape, to) // 4),) if zero else ()
    inputs = (draw(1, shape, scale.dtype), scale, *points)
    return Case("QuantizeLinear", inputs, attributes, constants=(1,), error=0)


def odd_numbers(dtype: Any) -> Case:
    """NaN and infinities, which have no place among integers; see docs/rulings.md."""
    numbers = np.array([np.nan, np.inf, -np.inf, 1, -1] * 7, FLOAT32)
    inputs = (numbers, np.array(0.5, FLOAT32), np.array(5, dtype))
    return Case("QuantizeLinear", inputs, {}, constants=(1, 2), error=0)


def of_no_range(x: Array) -> tuple[Array, Array, Array]:
    """What there is of a range with NaN; see docs/rulings.md."""
    return np.zeros(x.shape, np.uint8), np.array(np.nan, FLOAT32), np.array(0, np.uint8)


def dequantized(
    shape: tuple[int, ...], scale: Array, dtype: Any, *, zero: bool = True, **attributes: Any
) -> Case:
    points = (draw(3, scale.shape, dtype),) if zero else ()
    inputs = (draw(1, shape, dtype), scale, *points)
    return Case("DequantizeLinear", inputs, attributes, constants=(1,), error=1)


def qlinear_conv(
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    dtype: Any = np.uint8,
    *,
    per_filter: bool = True,
    bias: bool = True,
    **attributes: Any,
) -> Case:
    m = (weight[0],) if per_filter else ()
    point = draw(5, (), dtype)
    inputs = (
        draw(1, shape, dtype), scales(2), point, draw(3, weight, np.int8), scales(4, *m),
        np.zeros(m, np.int8), scales(6, times=30), draw(7, (), dtype),
    )  # fmt: skip
    if bias:
        inputs = (*inputs, draw(8, (weight[0],), np.int16).astype(np.int32))
    return Case("QLinearConv", inputs, attributes, error=0)


def integer(op: str, a: tuple[int, ...], b: tuple[int, ...], *points: Any, **more: Any) -> Case:
    inputs = (draw(1, a, np.uint8), draw(2, b, np.int8))
    zeros = tuple(np.asarray(p, x.dtype) for p, x in zip(points, inputs, strict=False))
    return Case(op, (*inputs, *zeros), more, error=0)


def qlinear_matmul(a: tuple[int, ...], b: tuple[int, ...], dtype: Any = np.uint8) -> Case:
    inputs = (
        draw(1, a, dtype), scales(2), draw(3, (), dtype), draw(4, b, np.int8), scales(5),
        draw(6, (), np.int8), scales(7, times=30), draw(8, (), dtype),
    )  # fmt: skip
    return Case("QLinearMatMul", inputs, error=0)


QUANTIZE = [
    *(quantized((2, 3, 4), scales(2), to) for to in (*BYTES, np.uint16, np.int16)),
    *(quantized((2, 3, 4), scales(2, 3), to, axis=1) for to in BYTES),
    quantized((2, 3, 4), scales(2, 4), np.int8, axis=-1),
    quantized((2, 3, 4), scales(2, 2, 2, 4), np.int8, axis=1, block_size=2),
    quantized((2, 3, 4), scales(2), np.uint8, zero=False),
    quantized((2, 3, 4), scales(2, times=1e-4), np.int8),
    Case("DynamicQuantizeLinear", (draw(1, (3, 5)),), outputs=3, error=0),
    Case("DynamicQuantizeLinear", (np.abs(draw(1, (3, 5))) + 1,), outputs=3, error=0),
    Case("DynamicQuantizeLinear", (np.zeros((3, 5), np.float32),), outputs=3, error=0),
    Case("DynamicQuantizeLinear", (np.array(2.5, np.float32),), outputs=3, error=0),
    Case(
        "DynamicQuantizeLinear",
        (np.array([1, np.nan, -1], np.float32),),
        {},
        of_no_range,
        outputs=3,
        error=0,
    ),
]
DEQUANTIZE = [
    *(dequantized((2, 3, 4), scales(2), to) for to in (*BYTES, np.uint16, np.int16)),
    *(dequantized((2, 3, 4), scales(2, 3), to, axis=1) for to in BYTES),
    dequantized((2, 3, 4), scales(2), np.int32, zero=False),
    dequantized((2, 3, 4), scales(2, 2, 3, 2), np.int8, axis=-1, block_size=2),
    dequantized((2, 3, 4), scales(2, dtype=FLOAT16), np.int8),
    dequantized((2, 3, 4), scales(2, dtype=BFLOAT16), np.int8),
]
CONV = [
    qlinear_conv((1, 3, 8, 9), (4, 3, 3, 3), pads=(1, 1, 1, 1)),
    qlinear_conv((2, 3, 8, 9), (4, 3, 3, 3), np.int8, strides=(2, 2)),
    qlinear_conv((1, 6, 8, 9), (6, 1, 3, 3), group=6, pads=(1, 1, 1, 1)),
    qlinear_conv((1, 6, 8, 9), (4, 3, 2, 3), group=2, dilations=(2, 1)),
    qlinear_conv((1, 64, 8, 9), (8, 64, 3, 3), auto_pad="SAME_UPPER"),
    qlinear_conv((1, 3, 8, 9), (4, 3, 1, 1), per_filter=False, bias=False),
    qlinear_conv((1, 3, 12), (4, 3, 3)),
    integer("ConvInteger", (1, 3, 8, 9), (4, 3, 3, 3), 17),
    integer("ConvInteger", (1, 3, 8, 9), (4, 3, 3, 3), 17, pads=(1, 0, 1, 0)),
]
MATMUL = [
    qlinear_matmul((3, 5), (5, 4)),
    qlinear_matmul((2, 3, 5), (2, 5, 4), np.int8),
    qlinear_matmul((3, 700), (700, 4)),
    integer("MatMulInteger", (3, 5), (5, 4)),
    integer("MatMulInteger", (3, 5), (5, 4), 7, 3),
    integer("MatMulInteger", (3, 5), (5, 4), 7, [1, -2, 3, 0]),
    integer("MatMulInteger", (2, 3, 700), (700, 4), 7, 3),
]
ODD = [odd_numbers(dtype) for dtype in (np.int8, np.uint8, np.int16, np.uint16)]
CASES = [*QUANTIZE, *ODD, *DEQUANTIZE, *CONV, *MATMUL]
