"""TensorFlow's incomplete gamma and beta functions and Hurwitz's zeta function, in float64.

Both incomplete functions are integrals from 0 to infinity of a number that is 1 at 0 and falls
about as fast as an exponential function of a known scale. With the substitution
v = exp(t - exp(-t)) of Takahasi and Mori, the trapezoidal rule has all digits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import factorial

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import T
from .tensorflow_names import operator
from .tensorflow_special import digamma, lgamma

_STEP = 0.125
_TIMES = np.arange(-3.75, 4.5, _STEP)
#: Places along the integral in units of its scale, and their weights.
_PLACES = np.exp(_TIMES - np.exp(-_TIMES))
_WEIGHTS = _STEP * _PLACES * (1 + np.exp(-_TIMES))
#: Terms of Hurwitz's zeta function in front of the Euler-Maclaurin formula, and
#: Bernoulli's numbers B2k in it.
_ZETA_TERMS = 10
#: What stands for infinite arguments of it.
_LARGEST, _FARTHEST = 1e10, 1e100
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)


@operator("Igamma")
def igamma(b: NodeBuilder, a: T, x: T) -> str:
    """Return the lower incomplete gamma function, of which the whole integral is 1."""
    below, above, is_below = _gamma_parts(b, a, x)
    found = b.Where(is_below, below, b.Sub(b.number(1, above), above))
    found = b.cast(found, b.dtype(x))
    zero = b.number(0, x)
    return b.Where(b.Equal(x, zero), zero, found)


@operator("Igammac")
def igammac(b: NodeBuilder, a: T, x: T) -> str:
    """Return the upper incomplete gamma function, of which the whole integral is 1."""
    below, above, is_below = _gamma_parts(b, a, x)
    return b.cast(b.Where(is_below, b.Sub(b.number(1, below), below), above), b.dtype(x))


@operator("Betainc")
def betainc(b: NodeBuilder, a: T, c: T, x: T) -> str:
    """Return the incomplete beta function, of which the whole integral is 1."""
    first, second, at = (b.cast(each, dtypes.float64) for each in (a, c, x))
    one, zero = b.number(1, at), b.number(0, at)
    rest = b.Sub(one, at)
    total = b.Add(first, second)
    is_below = b.LessOrEqual(b.Mul(at, b.Add(total, b.number(2, at))), b.Add(first, one))

    def turned(one_way: str, other: str) -> str:
        return b.Where(is_below, one_way, other)

    powers = turned(first, second), turned(second, first)
    found = _beta_part(b, *powers, turned(at, rest), turned(rest, at), total)
    found = b.Where(is_below, found, b.Sub(one, found))
    found = b.Where(b.Equal(at, zero), zero, b.Where(b.Equal(at, one), one, found))
    inside = (b.Greater(first, zero), b.Greater(second, zero), _within(b, at))
    return b.cast(_unless(b, reduce(b.And, inside), found), b.dtype(x))


@operator("Zeta")
def zeta(b: NodeBuilder, x: T, q: T) -> str:
    """Return Hurwitz's zeta function, the sum of 1 / (q + k)^x.

    Below 0 it is a number for whole x only: the terms there are the difference of two such sums,
    up to their sign. At 0, -1, … it is infinite for even x, and NaN for others.
    """
    power = b.Min(b.cast(x, dtypes.float64), b.constant(np.array(_LARGEST)))
    first = b.Min(b.cast(q, dtypes.float64), b.constant(np.array(_FARTHEST)))
    one, zero = b.number(1, power), b.number(0, power)
    two = b.number(2, power)
    shift = b.Max(b.Ceil(b.Neg(first)), zero)
    above = b.Add(first, shift)
    start = b.Max(b.Sub(one, above), b.number(0, above))
    below = b.Sub(_hurwitz(b, power, b.Where(b.Equal(start, zero), one, start)),
                  _hurwitz(b, power, b.Add(start, b.Max(shift, one))))  # fmt: skip
    parity = b.Mod(power, two, fmod=1)
    below = b.Where(b.Equal(parity, one), b.Neg(below), below)
    found = _hurwitz(b, power, b.Where(b.Equal(above, zero), one, above))
    found = b.Where(b.Greater(shift, zero), b.Add(found, below), found)
    is_positive = b.Greater(first, zero)
    found = _unless(b, b.Or(is_positive, b.Equal(power, b.Floor(power))), found)
    is_pole = b.And(b.LessOrEqual(first, zero), b.Equal(first, b.Floor(first)))
    infinite = b.number(np.inf, power)
    at_pole = _unless(b, b.Equal(parity, zero), infinite)
    found = b.Where(is_pole, at_pole, found)
    found = b.Where(b.Equal(power, one), infinite, found)
    return b.cast(_unless(b, b.GreaterOrEqual(power, one), found), b.dtype(x))


@operator("Polygamma")
def polygamma(b: NodeBuilder, a: T, x: T) -> str:
    """Return a derivative of digamma, the one of order a: NaN unless a is a whole number from 0."""
    order, at = b.cast(a, dtypes.float64), b.cast(x, dtypes.float64)
    one, zero = b.number(1, order), b.number(0, order)
    above = b.Add(order, one)
    found = b.Mul(b.Exp(lgamma(b, above)), zeta(b, b.Max(above, b.number(2, order)), at))
    is_even = b.Equal(b.Mod(order, b.number(2, order), fmod=1), zero)
    found = b.Where(is_even, b.Neg(found), found)
    found = b.Where(b.Equal(order, zero), digamma(b, at), found)
    is_order = b.And(b.GreaterOrEqual(order, zero), b.Equal(order, b.Floor(order)))
    return b.cast(_unless(b, is_order, found), b.dtype(x))


def _gamma_parts(b: NodeBuilder, a: str, x: str) -> tuple[str, str, str]:
    """Return the lower and the upper one, and where the former has all digits: x less than a + 1.

    The lower one is the integral of t^(a-1) e^-t at t = x e^-w; with a + 1 for a it is less by
    its first term, and its scale does not depend on a. The upper one is at t = x (1 + s).
    """
    order, at = b.cast(a, dtypes.float64), b.cast(x, dtypes.float64)
    one, zero = b.number(1, at), b.number(0, at)
    more = b.Add(order, one)
    is_below = b.Less(at, more)
    near, far = b.Where(is_below, at, zero), b.Max(at, more)
    positive = b.Max(order, zero)
    root = b.Sqrt(b.Add(positive, one))

    def lower(w: str) -> str:
        fall = b.Mul(_along(b, near), b.Sub(one, b.Exp(b.Neg(w))))
        return b.Sub(fall, b.Mul(_along(b, more), w))

    def upper(s: str) -> str:
        growth = b.Mul(_along(b, b.Sub(order, one)), b.Log(b.Add(one, s)))
        return b.Sub(growth, b.Mul(_along(b, far), s))

    gamma = lgamma(b, more)
    first = b.Exp(b.Sub(b.Sub(b.Mul(order, b.Log(near)), near), gamma))
    first = b.Where(b.Equal(near, zero), zero, first)
    inside = _integral(b, lower, b.Add(b.Sub(more, near), root))
    below = b.Mul(first, b.Add(one, b.Mul(near, inside)))
    last = b.Exp(b.Sub(b.Sub(b.Mul(order, b.Log(far)), far), gamma))
    outside = _integral(b, upper, b.Add(b.Sub(far, b.Sub(order, one)), root))
    above = b.Mul(b.Mul(last, order), outside)
    above = b.Where(b.Equal(far, b.number(np.inf, far)), zero, above)
    is_valid = b.And(b.Greater(order, zero), b.GreaterOrEqual(at, zero))
    return _unless(b, is_valid, below), _unless(b, is_valid, above), is_below


def _beta_part(b: NodeBuilder, a: str, c: str, x: str, rest: str, total: str) -> str:
    """Return the incomplete beta function below its mean: its integral at t = x e^-w.

    Args:
        b: adds nodes.
        a: the power of x, float64.
        c: that of 1 - x.
        x: the end of the integral.
        rest: 1 - x.
        total: a + c.
    """
    one = b.number(1, x)
    more, less = b.Add(a, one), b.Sub(c, one)
    ratio = b.Div(x, rest)

    def inside(w: str) -> str:
        # 1 - x e^-w = (1 - x) (1 + (1 - e^-w) x / (1 - x)).
        share = b.Mul(_along(b, ratio), b.Sub(one, b.Exp(b.Neg(w))))
        growth = b.Mul(_along(b, less), b.Log(b.Add(one, share)))
        return b.Sub(growth, b.Mul(_along(b, more), w))

    slope = b.Sub(more, b.Mul(less, ratio))
    bend = b.Sqrt(b.Mul(b.Max(less, b.number(0, x)), b.Mul(ratio, b.Div(one, rest))))
    beta = b.Sub(b.Add(lgamma(b, more), lgamma(b, c)), lgamma(b, total))
    powers = b.Add(b.Mul(a, b.Log(x)), b.Mul(c, b.Log(rest)))
    first = b.Exp(b.Sub(powers, beta))
    # I(a, c) less I(a + 1, c) is `first`, and the latter has total / a of its factor.
    further = b.Mul(b.Mul(ratio, total), _integral(b, inside, b.Add(slope, bend)))
    return b.Mul(first, b.Add(one, further))


def _integral(b: NodeBuilder, exponent: Callable[[str], str], rate: str) -> str:
    """Return the integral of exp(exponent(w)) over w from 0, where 1 / rate is its scale."""
    places = b.Div(b.constant(_PLACES), _along(b, rate))
    terms = b.Mul(b.Exp(exponent(places)), b.constant(_WEIGHTS))
    return b.Div(b.ReduceSum(terms, b.ints(-1), keepdims=0), rate)


def _along(b: NodeBuilder, x: str) -> str:
    """Return a value for every place of an integral."""
    return b.Unsqueeze(x, b.ints(-1))


def _hurwitz(b: NodeBuilder, x: str, q: str) -> str:
    """Return Hurwitz's zeta function above 0 by the Euler-Maclaurin formula (DLMF 25.11.5)."""
    one = b.number(1, x)
    terms = [b.Pow(b.Add(q, b.number(k, x)), b.Neg(x)) for k in range(_ZETA_TERMS)]
    end = b.Add(q, b.number(_ZETA_TERMS, x))
    last = b.Pow(end, b.Neg(x))
    less = b.Sub(x, one)
    terms.append(b.Div(b.Mul(last, end), b.Where(b.Equal(less, b.number(0, x)), one, less)))
    terms.append(b.scaled(last, 0.5))
    rising, square = b.Div(b.Mul(last, x), end), b.Mul(end, end)
    for k, number in enumerate(_BERNOULLI, 1):
        terms.append(b.scaled(rising, number / factorial(2 * k)))
        more = b.Mul(b.Add(x, b.number(2 * k - 1, x)), b.Add(x, b.number(2 * k, x)))
        rising = b.Div(b.Mul(rising, more), square)
    return reduce(b.Add, terms)


def _within(b: NodeBuilder, x: str) -> str:
    """Return whether x is from 0 to 1."""
    return b.And(b.GreaterOrEqual(x, b.number(0, x)), b.LessOrEqual(x, b.number(1, x)))


def _unless(b: NodeBuilder, is_valid: str, found: str) -> str:
    """Return what was found where it is valid, and NaN elsewhere."""
    return b.Where(is_valid, found, b.number(np.nan, found))
