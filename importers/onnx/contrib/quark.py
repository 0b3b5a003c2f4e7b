"""Operators of AMD Quark: integers and floats of formats that ONNX's QuantizeLinear lacks.

The implementation for onnxruntime's CPU in Quark 0.13 defines them. Blocks share an exponent: that
of their largest finite element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ....runtime.ir import dtypes
from ....runtime.ir.dtypes import TO_ONNX
from .builder import NodeBuilder
from .catalogue import QUARK
from .declaration import Float32, Kind, contrib

_NARROW = frozenset({dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16})
_WIDE = frozenset({dtypes.int32, dtypes.uint32})
_HALVES = frozenset({dtypes.float16, dtypes.bfloat16})
Stored = Annotated[str, Kind("Q", _NARROW | _WIDE | _HALVES)]
#: Of float32: bits of the mantissa, and the exponent of infinities and NaN.
_MANTISSA, _NON_FINITE = 23, 255


# ── tensors and channels ─────────────────────────────────────────────────────────────────────────


def quantize(b: NodeBuilder, x: Float32, scale: Float32, zero: Stored, *, axis: int = 0) -> str:
    """Quotients x / scale + zero in the dtype of `zero`; integers and float16 saturate."""
    stored = b.dtype(zero)
    if stored in _NARROW:
        return b.QuantizeLinear(x, scale, zero, axis=axis)
    scale, zero = (_along(b, each, x, axis) for each in (scale, zero))
    quotient = b.Div(x, scale)
    if stored in _WIDE:
        whole = b.Add(_integers(b, b.Round(quotient)), b.cast(zero, dtypes.int64))
        info = np.iinfo(stored)
        low, high = (b.constant(np.array(limit, np.int64)) for limit in (info.min, info.max))
        return b.cast(b.Clip(whole, low, high), stored)
    y = b.Add(quotient, b.cast(zero, dtypes.float32))
    if stored == dtypes.float16:
        limit = float(np.finfo(np.float16).max)
        y = b.Clip(y, b.number(-limit, y), b.number(limit, y))
    return b.cast(y, stored)


def dequantize(b: NodeBuilder, x: Stored, scale: Float32, zero: Stored, *, axis: int = 0) -> str:
    """Products (x - zero) * scale."""
    stored = b.dtype(x)
    if stored in _NARROW:
        return b.DequantizeLinear(x, scale, zero, axis=axis)
    scale, zero = (_along(b, each, x, axis) for each in (scale, zero))
    exact = dtypes.int64 if stored in _WIDE else dtypes.float32
    difference = b.Sub(b.cast(x, exact), b.cast(zero, exact))
    return b.Mul(b.cast(difference, dtypes.float32), scale)


def _integers(b: NodeBuilder, x: str) -> str:
    """Return floats as int64, within the range of 32 bits and of zero points."""
    limit = 2.0**40
    return b.cast(b.Clip(x, b.number(-limit, x), b.number(limit, x)), dtypes.int64)


def _along(b: NodeBuilder, each: str, x: str, axis: int) -> str:
    """Return a scalar, or a vector that extends along an axis of `x`."""
    rank = b.rank(x)
    if b.dims(each) in ((), (1,)):
        return b.reshape(each, *[1] * rank)
    if b.rank(each, 1) != 1 or not -rank <= axis < rank:
        raise b.error(f"axis={axis} does not fit {b.type(each)} for {b.type(x)}")
    return b.reshape(each, *(-1 if i == axis % rank else 1 for i in range(rank)))


# ── blocks ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Blocks:
    """Blocks of a tensor along `axis`, filled up with zeros.

    Attributes:
        values: [..., blocks, size, ...].
        axis: of the blocks; their elements have the next one.
        sizes: those of the tensor.
    """

    values: str
    axis: int
    sizes: list[str]

    def joined(self, b: NodeBuilder, values: str) -> str:
        """Return the tensor with other values."""
        before, after = self.sizes[: self.axis], self.sizes[self.axis + 1 :]
        return b.slice(b.reshape(values, *before, -1, *after), self.axis, 0, self.sizes[self.axis])


def _cut(b: NodeBuilder, x: str, axis: int, size: int) -> Blocks:
    rank = b.rank(x)
    axis = 0 if rank == 1 else axis
    if not -rank <= axis < rank or size < 1:
        raise b.error(f"axis={axis} and block_size={size} do not fit {b.type(x)}")
    axis %= rank
    sizes = [b.size(x, i) for i in range(rank)]
    missing = b.Mod(b.Neg(sizes[axis]), b.ints(size))
    padded = b.Pad(x, b.shape(*[0] * (rank + axis), missing, *[0] * (rank - axis - 1)))
    return Blocks(b.reshape(padded, *sizes[:axis], -1, size, *sizes[axis + 1 :]), axis, sizes)


def _exponents(b: NodeBuilder, x: str) -> str:
    """Return the exponents of floats, biased as float32 has them, in uint8."""
    bits = b.BitCast(b.Abs(x), to=TO_ONNX[dtypes.uint32])
    shift = b.constant(np.array(_MANTISSA, np.uint32))
    return b.cast(b.BitShift(bits, shift, direction="RIGHT"), dtypes.uint8)


def _largest(b: NodeBuilder, exponents: str, axis: int) -> str:
    """Return the largest exponent along an axis; it is kept."""
    return b.ReduceMax(exponents, b.ints(axis), keepdims=1)


def _power(b: NodeBuilder, exponents: str) -> str:
    """Return 2 ** (e - 127) in float32."""
    return b.cast(b.BitCast(exponents, to=TO_ONNX[dtypes.float8e8m0]), dtypes.float32)


def _byte(b: NodeBuilder, value: int) -> str:
    return b.constant(np.array(value, np.uint8))


def _half_away(b: NodeBuilder, x: str) -> str:
    return b.Mul(b.Sign(x), _half_up(b, b.Abs(x)))


def _half_up(b: NodeBuilder, x: str) -> str:
    low = b.Floor(x)
    is_upper = b.GreaterOrEqual(b.Sub(x, low), b.number(0.5, x))
    return b.Add(low, b.cast(is_upper, b.dtype(x)))


#: By `rounding_mode`.
_ROUNDED: dict[int, Callable[[NodeBuilder, str], str]] = {
    0: _half_away,
    1: _half_up,
    2: lambda b, x: b.Round(x),
}


def _rounded(b: NodeBuilder, x: str, mode: int) -> str:
    if mode not in _ROUNDED:
        raise b.error(f"rounding_mode={mode}; expected 0, 1 or 2")
    return _ROUNDED[mode](b, x)


def _fixed(b: NodeBuilder, x: str, bits: int, mode: int) -> str:
    """Return `x` rounded to `bits` bits after the point, in units of the last one."""
    return _rounded(b, b.Mul(x, b.number(2.0**bits, x)), mode)


@dataclass(frozen=True)
class FloatFormat:
    """A format of few bits: those of exponent and mantissa, and its largest number."""

    exponent: int
    mantissa: int
    largest: float

    def rounded(self, b: NodeBuilder, x: str) -> str:
        """Return the nearest number of the format, the largest for those beyond it."""
        bias = 2 ** (self.exponent - 1) - 1
        least = _byte(b, 127 + 1 - bias)
        step = b.Mul(_power(b, b.Max(_exponents(b, x), least)), b.number(2.0**-self.mantissa, x))
        y = b.Mul(b.Round(b.Div(x, step)), step)
        return b.Clip(y, b.number(-self.largest, y), b.number(self.largest, y))


_FORMATS = {
    "fp8_e5m2": FloatFormat(5, 2, 57344),
    "fp8_e4m3": FloatFormat(4, 3, 448),
    "fp6_e3m2": FloatFormat(3, 2, 28),
    "fp6_e2m3": FloatFormat(2, 3, 7.5),
    "fp4_e2m1": FloatFormat(2, 1, 6),
}


def microscaled(
    b: NodeBuilder,
    x: Float32,
    *,
    element_dtype: str = "int8",
    axis: int = 1,
    block_size: int = 32,
    rounding_mode: int = 0,
) -> str:
    """Blocks of numbers of a format of few bits that share an exponent (MX)."""
    if element_dtype != "int8" and element_dtype not in _FORMATS:
        raise b.error(f"element_dtype='{element_dtype}'; expected int8, {', '.join(_FORMATS)}")
    if _is_single(b, x):
        return b.Identity(x)
    blocks = _cut(b, x, axis, block_size)
    shared = _power(b, _largest(b, _finite(b, blocks.values), blocks.axis + 1))
    unit = b.Div(blocks.values, shared)
    if element_dtype == "int8":
        whole = b.Clip(_fixed(b, unit, 6, rounding_mode), b.number(-128, unit), b.number(127, unit))
        y = b.Mul(whole, b.number(2.0**-6, unit))
    else:
        how = _FORMATS[element_dtype]
        top = 2.0 ** int(np.floor(np.log2(how.largest)))
        y = b.Mul(how.rounded(b, b.Mul(unit, b.number(top, unit))), b.number(1 / top, unit))
    y = blocks.joined(b, _or_given(b, b.Mul(y, shared), blocks.values))
    return _unless_single(b, y, x)


def block_floats(
    b: NodeBuilder,
    x: Float32,
    *,
    bfp_method: str = "to_bfp",
    axis: int = 1,
    bit_width: int = 16,
    block_size: int = 8,
    rounding_mode: int = 0,
    sub_block_size: int = 2,
    sub_block_shift_bits: int = 1,
    convert_to_bfloat_before_bfp: int = 0,
    use_compiler_version_cpu_kernel: int = 0,
) -> str:
    """Blocks of mantissas that share an exponent (BFP).

    Of the `bit_width`, 8 are the exponent's. Parts of a block have smaller exponents in
    to_bfp_prime.
    """
    if convert_to_bfloat_before_bfp:
        x = b.cast(b.cast(x, dtypes.bfloat16), dtypes.float32)
    if _is_single(b, x):
        return b.Identity(x)
    blocks, bits = _cut(b, x, axis, block_size), bit_width - 9
    if bfp_method in ("to_bfp_prime", "to_bfp_prime_shared"):
        parts = sub_block_size, sub_block_shift_bits
        y = _shifted(b, blocks, bits, block_size, *parts, rounding_mode)
    elif bfp_method == "to_bfp":
        is_open = bool(use_compiler_version_cpu_kernel)
        y = _shared(b, blocks, bits, rounding_mode, is_open=is_open)
    else:
        raise b.error(f"bfp_method='{bfp_method}'; expected to_bfp or to_bfp_prime")
    return _unless_single(b, blocks.joined(b, y), x)


def _shared(b: NodeBuilder, blocks: Blocks, bits: int, mode: int, *, is_open: bool) -> str:
    """Return blocks with one exponent each, which `is_open` enlarges for mantissas beyond it."""
    values = blocks.values
    exponents = _largest(b, _finite(b, values), blocks.axis + 1)
    if is_open:
        exponents = _carried(b, values, exponents, blocks.axis + 1, bits, mode)
    y = _mantissas(b, values, exponents, bits, mode, is_open=is_open)
    return _or_given(b, y, values)


def _mantissas(
    b: NodeBuilder, x: str, exponents: str, bits: int, mode: int, *, is_open: bool = False
) -> str:
    """Return `x` with mantissas of `bits` bits, which saturate unless `is_open`."""
    power = _power(b, exponents)
    whole = _fixed(b, b.Div(x, power), bits - 1, mode)
    if not is_open:
        limit = 2.0**bits - 1
        whole = b.Clip(whole, b.number(-limit, whole), b.number(limit, whole))
    return b.Mul(b.Mul(whole, b.number(2.0 ** (1 - bits), whole)), power)


def _carried(b: NodeBuilder, values: str, exponents: str, axis: int, bits: int, mode: int) -> str:
    """Return exponents that are one larger where a mantissa is rounded up to 8 bits."""
    whole = _fixed(b, b.Div(values, _power(b, exponents)), bits - 1, mode)
    is_finite = b.Less(_exponents(b, values), _byte(b, _NON_FINITE))
    is_beyond = b.Or(
        b.GreaterOrEqual(whole, b.number(128, whole)), b.Less(whole, b.number(-128, whole))
    )
    carries = b.cast(b.And(is_finite, is_beyond), dtypes.uint8)
    return b.Add(exponents, _largest(b, carries, axis))


def _shifted(
    b: NodeBuilder, blocks: Blocks, bits: int, size: int, part: int, shift_bits: int, mode: int
) -> str:
    """Return blocks whose parts lower the exponent by as much as `shift_bits` say."""
    if part < 1 or size % part:
        raise b.error(f"block_size={size} is not a multiple of sub_block_size={part}")
    axis, sizes = blocks.axis, blocks.sizes
    values = b.reshape(blocks.values, *sizes[:axis], -1, size // part, part, *sizes[axis + 1 :])
    exponents = _exponents(b, values)
    values = b.Where(b.Equal(exponents, _byte(b, 0)), b.number(0, values), values)
    own = _largest(b, exponents, axis + 2)
    shared = _largest(b, own, axis + 1)
    shift = b.Min(b.Sub(shared, own), _byte(b, min(2**shift_bits - 1, 255)))
    y = _mantissas(b, values, b.Sub(shared, shift), bits, mode)
    is_finite = b.Less(shared, _byte(b, _NON_FINITE))
    return b.Where(is_finite, y, b.number(float("nan"), y))


def _finite(b: NodeBuilder, x: str) -> str:
    """Return the exponents of finite floats, 0 for others."""
    exponents = _exponents(b, x)
    return b.Where(b.Equal(exponents, _byte(b, _NON_FINITE)), _byte(b, 0), exponents)


def _or_given(b: NodeBuilder, y: str, x: str) -> str:
    """Return `y`, and infinities and NaN as they are in `x`."""
    return b.Where(b.Equal(_exponents(b, x), _byte(b, _NON_FINITE)), x, y)


def _is_single(b: NodeBuilder, x: str) -> bool:
    """Whether a tensor is known to have one element, which stays as it is."""
    dims = b.dims(x)
    return dims is not None and all(size == 1 for size in dims)


def _unless_single(b: NodeBuilder, y: str, x: str) -> str:
    """Return `y`, or `x` if it has one element, which only its shape may tell."""
    if any(isinstance(size, int) and size != 1 for size in b.dims(x) or ()):
        return y
    return b.Where(b.Equal(b.Size(x), b.constant(np.array(1, np.int64))), x, y)


for _domain in QUARK:
    contrib("ExtendedQuantizeLinear", "VitisQuantizeLinear", domain=_domain)(quantize)
    contrib("ExtendedDequantizeLinear", "VitisDequantizeLinear", domain=_domain)(dequantize)
    contrib("MXQuantizeDequantize", "MXFixNeuron", domain=_domain)(microscaled)
    contrib("BFPQuantizeDequantize", "BFPFixNeuron", domain=_domain)(block_floats)
