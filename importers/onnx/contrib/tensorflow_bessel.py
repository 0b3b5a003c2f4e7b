"""TensorFlow's Bessel functions of orders 0 and 1, computed in float64.

Power series below `_FAR`, and above it the asymptotic series of Hankel (DLMF 10.2.2, 10.8, 10.31
and 10.17, 10.40), of which the first term left out is e^-24; K above 2 is an integral of which the
trapezoidal rule has all digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import factorial, pi, prod

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import T
from .tensorflow_names import operator
from .tensorflow_special import polynomial

#: Where the asymptotic series begin, and how many terms of the series are added.
_FAR, _TERMS, _FAR_TERMS = 12.0, 40, 20
_EULER = float(np.euler_gamma)
#: Of the trapezoidal rule for K: its step, and the places up to which e^-u² counts.
_STEP = 0.25
_PLACES = _STEP * np.arange(25)


@operator("BesselI0")
def bessel_i0(b: NodeBuilder, x: T) -> str:
    """Return I0(x)."""
    return _of(b, x, lambda wide: _i(b, wide, 0, scaled=False))


@operator("BesselI0e")
def bessel_i0e(b: NodeBuilder, x: T) -> str:
    """Return e^-|x| I0(x)."""
    return _of(b, x, lambda wide: _i(b, wide, 0, scaled=True))


@operator("BesselI1")
def bessel_i1(b: NodeBuilder, x: T) -> str:
    """Return I1(x)."""
    return _of(b, x, lambda wide: _i(b, wide, 1, scaled=False))


@operator("BesselI1e")
def bessel_i1e(b: NodeBuilder, x: T) -> str:
    """Return e^-|x| I1(x)."""
    return _of(b, x, lambda wide: _i(b, wide, 1, scaled=True))


@operator("BesselK0")
def bessel_k0(b: NodeBuilder, x: T) -> str:
    """Return K0(x), infinite up to 0."""
    return _of(b, x, lambda wide: _k(b, wide, 0, scaled=False))


@operator("BesselK0e")
def bessel_k0e(b: NodeBuilder, x: T) -> str:
    """Return e^x K0(x), infinite up to 0."""
    return _of(b, x, lambda wide: _k(b, wide, 0, scaled=True))


@operator("BesselK1")
def bessel_k1(b: NodeBuilder, x: T) -> str:
    """Return K1(x), infinite up to 0."""
    return _of(b, x, lambda wide: _k(b, wide, 1, scaled=False))


@operator("BesselK1e")
def bessel_k1e(b: NodeBuilder, x: T) -> str:
    """Return e^x K1(x), infinite up to 0."""
    return _of(b, x, lambda wide: _k(b, wide, 1, scaled=True))


@operator("BesselJ0")
def bessel_j0(b: NodeBuilder, x: T) -> str:
    """Return J0(x)."""
    return _of(b, x, lambda wide: _j(b, wide, 0))


@operator("BesselJ1")
def bessel_j1(b: NodeBuilder, x: T) -> str:
    """Return J1(x)."""
    return _of(b, x, lambda wide: _j(b, wide, 1))


@operator("BesselY0")
def bessel_y0(b: NodeBuilder, x: T) -> str:
    """Return Y0(x), infinite up to 0."""
    return _of(b, x, lambda wide: _y(b, wide, 0))


@operator("BesselY1")
def bessel_y1(b: NodeBuilder, x: T) -> str:
    """Return Y1(x), infinite up to 0."""
    return _of(b, x, lambda wide: _y(b, wide, 1))


def _of(b: NodeBuilder, x: str, function: Callable[[str], str]) -> str:
    """Compute in float64, and return the result in the dtype of x."""
    return b.cast(function(b.cast(x, dtypes.float64)), b.dtype(x))


def _i(b: NodeBuilder, x: str, order: int, *, scaled: bool) -> str:
    size = b.Abs(x)
    near, far = b.Min(size, b.number(_FAR, x)), b.Max(size, b.number(_FAR, x))
    below = _power_series(b, near, order)
    below = b.Mul(below, b.Exp(b.Neg(near))) if scaled else below
    hankel = polynomial(b, b.Div(b.number(-1, x), far), _hankel(order))
    above = b.Mul(hankel, b.Sqrt(b.Div(b.number(1 / (2 * pi), x), far)))
    above = above if scaled else b.Mul(above, b.Exp(far))
    return _odd(b, x, order, _chosen(b, size, _FAR, below, above))


def _j(b: NodeBuilder, x: str, order: int) -> str:
    size = b.Abs(x)
    below = _power_series(b, b.Min(size, b.number(_FAR, x)), order, alternating=True)
    amplitude, even, odd, cosine, sine = _waves(b, size, order)
    above = b.Mul(amplitude, b.Sub(b.Mul(even, cosine), b.Mul(odd, sine)))
    return _odd(b, x, order, _chosen(b, size, _FAR, below, above))


def _y(b: NodeBuilder, x: str, order: int) -> str:
    near = b.Min(x, b.number(_FAR, x))
    below = b.scaled(_second_kind(b, near, order, alternating=True), 2 / pi)
    amplitude, even, odd, cosine, sine = _waves(b, x, order)
    above = b.Mul(amplitude, b.Add(b.Mul(even, sine), b.Mul(odd, cosine)))
    return _from_zero(b, x, -np.inf, _chosen(b, x, _FAR, below, above))


def _k(b: NodeBuilder, x: str, order: int, *, scaled: bool) -> str:
    """K below 2 by its series, above as e^-x times an integral.

    In DLMF 10.32.9, x (cosh t - 1) = u² makes it that of 2 e^-u² / sqrt(2x + u²) from 0, times
    1 + u² / x for order 1.
    """
    two = b.number(2, x)
    near, far = b.Min(x, two), b.Max(x, two)
    below = b.Neg(_second_kind(b, near, order)) if order == 0 else _second_kind(b, near, order)
    below = b.Mul(below, b.Exp(near)) if scaled else below
    squares = _PLACES**2
    weights = 2 * _STEP * np.exp(-squares)
    weights[0] /= 2
    along = b.Unsqueeze(far, b.ints(-1))
    terms = b.Div(b.constant(weights), b.Sqrt(b.Add(b.Add(along, along), b.constant(squares))))
    if order:
        terms = b.Mul(terms, b.Add(b.Div(b.constant(squares), along), b.number(1, x)))
    above = b.ReduceSum(terms, b.ints(-1), keepdims=0)
    above = above if scaled else b.Mul(above, b.Exp(b.Neg(far)))
    return _from_zero(b, x, np.inf, _chosen(b, x, 2.0, below, above))


def _power_series(b: NodeBuilder, x: str, order: int, *, alternating: bool = False) -> str:
    """Return I of an order, or J if its terms alternate."""
    sign = -1 if alternating else 1
    factors = [sign**k / (factorial(k) * factorial(k + order)) for k in range(_TERMS)]
    half = b.scaled(x, 0.5)
    found = polynomial(b, b.Mul(half, half), factors)
    return b.Mul(half, found) if order else found


def _second_kind(b: NodeBuilder, x: str, order: int, *, alternating: bool = False) -> str:
    """Return Y times pi / 2, if terms alternate; otherwise -K of order 0, or K of order 1."""
    sign = -1 if alternating else 1
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, _TERMS + 1))])
    half = b.scaled(x, 0.5)
    first = b.Mul(b.Log(half), _power_series(b, x, order, alternating=alternating))
    factors: Sequence[float] = [
        sign**k * (harmonic[k] + harmonic[k + order] - 2 * _EULER) / 2
        / (factorial(k) * factorial(k + order))
        for k in range(_TERMS)
    ]  # fmt: skip
    rest = polynomial(b, b.Mul(half, half), factors)
    rest = b.Mul(half, rest) if order else rest
    found = b.Sub(first, rest)
    if not order:
        return found
    pole = b.Div(b.number(1, x), x)
    return b.Sub(found, pole) if alternating else b.Add(found, pole)


def _waves(b: NodeBuilder, x: str, order: int) -> tuple[str, str, str, str, str]:
    """Return amplitude, both series, cosine and sine of the phase far from 0."""
    far = b.Max(x, b.number(_FAR, x))
    inverse = b.Div(b.number(1, x), far)
    square = b.Neg(b.Mul(inverse, inverse))
    factors = _hankel(order)
    even = polynomial(b, square, factors[::2])
    odd = b.Mul(inverse, polynomial(b, square, factors[1::2]))
    phase = b.Sub(far, b.number((2 * order + 1) * pi / 4, x))
    amplitude = b.Sqrt(b.scaled(inverse, 2 / pi))
    return amplitude, even, odd, b.Cos(phase), b.Sin(phase)


def _hankel(order: int) -> list[float]:
    """Return the numbers a_k of DLMF 10.17.1."""
    square = 4 * order**2
    return [
        prod(square - (2 * j - 1) ** 2 for j in range(1, k + 1)) / (factorial(k) * 8**k)
        for k in range(_FAR_TERMS)
    ]


def _chosen(b: NodeBuilder, x: str, limit: float, below: str, above: str) -> str:
    return b.Where(b.LessOrEqual(x, b.number(limit, x)), below, above)


def _odd(b: NodeBuilder, x: str, order: int, found: str) -> str:
    """Return what was found for |x| with the sign of x, if the function is odd."""
    return b.Mul(b.Sign(x), found) if order else found


def _from_zero(b: NodeBuilder, x: str, pole: float, found: str) -> str:
    """Return what was found above 0; up to 0, TensorFlow returns the pole."""
    return b.Where(b.LessOrEqual(x, b.number(0, x)), b.number(pole, x), found)
