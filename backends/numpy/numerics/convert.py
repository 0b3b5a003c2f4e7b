"""Dtype conversions with the semantics of ONNX."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import ml_dtypes
import numpy as np

from ....runtime.ir.dtypes import FLOAT8S, INTEGERS, DType, float8e8m0, float32, float64, string
from ....runtime.ir.types import Array
from . import calls
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
        x = x.astype(float32)
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
    if x.dtype.kind in "iu":  # Python's are written faster than numpy's
        texts[:] = [*map(str, x.reshape(-1).tolist())]
        return texts.reshape(x.shape)
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


#: Integers whose range float32 shifts exactly.
SHORT = tuple(map(np.dtype, (np.uint8, np.int8, np.uint16, np.int16)))


def saturating(x: Array, out: Array, shown: Array | None = None) -> list[Callable[[], object]]:
    """Return the calls that store whole numbers in short integers, saturated; NaN as the smallest.

    numpy's minimum and maximum with a number take three times as long as its clip. That preserves
    NaN, of which a conversion makes 0: the smallest value, if signed integers are stored as
    unsigned ones first.

    Args:
        x: float32, overwritten.
        out: of one of the dtypes `SHORT`.
        shown: the elements of `x` to store, of the shape of `out`; all if None.
    """
    low, high, dtype = _bounds(out.dtype)
    found = out.view(dtype)
    tape: list[Callable[[], object]] = []
    if low:
        tape.append(partial(np.subtract, x, low, out=x))
    tape.append(partial(calls.clip, x, _ZERO, high, x))
    tape.append(partial(np.copyto, found, x if shown is None else shown, casting="unsafe"))
    if low:
        tape.append(partial(np.bitwise_xor, found, dtype.type(-int(low)), out=found))
    return tape


@lru_cache(8)
def _bounds(dtype: DType) -> tuple[Array, Array, DType]:
    """Return the smallest value of an integer dtype, the width of its range, and unsigned ones."""
    limits = np.iinfo(dtype)
    width = limits.max - limits.min
    return np.array(limits.min, float32), np.array(width, float32), np.dtype(f"u{dtype.itemsize}")


_ZERO = np.array(0, float32)


def round_to_integer(x: Array, to: DType) -> Array:
    """Return `x` rounded half to even and saturated to the range of `to`.

    NaN becomes the smallest value, see docs/rulings.md.
    """
    if x.dtype == float32 and to in SHORT:
        whole, found = np.asarray(np.rint(x)), np.empty(np.shape(x), to)
        for call in saturating(whole, found):
            call()
        return found
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
