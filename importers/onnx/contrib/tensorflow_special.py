"""TensorFlow's special functions, computed in float64 from series that others have published.

Results are those of float64 rounded to the dtype of the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import T
from .tensorflow_names import operator

#: Lanczos' approximation of the gamma function with g = 7, by Godfrey: 15 digits.
_G = 7
_LANCZOS = (
    0.99999999999980993,
    676.5203681218851,
    -1259.1392167224028,
    771.32342877765313,
    -176.61502916214059,
    12.507343278686905,
    -0.13857109526572012,
    9.9843695780195716e-6,
    1.5056327351493116e-7,
)
#: Bernoulli's numbers B2k / 2k, of the asymptotic series of digamma.
_BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
#: Steps after which that series has 15 digits.
_STEPS = 8
#: Wichura's algorithm AS 241 for quantiles of the normal distribution, numerator and denominator:
#: near the centre, in the tails, and far out in these. 16 digits.
_CENTRE = (
    (
        *(3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427),
        *(13731.693765509461125, 45921.953931549871457, 67265.770927008700853),
        *(33430.575583588128105, 2509.0809287301226727),
    ),
    (
        *(1.0, 42.313330701600911252, 687.18700749205790830, 5394.1960214247511077),
        *(21213.794301586595867, 39307.895800092710610, 28729.085735721942674),
        5226.4952788528545610,
    ),
)
_TAIL = (
    (
        *(1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550),
        *(3.64784832476320460504, 1.27045825245236838258, 0.241780725177450611770),
        *(2.27238449892691845833e-2, 7.74545014278341407640e-4),
    ),
    (
        *(1.0, 2.05319162663775882187, 1.67638483018380384940, 0.689767334985100004550),
        *(0.148103976427480074590, 1.51986665636164571966e-2, 5.47593808499534494600e-4),
        1.05075007164441684324e-9,
    ),
)
_FAR = (
    (
        *(6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580),
        *(0.296560571828504891230, 2.65321895265761230930e-2, 1.24266094738807843860e-3),
        *(2.71155556874348757815e-5, 2.01033439929228813265e-7),
    ),
    (
        *(1.0, 0.599832206555887937690, 0.136929880922735805310, 1.48753612908506148525e-2),
        *(7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7),
        2.04426310338993978564e-15,
    ),
)


@operator("Lgamma")
def lgamma(b: NodeBuilder, x: T) -> str:
    """Return log |gamma(x)|: Lanczos' approximation, and Euler's reflection below 1/2."""
    wide = b.cast(x, dtypes.float64)
    half, one = b.number(0.5, wide), b.number(1, wide)
    is_low = b.Less(wide, half)
    at = b.Where(is_low, b.Sub(one, wide), wide)
    near = b.Sub(at, one)
    total = b.number(_LANCZOS[0], wide)
    for number, factor in enumerate(_LANCZOS[1:]):
        part = b.Div(b.number(factor, wide), b.Add(near, b.number(number + 1, wide)))
        total = b.Add(total, part)
    base = b.Add(near, b.number(_G + 0.5, wide))
    # At large numbers, one product: the difference of two would be of infinities.
    power = b.Mul(b.Sub(at, half), b.Sub(b.Log(base), one))
    rest = b.Add(b.Log(total), b.number(0.5 * math.log(2 * math.pi) - _G, wide))
    above = b.Add(power, rest)
    sine = b.Abs(b.Sin(b.scaled(_beside(b, wide), math.pi)))
    reflected = b.Sub(b.Log(b.Div(b.number(math.pi, wide), sine)), above)
    found = b.Where(is_low, reflected, above)
    infinite = b.number(np.inf, wide)
    return b.cast(b.Where(b.Equal(b.Abs(wide), infinite), infinite, found), b.dtype(x))


@operator("Digamma")
def digamma(b: NodeBuilder, x: T) -> str:
    """Return the derivative of log gamma: its asymptotic series some steps further up.

    It is NaN at the poles, as in TensorFlow.
    """
    wide = b.cast(x, dtypes.float64)
    one = b.number(1, wide)
    is_low = b.Less(wide, b.number(0.5, wide))
    at = b.Where(is_low, b.Sub(one, wide), wide)
    far = b.Add(at, b.number(_STEPS, wide))
    square = b.Div(one, b.Mul(far, far))
    series = b.Mul(square, polynomial(b, square, _BERNOULLI))
    found = b.Sub(b.Sub(b.Log(far), b.Div(b.number(0.5, wide), far)), series)
    for step in range(_STEPS):
        found = b.Sub(found, b.Div(one, b.Add(at, b.number(step, wide))))
    beside = _beside(b, wide)
    tangent = b.Tan(b.scaled(beside, math.pi))
    reflected = b.Sub(found, b.Div(b.number(math.pi, wide), tangent))
    is_pole = b.Equal(beside, b.number(0, wide))
    reflected = b.Where(is_pole, b.number(np.nan, wide), reflected)
    return b.cast(b.Where(is_low, reflected, found), b.dtype(x))


@operator("Ndtri")
def ndtri(b: NodeBuilder, x: T) -> str:
    """Return the quantile of the normal distribution at a probability."""
    wide = b.cast(x, dtypes.float64)
    tail = b.Min(wide, b.Sub(b.number(1, wide), wide))
    return b.cast(_quantile(b, b.Sub(wide, b.number(0.5, wide)), tail), b.dtype(x))


@operator("Erfinv")
def erfinv(b: NodeBuilder, x: T) -> str:
    """Return the inverse of the error function."""
    wide = b.cast(x, dtypes.float64)
    tail = b.scaled(b.Sub(b.number(1, wide), b.Abs(wide)), 0.5)
    found = _quantile(b, b.scaled(wide, 0.5), tail)
    return b.cast(b.scaled(found, 0.5**0.5), b.dtype(x))


def _quantile(b: NodeBuilder, offset: str, tail: str) -> str:
    """Return a quantile of the normal distribution, float64, by Wichura's AS 241.

    Args:
        b: adds nodes.
        offset: the probability less 1/2.
        tail: the probability, or that of the other side if it is less.
    """
    square = b.Sub(b.number(0.180625, offset), b.Mul(offset, offset))
    centre = b.Mul(offset, _ratio(b, square, _CENTRE))
    root = b.Sqrt(b.Neg(b.Log(tail)))
    near = _ratio(b, b.Sub(root, b.number(1.6, root)), _TAIL)
    far = _ratio(b, b.Sub(root, b.number(5, root)), _FAR)
    outside = b.Where(b.LessOrEqual(root, b.number(5, root)), near, far)
    outside = b.Where(b.Equal(tail, b.number(0, tail)), b.number(np.inf, tail), outside)
    outside = b.Mul(outside, b.Sign(offset))
    is_central = b.LessOrEqual(b.Abs(offset), b.number(0.425, offset))
    return b.Where(is_central, centre, outside)


def _ratio(b: NodeBuilder, x: str, factors: tuple[Sequence[float], Sequence[float]]) -> str:
    numerator, denominator = (polynomial(b, x, each) for each in factors)
    return b.Div(numerator, denominator)


def polynomial(b: NodeBuilder, x: str, factors: Sequence[float]) -> str:
    """Return the polynomial with these factors, that of the lowest power first."""
    found = b.number(factors[-1], x)
    for each in reversed(factors[:-1]):
        found = b.Add(b.Mul(found, x), b.number(each, x))
    return found


def _beside(b: NodeBuilder, x: str) -> str:
    """Return the distance from the nearest whole number, at which sines of half turns begin."""
    return b.Sub(x, b.Round(x))
