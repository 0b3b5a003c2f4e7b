"""Special functions that numpy lacks."""

from __future__ import annotations

from math import sqrt

import numpy as np

from ....runtime.ir.dtypes import float32, float64
from ....runtime.ir.types import Array

# Rational approximations of erf and erfc by Sun Microsystems (fdlibm, s_erf.c), exact to an ulp:
# highest power first, numerator and denominator.
_SMALL = (
    (
        -2.37630166566501626084e-05,
        -5.77027029648944159157e-03,
        -2.84817495755985104766e-02,
        -3.25042107247001499370e-01,
        1.28379167095512558561e-01,
    ),
    (
        -3.96022827877536812320e-06,
        1.32494738004321644526e-04,
        5.08130628187576562776e-03,
        6.50222499887672944485e-02,
        3.97917223959155352819e-01,
        1.0,
    ),
)
_ERF_OF_ONE = 8.45062911510467529297e-01
_MIDDLE = (
    (
        -2.16637559486879084300e-03,
        3.54783043256182359371e-02,
        -1.10894694282396677476e-01,
        3.18346619901161753674e-01,
        -3.72207876035701323847e-01,
        4.14856118683748331666e-01,
        -2.36211856075265944077e-03,
    ),
    (
        1.19844998467991074170e-02,
        1.36370839120290507362e-02,
        1.26171219808761642112e-01,
        7.18286544141962662868e-02,
        5.40397917702171048937e-01,
        1.06420880400844228286e-01,
        1.0,
    ),
)
_LARGE = (
    (
        -9.81432934416914548592e00,
        -8.12874355063065934246e01,
        -1.84605092906711035994e02,
        -1.62396669462573470355e02,
        -6.23753324503260060396e01,
        -1.05586262253232909814e01,
        -6.93858572707181764372e-01,
        -9.86494403484714822705e-03,
    ),
    (
        -6.04244152148580987438e-02,
        6.57024977031928170135e00,
        1.08635005541779435134e02,
        4.29008140027567833386e02,
        6.45387271733267880336e02,
        4.34565877475229228821e02,
        1.37657754143519042600e02,
        1.96512716674392571292e01,
        1.0,
    ),
)
_LARGEST = (
    (
        -4.83519191608651397019e02,
        -1.02509513161107724954e03,
        -6.37566443368389627722e02,
        -1.60636384855821916062e02,
        -1.77579549177547519889e01,
        -7.99283237680523006574e-01,
        -9.86494292470009928597e-03,
    ),
    (
        -2.24409524465858183362e01,
        4.74528541206955367215e02,
        2.55305040643316442583e03,
        3.19985821950859553908e03,
        1.53672958608443695994e03,
        3.25792512996573918826e02,
        3.03380607434824582924e01,
        1.0,
    ),
)

Rational = tuple[tuple[float, ...], tuple[float, ...]]

# atanh(erf(x)) / x as a polynomial of x², highest power first: fitted for |x| < 4.3, where the
# relative error of erf is the one that counts; beyond, it grows, as it should.
_ATANH_ERF = (
    5.42151346039077e-09,
    2.7578488825952263e-08,
    -4.794629148818785e-06,
    8.459670061711222e-05,
    -6.148385000415146e-04,
    -1.9528798106988107e-04,
    0.1027698665857315,
    1.128379225730896,
)
# -2 atanh(erf(x / sqrt(2))) / x likewise, but fitted for the error of gelu(x) by max(1, |x|), which
# is 2.3e-8 at most with a coefficient less.
GELU = (
    -3.6933236569202076e-09,
    2.714608854418136e-07,
    -8.025202158073693e-06,
    1.1120790431438779e-04,
    6.348294572047974e-05,
    -7.266412970275116e-02,
    -1.5957706151365867,
)


def erf(x: Array) -> Array:
    """Return the error function: to 1e-16 in float64, to 4 ulp in float32."""
    return np.tanh(_odd(_ATANH_ERF, x)) if x.dtype == float32 else _erf(x)


def gelu(x: Array, *, out: Array) -> None:
    """Compute x (1 + erf(x / √2)) / 2; to 1e-7 of max(1, |x|) in float32."""
    if x.dtype != float32:
        np.multiply(x, 0.5 + 0.5 * _erf(x / sqrt(2)), out=out)
        return
    t = _odd(GELU, x)  # (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u))
    np.exp(t, out=t)
    t += 1
    np.true_divide(x, t, out=out)


def _odd(coefficients: tuple[float, ...], x: Array) -> Array:
    """Return x times a polynomial of x², highest power first."""
    square = np.multiply(x, x, out=np.empty_like(x))
    total = np.multiply(square, coefficients[0], out=np.empty_like(x))
    total += coefficients[1]
    for coefficient in coefficients[2:]:
        total *= square
        total += coefficient
    total *= x
    return total


def _erf(x: Array) -> Array:
    wide = x.astype(float64)
    size = np.abs(wide, out=np.empty_like(wide))
    result = np.sign(wide, out=np.empty_like(wide))  # 1 from 6 on, NaN for NaN
    near = size < 0.84375
    t = wide[near]
    result[near] = t + t * _ratio(_SMALL, t * t)
    here = (size >= 0.84375) & (size < 1.25)
    result[here] *= _ERF_OF_ONE + _ratio(_MIDDLE, size[here] - 1)
    for rational, low, high in ((_LARGE, 1.25, 1 / 0.35), (_LARGEST, 1 / 0.35, 6.0)):
        here = (size >= low) & (size < high)
        t = size[here]
        square = t * t
        result[here] *= 1 - np.exp(_ratio(rational, 1 / square) - 0.5625 - square) / t
    return result


def _ratio(rational: Rational, x: Array) -> Array:
    above, below = (_polynomial(coefficients, x) for coefficients in rational)
    return above / below


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total *= x
        total += coefficient
    return total
