"""How the differences between two arrays are spread, beyond the largest one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import log10, nan
from typing import Any

import numpy as np

from ...runtime.ir.dtypes import (
    COMPLEX,
    FLOAT8S,
    FLOATS,
    DType,
    bfloat16,
    float8e8m0,
    float16,
    float32,
    float64,
)
from ...runtime.ir.types import Array

#: Unsigned integers as wide as the floats whose units in the last place are counted.
_BITS: dict[DType, type[np.unsignedinteger[Any]]] = {
    float64: np.uint64,
    float32: np.uint32,
    float16: np.uint16,
    bfloat16: np.uint16,
}
_BITS |= dict.fromkeys(FLOAT8S - {float8e8m0}, np.uint8)  # that one has no sign
_QUANTILES = (0.5, 0.9, 0.99, 0.999)
_FIVE = 5


@dataclass(frozen=True, slots=True)
class Differences:
    """Differences of finite elements; None for what a tensor of this type and shape does not have.

    Attributes:
        mean: of the absolute differences.
        median: half of them are no greater.
        p90: nine in ten are no greater.
        p99: likewise.
        p999: likewise.
        cosine: of the angle between both tensors, taken as vectors; NaN if one is zero.
        psnr: peak signal-to-noise ratio in decibels: the range of the reference, squared, by the
            mean square difference; infinite where nothing differs.
        ulp: largest distance in units in the last place: how many numbers of the dtype are
            between both, and one.
        ulp_p99: 99 in 100 elements are no further apart.
        top1: share of vectors along the last axis whose largest element is at the same place;
            None for vectors of less than two elements.
        top5: share of vectors of at least six elements whose five largest are the same ones, in
            whatever order.
    """

    mean: float
    median: float
    p90: float
    p99: float
    p999: float
    cosine: float
    psnr: float
    ulp: int | None = None
    ulp_p99: float | None = None
    top1: float | None = None
    top5: float | None = None

    def to_dict(self) -> dict[str, float | int | None]:
        """Return everything, for JSON."""
        return asdict(self)


def differences(reference: Array, found: Array) -> Differences | None:
    """Describe by how much two arrays of one dtype and shape differ.

    Returns:
        None for texts, and where no element is finite on both sides.
    """
    if reference.dtype == object or not reference.size:
        return None
    wide = np.complex128 if reference.dtype in COMPLEX else np.float64
    a, b = reference.astype(wide).ravel(), found.astype(wide).ravel()
    finite = np.isfinite(a) & np.isfinite(b)
    whole = bool(finite.all())
    if not whole:
        a, b = a[finite], b[finite]
    if not a.size:
        return None
    apart = np.abs(b - a)
    median, p90, p99, p999 = (float(q) for q in np.quantile(apart, _QUANTILES))
    ulp, ulp_p99 = _units(reference.ravel()[finite], found.ravel()[finite])
    top1, top5 = _best(reference, found) if whole else (None, None)
    return Differences(
        float(apart.mean()),
        median,
        p90,
        p99,
        p999,
        _cosine(a, b),
        _psnr(a, apart),
        ulp,
        ulp_p99,
        top1,
        top5,
    )


def _cosine(a: Array, b: Array) -> float:
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    if not norms:
        return nan
    return min(1.0, float(np.abs(np.vdot(a, b))) / norms) * (-1 if np.vdot(a, b).real < 0 else 1)


def _psnr(a: Array, apart: Array) -> float:
    square = float(np.mean(np.square(apart)))
    span = float(np.ptp(a.real)) or float(np.abs(a).max())
    if not square:
        return float("inf")
    return 20 * log10(span) - 10 * log10(square) if span else float("-inf")


def _units(reference: Array, found: Array) -> tuple[int | None, float | None]:
    """Return the largest distance in numbers of the dtype, and the 99th percentile."""
    bits = _BITS.get(reference.dtype)
    if bits is None:
        return None, None
    places = [_place(np.ascontiguousarray(data).view(bits)) for data in (reference, found)]
    apart = np.abs(places[0] - places[1])
    return int(apart.max()), float(np.quantile(apart, 0.99))


def _place(bits: Array) -> Array:
    """Return the place of floats among all of their dtype, 0 for both zeros.

    That is the magnitude's bits with the sign: floats of one sign are ordered as their bits are.
    """
    width = bits.dtype.itemsize * 8
    magnitude = (bits & bits.dtype.type((1 << (width - 1)) - 1)).astype(np.int64)
    return np.where(bits >> bits.dtype.type(width - 1), -magnitude, magnitude)


def _best(reference: Array, found: Array) -> tuple[float | None, float | None]:
    """Return for how many vectors of the last axis the largest, and the five largest, agree."""
    shape = reference.shape
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    if reference.dtype not in FLOATS or not shape or shape[-1] < 2:
        return None, None
    a, b = (data.reshape(-1, shape[-1]).astype(np.float64) for data in (reference, found))
    top1 = float(np.mean(a.argmax(1) == b.argmax(1)))
    if shape[-1] <= _FIVE:
        return top1, None
    fives = [np.sort(np.argpartition(-data, _FIVE - 1, 1)[:, :_FIVE], 1) for data in (a, b)]
    return top1, float(np.mean((fives[0] == fives[1]).all(1)))
