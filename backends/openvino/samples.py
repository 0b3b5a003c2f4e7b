"""Sample inputs for trials: ordinary numbers, and special ones on which runtimes disagree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from ...runtime.ir.dtypes import DType
from ...runtime.ir.types import Array, TensorType

#: Floats that are mixed into ordinary samples, and of which samples for elementwise operators
#: consist: signed zeros, subnormal and huge numbers, ties, arguments at which exponentials
#: overflow or underflow.
SPECIAL = (np.nan, np.inf, -np.inf)
EXTREME = (
    *(*SPECIAL, -0.0, 0.0, 1.0, -1.0, 0.5, 1.5, -2.5, 3e38, -3e38, 1e-40, -1e-40, 1e20, -1e20),
    *(2.0**24 + 1, -(2.0**31), 2.0**33, 88.9, -88.9, -104.0, 1e-6, 6.0, -3.0),
)
#: Integers for samples, as far as the dtype can represent them.
WHOLE = (0, 1, -1, 2, 127, 128, 255, 32768, 2**24 + 1, 2**31 - 1, -(2**31), 2**31, 2**32 + 5, 2**40)
#: Maximum number of elements replaced by a special number.
_PLANTED = 7
#: Minimum number of elements tried for byte tensors, and maximum number of rounds: products of
#: bytes are often ties, which reveal wrong rounding.
_BYTES, _ROUNDS = 1 << 9, 1 << 7
#: Moves ordinary numbers to where exponentials nearly underflow.
_FACTOR = 30

Sample = list[Array]


def samples(types: Sequence[TensorType], elementwise: bool, finite: bool) -> Iterator[Sample]:
    """Yield arrays for some inputs, repeatedly.

    Args:
        types: of the inputs.
        elementwise: whether elements are independent of each other, so that all of them may be
            special.
        finite: whether all floats are ordinary.
    """
    rng = np.random.default_rng(0)
    usual = [_ordinary(rng, type_) for type_ in types]
    yield usual
    yield from _more_bytes(rng, types)
    yield [each * each.dtype.type(_FACTOR) if _is_float(each.dtype) else each for each in usual]
    yield [np.zeros(type_.dims, type_.dtype) for type_ in types]
    if any(_is_float(type_.dtype) for type_ in types) and not finite:
        for number in SPECIAL:
            for at, type_ in enumerate(types):
                if _is_float(type_.dtype):
                    planted = usual[at].copy()
                    _plant(planted, number)
                    yield [*usual[:at], planted, *usual[at + 1 :]]
        if elementwise:
            yield from _crossed(types, EXTREME)
    if any(_is_whole(type_.dtype) for type_ in types):
        yield from _crossed(types, (0.0, 1.0, -2.0, 3.5))


def _more_bytes(rng: np.random.Generator, types: Sequence[TensorType]) -> Iterator[Sample]:
    """Yield more ordinary samples where small byte tensors would rarely contain ties."""
    sizes = [prod(type_.dims) for type_ in types if type_.dtype.itemsize == 1]
    if any(type_.dtype in (np.int8, np.uint8) for type_ in types):
        for _ in range(min(_ROUNDS, _BYTES // max(sizes))):
            yield [_ordinary(rng, type_) for type_ in types]


def _is_float(dtype: DType) -> bool:
    return dtype.kind == "f"


def _is_whole(dtype: DType) -> bool:
    return dtype.kind in "iu"


def _ordinary(rng: np.random.Generator, type_: TensorType) -> Array:
    """Return standard normal floats, random bytes, or 0 and 1 (valid indices) for other types."""
    dtype, dims = type_.dtype, type_.dims
    if _is_float(dtype):
        return np.asarray(rng.standard_normal(dims, np.float32), dtype)
    if dtype.itemsize > 2 or not _is_whole(dtype):
        return np.asarray(rng.integers(0, 2, dims), dtype)
    info = np.iinfo(dtype)
    return np.asarray(rng.integers(info.min, info.max + 1, dims), dtype)


def _plant(data: Array, number: float) -> None:
    """Put a number into a few places, the first of them not on the border if possible."""
    count = min(_PLANTED, data.size // 8)
    places = [data.size // 2, *((i * data.size + data.size // 2) // count for i in range(count))]
    data.reshape(-1)[places] = number


def _crossed(types: Sequence[TensorType], floats: Sequence[float]) -> Iterator[Sample]:
    """Yield samples in which every pair of special elements meets, however small tensors are."""
    series = [_series(type_.dtype, floats) for type_ in types]
    count = max(len(each) for each in series)
    size = max(int(np.prod(type_.dims, dtype=int)) for type_ in types)
    if size >= count * count:
        pairs = enumerate(zip(series, types, strict=True))
        yield [_cycled(some, type_, 0, k, count) for k, (some, type_) in pairs]
        return
    for first in range(0, count, min(size, count)):
        for shift in range(count if len(types) > 1 else 1):
            moves = (first + k * shift for k in range(len(types)))
            yield [_cycled(*each) for each in zip(series, types, moves, strict=True)]


def _series(dtype: DType, floats: Sequence[float]) -> Array:
    if _is_float(dtype):
        with np.errstate(all="ignore"):
            return np.array(floats, np.float64).astype(dtype)
    if not _is_whole(dtype):
        return np.array([0, 1], dtype)
    info = np.iinfo(dtype)
    kept = [number for number in (*WHOLE, info.min, info.max) if info.min <= number <= info.max]
    return np.array(kept, dtype)


def _cycled(series: Array, type_: TensorType, first: int, shift: int = 0, each: int = 1) -> Array:
    """Yield tensors from an endless repetition of the series, starting at element `first`.

    Args:
        series: the elements.
        type_: of the tensor.
        first: which of them is the first.
        shift: number of elements skipped after every `each` elements.
        each: see `shift`.
    """
    places = np.arange(int(np.prod(type_.dims, dtype=int)))
    return series[(places + first + shift * (places // each)) % len(series)].reshape(type_.dims)
