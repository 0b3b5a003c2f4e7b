"""Dtype conversions with the semantics of ONNX."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from ....runtime.ir.dtypes import FLOAT8S, INTEGERS, DType, float8e8m0, float32, float64, string
from ....runtime.ir.types import Array
from .halves import store


def convert(x: Array, to: DType, *, saturate: bool = True, round_mode: str = "up") -> Array:
    """Return `x` as dtype `to`, by the rules of ONNX's Cast.

    Floats truncate to integers; integers drop their high bits; an out-of-range float becomes
    infinite, or, in a float8 type with `saturate`, the largest finite number.

    Args:
        x: any tensor.
        to: the target dtype.
        saturate: for float8 types only.
        round_mode: ``up``, ``down`` or ``nearest``, for float8e8m0 only.
    """
    if x.dtype == to:
        return x
    if x.dtype == string:
        return _from_text(x, to)
    if to == string:
        return _to_text(x)
    if to == float8e8m0:
        return _to_exponent(x.astype(float32), saturate, round_mode)
    if to in FLOAT8S:
        wide = x if x.dtype == float64 else x.astype(float32)
        if saturate:
            greatest = float(ml_dtypes.finfo(to).max)
            wide = np.clip(wide, -greatest, greatest)
        return wide.astype(to)
    if x.dtype.kind == "V" and to.kind == "V":
        return x.astype(float32).astype(to)
    found = np.empty(x.shape, to)
    store(found, x)
    return found


def is_stored(source: DType, to: DType) -> bool:
    """Whether `store` converts by ONNX's rules."""
    is_plain = source != string and to not in _OTHERS
    return is_plain and not (source.kind == "V" and to.kind == "V" and source != to)


def _from_text(x: Array, to: DType) -> Array:
    if to in INTEGERS:
        bits = [_integer(text) & 0xFFFF_FFFF_FFFF_FFFF for text in x.flat]
        return np.array(bits, np.uint64).reshape(x.shape).astype(to)
    numbers = np.array([float(text) for text in x.flat], float64).reshape(x.shape)
    return convert(numbers, to)


def _integer(text: str) -> int:
    """Return the integer in a string, truncating other numbers."""
    try:
        return int(text)
    except ValueError:
        return int(float(text))


def _to_text(x: Array) -> Array:
    if x.dtype.kind == "b":
        x = x.view(np.uint8)
    texts = np.empty(x.size, string)
    texts[:] = [_RESERVED.get(text := str(element), text) for element in x.flat]
    return texts.reshape(x.shape)


#: Dtypes with rules of their own.
_OTHERS = {string, float8e8m0, *FLOAT8S}

#: The specification's spellings of non-finite numbers.
_RESERVED = {"nan": "NaN", "inf": "INF", "-inf": "-INF"}


def _to_exponent(x: Array, saturate: bool, round_mode: str) -> Array:
    """Return the biased exponents of powers of two from rounded float32; 255 is NaN."""
    bits = x.view(np.uint32)
    exponent = ((bits >> 23) & 0xFF).astype(np.int32)
    fraction = bits & 0x7FFFFF
    if round_mode == "up":
        more = fraction > 0
    elif round_mode == "nearest":
        more = (fraction > 0x400000) | ((fraction == 0x400000) & (exponent > 0))
    elif round_mode == "down":
        more = np.zeros(x.shape, bool)
    else:
        raise ValueError(f"round_mode={round_mode!r}; ONNX has up, down and nearest")
    greatest = 0xFE if saturate else 0xFF
    rounded = np.minimum(exponent + more, greatest)
    if saturate:
        rounded = np.where(np.isinf(x), greatest, rounded)
    found = np.where((exponent == 0xFF) & ~(np.isinf(x) & saturate), 0xFF, rounded)
    return found.astype(np.uint8).view(float8e8m0)


def round_to_integer(x: Array, to: DType) -> Array:
    """Return `x` rounded half to even and saturated to the range of `to`.

    NaN becomes the smallest value, see docs/rulings.md.
    """
    low, high = _limits(to, x.dtype)
    return np.fmin(np.fmax(np.rint(x), low), high).astype(to)


@lru_cache(256)
def _limits(to: DType, dtype: DType) -> tuple[Array, Array]:
    """Return the minimum and maximum integer of a dtype as arrays of another dtype."""
    limits = ml_dtypes.iinfo(to)
    return np.array(int(limits.min)).astype(dtype), np.array(int(limits.max)).astype(dtype)


def blank(dtype: DType) -> Any:
    """Return the padding value of a dtype: 0, False or an empty string."""
    return "" if dtype == string else np.zeros((), dtype)[()]


def lowest(dtype: DType) -> Any:
    """Return the smallest number of a dtype: -inf for floats."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).min
    return False if dtype.kind == "b" else -np.inf


def greatest(dtype: DType) -> Any:
    """Return the largest number of a dtype: inf for floats."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).max
    return True if dtype.kind == "b" else np.inf
