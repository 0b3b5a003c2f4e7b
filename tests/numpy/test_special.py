"""How exact the float32 versions of erf and of what is made of it are."""

from __future__ import annotations

from math import erf as exact_erf
from math import erfc, sqrt

import numpy as np
import pytest

import tercet
from tercet.backends.numpy.numerics.elementwise import ELEMENTWISE
from tercet.backends.numpy.numerics.special import GELU, erf
from tercet.runtime.ir.op import Op
from tercet.runtime.ops.elementwise import Gelu, HardSwish, Swish

X = np.concatenate([np.linspace(-9, 9, 40001), np.logspace(-30, 0, 4001)]).astype(np.float32)


def units(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the differences in units of the last place of what is wanted."""
    return np.abs(found - wanted) / np.spacing(np.abs(wanted).astype(np.float32))


def test_erf_in_float32() -> None:
    wanted = np.array([exact_erf(float(x)) for x in X])
    found = erf(X)
    assert found.dtype == np.float32
    assert units(found, wanted).max() <= 4
    assert np.abs(found).max() <= 1


def test_erf_at_the_edges() -> None:
    with np.errstate(all="ignore"):
        found = erf(np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e30], np.float32))
    assert np.array_equal(found, np.array([0, 0, 1, -1, np.nan, 1], np.float32), equal_nan=True)
    assert np.signbit(found[1])


def formula(op: Op, x: float) -> float:
    """Return an activation of a number in float64."""
    if isinstance(op, Swish):
        return x / (1 + np.exp(-op.alpha * x))
    if isinstance(op, HardSwish):
        return x * max(0.0, min(1.0, x / 6 + 0.5))
    if isinstance(op, Gelu) and op.approximate == "tanh":
        return x / (1 + np.exp(-2 * sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * erfc(-x / sqrt(2))


@pytest.mark.parametrize(
    "op", [Gelu(), Gelu(approximate="tanh"), Swish(), Swish(alpha=1.702), HardSwish()], ids=str
)
def test_activation_in_float32(op: Op) -> None:
    wanted = np.array([formula(op, float(x)) for x in X])
    found = np.empty_like(X)
    with np.errstate(all="ignore"):
        ELEMENTWISE[type(op)](op)(X, out=found)
    assert (np.abs(found - wanted) <= 3e-7 * np.maximum(np.abs(X), 1e-3)).all()


@pytest.mark.parametrize("op", [Gelu(), Gelu(approximate="tanh"), Swish(), HardSwish()], ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_in_place(op: Op, dtype: type) -> None:
    x = np.linspace(-3, 3, 1001).astype(dtype)
    apart, inside = np.empty_like(x), x.copy()
    function = ELEMENTWISE[type(op)](op)
    function(x, out=apart)
    function(inside, out=inside)
    assert np.array_equal(apart, inside)


@pytest.mark.parametrize("exponent", [-3.0, -2.0, -1.0, 3.0, 4.0, 5.0, 0.0])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_whole_powers_of_negative_numbers(exponent: float, dtype: str) -> None:
    values = [-np.inf, -3.5, -1, -0.0, 0.0, 0.25, 2, np.inf, np.nan]
    x, e = np.array(values * 3, dtype), np.array(exponent, dtype)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), exponent).astype(dtype)
    found = tercet.run_op("Pow", x, e)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(want))
    np.testing.assert_allclose(found, want, rtol=2e-3 if dtype == "float16" else 1e-6)


def test_gelu_polynomial() -> None:
    """The coefficients, without float32's rounding, which is several times their error."""
    x = np.linspace(-12, 12, 6001)
    exponent = x * np.polyval(GELU, x * x)
    wanted = np.array([formula(Gelu(), each) for each in x.tolist()])
    with np.errstate(over="ignore"):
        error = np.abs(x / (1 + np.exp(exponent)) - wanted)
    assert (error / np.maximum(1, np.abs(x))).max() < 2.5e-8
