"""Operators of QONNX, which Brevitas exports: floats as integers of any number of bits.

QONNX's own implementation defines them.
"""

from __future__ import annotations

import numpy as np

from ....runtime.ir.dtypes import TO_ONNX, float32
from .builder import NodeBuilder
from .catalogue import QONNX
from .declaration import Anything, Float32, T, contrib

#: Bits of a float32: those of the mantissa, and the bias of the exponent.
_MANTISSA, _BIAS = 23, 127


def _rounded(b: NodeBuilder, x: str, mode: str) -> str:
    """Return `x` rounded to integers."""
    match mode.upper():
        case "ROUND" | "HALF_EVEN":
            return b.Round(x)
        case "CEIL":
            return b.Ceil(x)
        case "FLOOR":
            return b.Floor(x)
        case "UP":
            size = b.Ceil(b.Abs(x))
        case "DOWN":
            size = b.Floor(b.Abs(x))
        case "HALF_UP":
            size = b.Floor(b.Add(b.Abs(x), b.number(0.5, x)))
        case "HALF_DOWN":
            size = b.Ceil(b.Sub(b.Abs(x), b.number(0.5, x)))
        case _:
            raise b.error(
                f"rounding_mode='{mode}'; expected ROUND, CEIL, FLOOR, UP, DOWN or HALF_…"
            )
    return b.Mul(b.Sign(x), size)


def _clamped(b: NodeBuilder, x: str, bits: str, signed: int, narrow: int) -> str:
    """Return `x` limited to integers of `bits` bits."""
    one, two = b.number(1, x), b.number(2, x)
    bits = b.cast(bits, b.dtype(x))
    half = b.Pow(two, b.Sub(bits, one))
    if signed:
        low, high = b.Neg(half), b.Sub(half, one)
        low = b.Add(low, one) if narrow else low
    else:
        low, high = b.number(0, x), b.Sub(b.Mul(half, two), b.number(1 + bool(narrow), x))
    return b.Max(b.Min(x, high), low)


def _sign(b: NodeBuilder, x: str) -> str:
    """Return 1 for numbers from 0, and -1 for others."""
    zero, one = b.number(0, x), b.number(1, x)
    return b.Where(b.GreaterOrEqual(x, zero), one, b.Neg(one))


def quant(
    b: NodeBuilder,
    x: T,
    scale: T,
    zeropt: T,
    bitwidth: Anything,
    *,
    signed: int = 1,
    narrow: int = 0,
    narrow_range: int = 0,
    rounding_mode: str = "ROUND",
) -> str:
    """Integers of `bitwidth` bits, in units of `scale`; one signed bit is a sign."""
    whole = b.Add(b.Div(x, scale), zeropt)
    y = _rounded(b, _clamped(b, whole, bitwidth, signed, narrow or narrow_range), rounding_mode)
    if signed:
        bits = b.cast(bitwidth, b.dtype(x))
        y = b.Where(b.Equal(bits, b.number(1, x)), _sign(b, whole), y)
    return b.Mul(b.Sub(y, zeropt), scale)


def bipolar_quant(b: NodeBuilder, x: T, scale: T) -> str:
    """The scale with the sign of x; that of 0 is positive."""
    return b.Mul(_sign(b, x), scale)


def trunc(
    b: NodeBuilder,
    x: T,
    scale: T,
    zeropt: T,
    in_bitwidth: Anything,
    out: Anything,
    out_bitwidth: Anything | None = None,
    *,
    rounding_mode: str = "FLOOR",
    signed: int = 1,
    narrow: int = 0,
) -> str:
    """Integers without their lowest bits: version 1 keeps the scale, version 2 is given another."""
    whole = b.Round(b.Add(b.Div(x, scale), zeropt))
    two = b.number(2, x)
    if out_bitwidth is None:
        dropped = b.cast(b.Sub(in_bitwidth, out), b.dtype(x))
        y = _rounded(b, b.Div(whole, b.Pow(two, dropped)), rounding_mode)
        return b.Mul(b.Sub(y, zeropt), scale)
    ratio = b.Div(b.Log(b.Div(out, scale)), b.number(float(np.log(2)), x))
    step = b.Pow(two, b.Round(ratio))
    limited = _clamped(b, b.Div(whole, step), out_bitwidth, signed, narrow)
    return b.Mul(b.Sub(_rounded(b, limited, rounding_mode), b.Div(zeropt, step)), out)


def multi_threshold(
    b: NodeBuilder,
    x: T,
    thresholds: T,
    *,
    out_dtype: str,
    out_scale: float = 1.0,
    out_bias: float = 0.0,
    data_layout: str = "",
) -> str:
    """How many of its channel's thresholds [channels or 1, count] each element reaches."""
    rank = b.rank(x)
    layout = data_layout or {3: "NWC"}.get(rank, "")
    axis = layout.index("C") if "C" in layout else 1
    order = (*(i for i in range(rank) if i != axis), axis)
    last = b.Unsqueeze(b.transpose(x, *order), b.ints(-1))
    reached = b.cast(b.GreaterOrEqual(last, thresholds), b.dtype(x))
    count = b.ReduceSum(reached, b.ints(-1), keepdims=0)
    y = b.transpose(count, *(order.index(i) for i in range(rank)))
    return b.Add(b.Mul(y, b.number(out_scale, x)), b.number(out_bias, x))


def float_quant(
    b: NodeBuilder,
    x: Float32,
    scale: Float32,
    exponent_bitwidth: Float32,
    mantissa_bitwidth: Float32,
    exponent_bias: Float32,
    max_val: Float32,
    *,
    has_inf: int = 0,
    has_nan: int = 0,
    has_subnormal: int = 0,
    saturation: int = 1,
    rounding_mode: str = "ROUND",
) -> str:
    """Floats of few bits, in units of `scale`; those that are too large become the largest."""
    if not saturation:
        raise b.unsupported("saturation=0", "export with a saturating format")
    one, two = b.number(1, x), b.number(2, x)
    scaled = b.Div(x, scale)
    tiny = b.number(float(np.finfo(np.float32).tiny), x)
    bits = b.BitCast(b.Add(b.Abs(scaled), tiny), to=TO_ONNX[np.dtype(np.uint32)])
    shift = b.constant(np.array(_MANTISSA, np.uint32))
    exponent = b.cast(b.BitShift(bits, shift, direction="RIGHT"), float32)
    exponent = b.Sub(exponent, b.number(_BIAS, x))
    lowest = b.Sub(b.Sub(one, exponent_bias), mantissa_bitwidth)
    step = b.Pow(two, b.Max(b.Sub(exponent, mantissa_bitwidth), lowest))
    y = b.Mul(step, _rounded(b, b.Div(scaled, step), rounding_mode))
    top = b.Sub(b.Sub(b.Pow(two, exponent_bitwidth), one), exponent_bias)
    mantissa = b.Sub(two, b.Pow(two, b.Neg(mantissa_bitwidth)))
    limit = b.Min(b.Mul(mantissa, b.Pow(two, top)), max_val)
    return b.Mul(b.Max(b.Min(y, limit), b.Neg(limit)), scale)


for _domain in QONNX:
    contrib("Quant", "IntQuant", domain=_domain)(quant)
    contrib("BipolarQuant", domain=_domain)(bipolar_quant)
    contrib("Trunc", domain=_domain)(trunc)
    contrib("MultiThreshold", domain=_domain)(multi_threshold)
    contrib("FloatQuant", domain=_domain)(float_quant)
