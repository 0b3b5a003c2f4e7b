"""Quantized products with float results, and lookups in quantized tables."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Float32, Index, Int32, Kind, contrib
from .quantized import Q, W

Half = Annotated[str, Kind("S", frozenset({dtypes.float32, dtypes.float16}))]
Y = Annotated[str, Kind("Y", frozenset({dtypes.int8, dtypes.uint8}))]
_SMALL_FLOATS = frozenset(
    {
        *(dtypes.float4e2m1, dtypes.float8e4m3fn, dtypes.float8e4m3fnuz),
        *(dtypes.float8e5m2, dtypes.float8e5m2fnuz),
    }
)
Codes = Annotated[str, Kind("B", frozenset({dtypes.uint8}))]
Table = Annotated[str, Kind("Q", _SMALL_FLOATS | {dtypes.int4, dtypes.uint4, dtypes.uint8})]
Scales = Annotated[str, Kind("S", frozenset({dtypes.float32, dtypes.float16, dtypes.bfloat16}))]


@contrib("MatMulNBitsQLoRA")
def mat_mul_n_bits_q_lora(
    b: NodeBuilder,
    x: Half,
    weights: Codes,
    scales: Half,
    lora_a: Codes,
    lora_a_scales: Half,
    lora_b: Codes,
    lora_b_scales: Half,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int = 32,
    lora_bits: int = 8,
    lora_block_size: int = 32,
) -> str:
    """MatMulNBits with an adapter of low rank, which is without effect if it is empty."""
    level = {"accuracy_level": accuracy_level}
    how = {"bits": bits, "block_size": block_size}
    y = b.own("MatMulNBits", x, weights, scales, K=K, N=N, **how, **level)
    rank = b.need_extent(lora_a, 0)
    if not rank or 0 in (b.dims(lora_b) or ()):
        return y
    how = {"bits": lora_bits, "block_size": lora_block_size}
    low = b.own("MatMulNBits", x, lora_a, lora_a_scales, K=K, N=rank, **how, **level)
    return b.Add(y, b.own("MatMulNBits", low, lora_b, lora_b_scales, K=rank, N=N, **how))


@contrib("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(
    b: NodeBuilder,
    a: Float32,
    weights: W,
    b_scale: Float32,
    b_zero_point: W | None = None,
    bias: Float32 | None = None,
) -> str:
    """A, quantized by its own range, times the weights, plus a bias."""
    quantized, scale, zero_point = b.several("DynamicQuantizeLinear", 3, a)
    y = _product(b, quantized, weights, zero_point, b_zero_point, b.Mul(scale, b_scale))
    return y if bias is None else b.Add(y, bias)


@contrib("MatMulIntegerToFloat")
def matmul_integer_to_float(
    b: NodeBuilder,
    a: Q,
    weights: W,
    a_scale: Half,
    b_scale: Half,
    a_zero_point: Q | None = None,
    b_zero_point: W | None = None,
    bias: Half | None = None,
) -> str:
    """Dequantized product of a and b, plus a bias."""
    scale = b.Mul(_single(b, a_scale, "a_scale"), b_scale)
    if a_zero_point is not None:
        a_zero_point = _single(b, a_zero_point, "a_zero_point")
    y = _product(b, a, weights, a_zero_point, b_zero_point, scale)
    return y if bias is None else b.Add(y, bias)


def _product(
    b: NodeBuilder, a: str, weights: str, zero: str | None, b_zero: str | None, scale: str
) -> str:
    """Return the sums of a quantized product times a scale, optionally per column."""
    sums = b.MatMulInteger(a, weights, zero, b_zero)
    if b.dtype(scale) == dtypes.float32:
        return b.Mul(b.cast(sums, dtypes.float32), scale)
    wide = b.Mul(b.cast(sums, dtypes.float32), b.cast(scale, dtypes.float32))
    return b.cast(wide, b.dtype(scale))


def _single(b: NodeBuilder, x: str, name: str) -> str:
    """Return a scalar; raise an error for a tensor with several elements."""
    shape = b.dims(x)
    if shape is not None and any(size != 1 for size in shape if isinstance(size, int)):
        raise b.unsupported(f"{name} is {b.type(x)}", "quantize A with one scale for all of it")
    return b.Reshape(x, b.constant(np.array([], np.int64))) if shape else x


@contrib("QGemm")
def q_gemm(
    b: NodeBuilder,
    a: Q,
    a_scale: Float32,
    a_zero_point: Q,
    weights: W,
    b_scale: Float32,
    b_zero_point: W,
    c: Int32 | None = None,
    y_scale: Float32 | None = None,
    y_zero_point: Y | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> str:
    """Dequantized alpha * a' @ b' + c, where c has the scale alpha * a_scale * b_scale."""
    left = b.transpose(a, 1, 0) if transA else a
    right = b.transpose(weights, 1, 0) if transB else weights
    b.rank(a, 2)
    b.rank(weights, 2)
    sums = b.MatMulInteger(left, right, _single(b, a_zero_point, "a_zero_point"), b_zero_point)
    if c is not None:
        sums = b.Add(sums, c)
    factor = b.scaled(b.Mul(_single(b, a_scale, "a_scale"), b_scale), alpha)
    y = b.Mul(b.cast(sums, dtypes.float32), factor)
    if y_scale is None:
        return y
    if y_zero_point is None:
        y_zero_point = b.constant(np.zeros((), b.known_dtype(a) or dtypes.uint8))
    return b.QuantizeLinear(y, y_scale, y_zero_point)


@contrib("GatherBlockQuantized")
def gather_block_quantized(
    b: NodeBuilder,
    data: Table,
    indices: Index,
    scales: Scales,
    zero_points: Table | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> str:
    """Rows of a quantized table, dequantized after the lookup.

    Out-of-range indices give zeros.
    """
    rank = b.rank(data)
    gather, along = (axis % rank for axis in (gather_axis, quantize_axis))
    is_packed, is_float = b.known_dtype(data) == dtypes.uint8, b.known_dtype(data) in _SMALL_FLOATS
    _check_table(b, (is_packed, is_float), bits, block_size, gather, along)
    if zero_points is not None and is_float:
        raise b.error(f"has zero points; data of {b.type(data)} have none")
    each = 8 // bits if is_packed else 1
    at, inside = _within(b, data, indices, gather)
    length = b.need_extent(data, along) * (each if along == rank - 1 else 1)
    blocks = np.arange(length) // (block_size or length)
    place = along if along < gather else along - 1 + b.rank(indices)

    def rows(x: str) -> str:
        """Return the block parameters of the elements of these rows."""
        if gather == along:
            return b.Gather(x, b.Gather(b.constant(blocks), at), axis=gather)
        found = b.Gather(x, b.Sub(at, at) if b.dim(x, gather) == 1 else at, axis=gather)
        return b.Gather(found, b.constant(blocks), axis=place)

    # Gather supports no sub-byte elements.
    near = {dtypes.int4: dtypes.int8, dtypes.uint4: dtypes.uint8, dtypes.uint8: dtypes.uint8}
    table = b.cast(data, near.get(b.dtype(data), dtypes.float16))
    y = _unpacked(b, b.Gather(table, at, axis=gather), each, bits)
    y = b.cast(y, dtypes.float32)
    if zero_points is not None:
        points = _unpacked(b, zero_points, each, bits)
        y = b.Sub(y, rows(b.cast(points, dtypes.float32)))
    elif is_packed:
        y = b.Sub(y, b.number(1 << (bits - 1), y))
    y = b.Mul(y, rows(b.cast(scales, dtypes.float32)))
    ones = (1,) * (rank - gather - 1)
    mask = b.reshape(inside, *(0 for _ in range(b.rank(indices))), *ones) if ones else inside
    return b.cast(b.Where(mask, y, b.number(0, y)), b.dtype(scales))


def _check_table(
    b: NodeBuilder, kind: tuple[bool, bool], bits: int, block_size: int, gather: int, along: int
) -> None:
    is_packed, is_float = kind
    is_whole = not block_size and is_float
    if not is_whole and (block_size < 16 or block_size & (block_size - 1)):
        raise b.error(f"block_size={block_size}; expected a power of two from 16 on")
    if not is_packed:
        return
    if bits not in (2, 4, 8):
        raise b.error(f"bits={bits}; expected 2, 4 or 8")
    if gather or gather == along:
        raise b.error(
            f"gather_axis={gather} and quantize_axis={along} of packed data; expected 0 and another"
        )


def _within(b: NodeBuilder, data: str, indices: str, axis: int) -> tuple[str, str]:
    """Return indices with out-of-range ones replaced by 0, and which are in range."""
    wide = b.cast(indices, dtypes.int64)
    size = b.size(data, axis)
    zero = b.constant(np.zeros((), np.int64))
    scalar = b.Reshape(size, b.constant(np.array([], np.int64)))
    at = b.Where(b.Less(wide, zero), b.Add(wide, scalar), wide)
    inside = b.And(b.GreaterOrEqual(at, zero), b.Less(at, scalar))
    return b.Where(inside, at, zero), inside


def _unpacked(b: NodeBuilder, x: str, each: int, bits: int) -> str:
    """Return unpacked integers; the last axis has `each` per byte, lowest bits first."""
    if each == 1:
        return x
    shifts = b.constant(np.arange(0, 8, bits, dtype=np.uint8))
    found = b.BitShift(b.Unsqueeze(x, b.ints(-1)), shifts, direction="RIGHT")
    found = b.BitwiseAnd(found, b.constant(np.array((1 << bits) - 1, np.uint8)))
    return b.reshape(found, *(0 for _ in range(b.rank(x) - 1)), -1)
