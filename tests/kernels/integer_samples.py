"""Graphs of one node for products of bytes, all of which must be exact."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from tercet.runtime.ir.dtypes import DType, float16, float32, int8, uint8
from tercet.runtime.ir.types import Array

from .dry import normal
from .samples import Sample, sample, scalar

TYPES = [(uint8, int8), (int8, uint8), (uint8, uint8), (int8, int8)]


def integers(dtype: DType, *shape: int) -> Array:
    """Return integers of the whole range, the same every time."""
    low, high = (0, 256) if dtype == uint8 else (-128, 128)
    return np.random.default_rng(sum(shape)).integers(low, high, shape).astype(dtype)


def scales(*shape: int) -> Array:
    """Return positive scales."""
    return (0.01 + np.random.default_rng(prod(shape)).random(shape)).astype(np.float32)


def product(
    a: tuple[int, ...],
    b: tuple[int, ...],
    zeros: tuple[Any, ...] = (),
    types: tuple[DType, DType] = (uint8, int8),
    *,
    constant: tuple[int, ...] = (1,),
) -> Sample:
    """Return a MatMulInteger; zero points are numbers, or the shape of several."""
    points = [
        integers(t, *z) if isinstance(z, tuple) else scalar(z, t)
        for z, t in zip(zeros, types, strict=False)
    ]
    inputs = [integers(types[0], *a), integers(types[1], *b), *points]
    return sample("MatMulInteger", inputs, constant)


def quantized_product(
    a: tuple[int, ...],
    b: tuple[int, ...],
    *,
    by_row: bool = False,
    constant: bool = True,
    scale_type: DType = float32,
) -> Sample:
    """Return a QLinearMatMul with parameters for each column, and perhaps for each row."""
    rows, columns = (a[-2:-1] if by_row else ()), b[-1:]
    steps = [one.astype(scale_type) for one in (scales(*rows), scales(*columns))]
    inputs = [
        *(integers(uint8, *a), steps[0], np.asarray(integers(uint8, *rows))),
        *(integers(int8, *b), steps[1], integers(int8, *columns)),
        *(
            (scales(*rows) * np.float32(a[-1])).astype(scale_type),
            np.asarray(integers(int8, *rows)),
        ),
    ]
    return sample("QLinearMatMul", inputs, (3, 4, 5) if constant else ())


def convolved(
    x: tuple[int, ...],
    w: tuple[int, ...],
    zeros: tuple[Any, Any] = (100, 0),
    types: tuple[DType, DType] = (uint8, int8),
    **attributes: Any,
) -> Sample:
    """Return a ConvInteger."""
    points = [scalar(zeros[0], types[0]), np.asarray(zeros[1], types[1])]
    inputs = [integers(types[0], *x), integers(types[1], *w), *points]
    return sample("ConvInteger", inputs, (1, 3), **attributes)


def quantized_convolution(
    x: tuple[int, ...], w: tuple[int, ...], *, shifted: bool = False, **attributes: Any
) -> Sample:
    """Return a QLinearConv with a bias and a scale for each filter."""
    step = np.float32(prod(w[1:]) ** 0.5 * 8)
    inputs = [
        *(integers(uint8, *x), scales(), scalar(77, uint8)),
        *(integers(int8, *w), scales(w[0])),
        integers(int8, w[0]) if shifted else np.zeros(w[0], np.int8),
        *(scales() * step, scalar(3, uint8)),
        integers(int8, w[0]).astype(np.int32) * 50,
    ]
    return sample("QLinearConv", inputs, (3, 5, 8), **attributes)


def samples() -> list[Sample]:
    """Return all of them."""
    return [*products(), *convolutions(), *ranges()]


def products() -> Iterator[Sample]:
    """Yield products of all types, at sizes beside those of tiles and words."""
    sizes = [(1, 1, 4), (15, 17, 16), (33, 31, 100), (64, 65, 128), (7, 130, 516), (100, 3, 36)]
    for i, (m, n, k) in enumerate(sizes):
        yield product((m, k), (k, n), (13, 7), TYPES[i % 4])
        yield product((m, k), (k, n), (13,), TYPES[(i + 1) % 4])
    yield product((9, 64), (64, 40))
    yield product((9, 64), (64, 40), ((9,), (40,)))
    yield product((2, 3, 9, 64), (64, 40), (5, (40,)))
    yield product((2, 9, 64), (64, 40), ((9,), 0))
    yield product((64,), (64, 40), (5, 6))
    for k, n in ((4, 1), (60, 33), (132, 70)):
        yield product((3, 17, k), (3, k, n), (9, -4), constant=())
    yield product((3, 1, 16, 64), (64, 33), (9, (33,)), (int8, int8), constant=())
    yield product((16, 64), (5, 64, 33), (9, 0), (int8, uint8), constant=())
    yield product((2, 40000), (40000, 3), (255, 0), (uint8, uint8))  # beyond 32 bits
    yield quantized_product((33, 100), (100, 31))
    yield quantized_product((17, 64), (64, 40), by_row=True)
    yield quantized_product((9, 64), (64, 40), scale_type=float16)
    yield quantized_product((2, 3, 17, 64), (2, 3, 64, 24), constant=False)


def convolutions() -> Iterator[Sample]:
    """Yield convolutions with borders of zero points, of every kind of image."""
    pads: dict[str, Any] = {"pads": (1, 1, 1, 1)}
    for types in TYPES:
        yield convolved((2, 16, 7, 9), (20, 16, 3, 3), (100, 3), types, **pads)
    yield convolved((1, 12, 7, 9), (8, 12, 3, 3), (100, np.arange(8)), **pads, strides=(2, 2))
    yield convolved((1, 24, 9, 9), (8, 24, 2, 3), (3, 0), dilations=(2, 1), pads=(0, 2, 1, 0))
    yield convolved((2, 4, 31), (17, 4, 5), (200, 1), pads=(2, 2))
    yield convolved((1, 32, 9, 9), (24, 16, 3, 3), (9, np.arange(24) - 12), group=2, **pads)
    yield convolved((1, 3, 12, 11), (9, 3, 7, 7), (100, 0), strides=(2, 2), pads=(3,) * 4)
    yield convolved((1, 6, 8, 8), (9, 6, 3, 3), (100, 0), **pads)
    yield convolved((1, 6, 8, 8), (9, 6, 3, 3), (100, 5), **pads)
    yield quantized_convolution((2, 16, 9, 9), (40, 16, 3, 3), **pads)
    yield quantized_convolution((2, 16, 9, 9), (40, 16, 1, 1), strides=(2, 2), shifted=True)
    yield quantized_convolution((1, 128, 7, 7), (64, 128, 3, 3), shifted=True, **pads)
    yield quantized_convolution((1, 16, 9, 9), (16, 1, 3, 3), group=16, shifted=True, **pads)
    yield quantized_convolution((2, 12, 9, 7), (12, 1, 3, 3), group=12, **pads)
    yield quantized_convolution(
        (1, 8, 9, 6), (8, 1, 5, 2), group=8, strides=(2, 1), pads=(0, 2, 3, 1)
    )
    yield quantized_convolution((2, 8, 9, 9), (8, 1, 3, 3), group=8, dilations=(2, 3))


def ranges() -> Iterator[Sample]:
    """Yield quantizations by the range of what several blocks read."""
    x = normal(3, 50, 41)
    x[1, 7, 3], x[2, 49, 40] = -9, 11
    yield sample("DynamicQuantizeLinear", [x], outputs=3)
    yield sample("DynamicQuantizeLinear", [np.abs(x)], outputs=3)
