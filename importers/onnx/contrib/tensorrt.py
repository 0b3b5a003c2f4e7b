"""TensorRT's operators for narrow formats, which NVIDIA's Model Optimizer writes.

They are ONNX's QuantizeLinear and DequantizeLinear with other defaults. The dynamic ones
also compute the scale of each block, from its largest magnitude.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ....runtime.ir import dtypes
from ....runtime.ir.dtypes import TO_ONNX
from .builder import NodeBuilder
from .catalogue import TENSORRT
from .declaration import Float32, Kind, Results, T, contrib

#: The largest numbers of float8e4m3fn and float4e2m1.
_FLOAT8, _FLOAT4 = 448, 6

Float8 = Annotated[str, Kind("Q", frozenset({dtypes.float8e4m3fn}))]
Int4 = Annotated[str, Kind("Q", frozenset({dtypes.int4, dtypes.uint4}))]
_INTEGERS = frozenset({dtypes.int4, dtypes.uint4, dtypes.int8, dtypes.uint8})
Int8 = Annotated[str, Kind("Q", _INTEGERS)]
#: The weights of what PyTorch exports of a quantized module are floats at first.
Weights = Annotated[
    str,
    Kind(
        "Q",
        _INTEGERS,
        "weights that Model Optimizer has not packed yet: INT4QuantExporter of "
        "modelopt.onnx.export writes them as int4",
    ),
]
Exponents = Annotated[str, Kind("E", frozenset({dtypes.uint8, dtypes.float8e8m0}))]


@contrib("TRT_FP8QuantizeLinear", domain=TENSORRT)
def quantize_float8(b: NodeBuilder, x: T, scale: T) -> str:
    """Quotients x / scale in float8e4m3fn, with one scale."""
    return b.QuantizeLinear(x, scale, output_dtype=TO_ONNX[dtypes.float8e4m3fn])


@contrib("TRT_FP8DequantizeLinear", domain=TENSORRT)
def dequantize_float8(b: NodeBuilder, x: Float8, scale: T) -> str:
    """Products of x and its one scale."""
    return b.DequantizeLinear(x, scale)


@contrib("TRT_INT4QuantizeLinear", domain=TENSORRT)
def quantize_int4(
    b: NodeBuilder,
    x: T,
    scale: T,
    zero_point: Int4 | None = None,
    *,
    axis: int | None = None,
    block_size: int | None = None,
) -> str:
    """Quotients x / scale in int4, in blocks."""
    axis, block_size = _blocks(b, x, scale, axis, block_size)
    dtype = TO_ONNX[dtypes.int4] if zero_point is None else None
    return b.QuantizeLinear(
        x, scale, zero_point, axis=axis, block_size=block_size, output_dtype=dtype
    )


@contrib("DequantizeLinear", "TRT_INT4DequantizeLinear", domain=TENSORRT)
def dequantize_integers(
    b: NodeBuilder,
    x: Weights,
    scale: T,
    zero_point: Int8 | None = None,
    *,
    axis: int | None = None,
    block_size: int | None = None,
) -> str:
    """Products of x and the scale of its block."""
    axis, block_size = _blocks(b, x, scale, axis, block_size)
    return b.DequantizeLinear(x, scale, zero_point, axis=axis, block_size=block_size)


@contrib("TRT_MXFP8DynamicQuantize", outputs=(2, 2), domain=TENSORRT)
def quantize_mxfp8(
    b: NodeBuilder,
    x: T,
    *,
    axis: int = -1,
    block_size: int = 32,
    output_dtype: int = TO_ONNX[dtypes.float8e4m3fn],
) -> Results:
    """Quotients x / 2 ** (e - 127) in float8e4m3fn, and e per block in uint8.

    Each e is the smallest with which the block fits into the format.
    """
    wide = b.cast(x, dtypes.float32)
    ratio = b.Div(_largest(b, wide, axis, block_size), b.number(_FLOAT8, wide))
    bits = b.BitCast(ratio, to=TO_ONNX[dtypes.uint32])
    mantissa = np.finfo(np.float32).nmant
    rounded = b.Add(bits, b.constant(np.array(2**mantissa - 1, np.uint32)))
    shift = b.constant(np.array(mantissa, np.uint32))
    exponents = b.cast(b.BitShift(rounded, shift, direction="RIGHT"), dtypes.uint8)
    how = {"axis": axis, "block_size": block_size, "output_dtype": output_dtype}
    return b.QuantizeLinear(wide, _powers(b, exponents), **how), exponents


@contrib("TRT_MXFP8DequantizeLinear", domain=TENSORRT)
def dequantize_mxfp8(
    b: NodeBuilder,
    x: Float8,
    exponents: Exponents,
    *,
    axis: int = -1,
    block_size: int = 32,
    output_dtype: int = TO_ONNX[dtypes.float32],
) -> str:
    """Products x * 2 ** (e - 127), with one exponent e per block."""
    scale = _powers(b, exponents)
    return b.DequantizeLinear(x, scale, axis=axis, block_size=block_size, output_dtype=output_dtype)


@contrib("TRT_FP4DynamicQuantize", outputs=(2, 2), domain=TENSORRT)
def quantize_nvfp4(
    b: NodeBuilder,
    x: T,
    scale: Float32,
    *,
    axis: int = -1,
    block_size: int = 16,
    scale_type: int = TO_ONNX[dtypes.float8e4m3fn],
) -> Results:
    """Quotients x / (scale * s) in float4e2m1, and s per block in float8e4m3fn.

    Each s is the largest magnitude of the block, divided by that of the format and by scale.
    """
    wide = b.cast(x, dtypes.float32)
    largest = b.Div(_largest(b, wide, axis, block_size), b.number(_FLOAT4, wide))
    blocks = b.Cast(b.Div(largest, scale), to=scale_type)
    unit = b.Mul(b.cast(blocks, dtypes.float32), scale)
    zero, one = b.number(0, wide), b.number(1, wide)
    unit = b.Where(b.Equal(unit, zero), one, unit)
    how = {"axis": axis, "block_size": block_size, "output_dtype": TO_ONNX[dtypes.float4e2m1]}
    return b.QuantizeLinear(wide, unit, **how), blocks


def _powers(b: NodeBuilder, exponents: str) -> str:
    """Return 2 ** (e - 127) in float32."""
    if b.known_dtype(exponents) != dtypes.float8e8m0:
        exponents = b.BitCast(exponents, to=TO_ONNX[dtypes.float8e8m0])
    return b.cast(exponents, dtypes.float32)


def _largest(b: NodeBuilder, x: str, axis: int, block_size: int) -> str:
    """Return the largest magnitude of each block."""
    rank = b.rank(x)
    if not -rank <= axis < rank or block_size < 1:
        raise b.error(f"axis={axis} and block_size={block_size} do not fit {b.type(x)}")
    axis %= rank
    sizes = [b.size(x, i) for i in range(rank)]
    blocks = b.reshape(b.Abs(x), *sizes[:axis], -1, block_size, *sizes[axis + 1 :])
    return b.ReduceMax(blocks, b.ints(axis + 1), keepdims=0)


def _blocks(
    b: NodeBuilder, x: str, scale: str, axis: int | None, block_size: int | None
) -> tuple[int | None, int | None]:
    """Return axis and size of blocks; if left out, they follow from the shape of the scales."""
    sizes, counts = b.dims(x), b.dims(scale)
    if block_size is not None or not sizes or not counts or len(sizes) != len(counts):
        return axis, block_size
    found = [(i, n, m) for i, (n, m) in enumerate(zip(sizes, counts, strict=True)) if n != m]
    (axis, size, count), *more = found or [(axis or 0, 1, 1)]
    if more or not isinstance(size, int) or not isinstance(count, int):
        raise b.error(f"a scale of {b.type(scale)} has no blocks of {b.type(x)} along one axis")
    return axis, -(-size // count)
