"""TensorFlow's special functions against integrals, sums and identities, in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from .test_tensorflow import computed

#: On both sides of where one formula takes over from another: 2 and 12.
ARGUMENTS = np.array([0.05, 0.7, 1.9, 2.0, 2.1, 5.0, 11.9, 12.0, 12.1, 30.0, 150.0])
ALONG, WEIGHTS = np.polynomial.legendre.leggauss(300)


def integral(function: Any, end: float) -> Any:
    """Return the integrals from 0 over the last axis, by Gauss and Legendre."""
    return function((ALONG + 1) * end / 2) @ WEIGHTS * end / 2


def bessel(kind: str, order: int, x: Any) -> Any:
    """Return what Bessel's integrals are (DLMF 10.9.2, 10.9.7, 10.32.3, 10.32.9)."""
    x = x[:, None]
    if kind == "J":
        return integral(lambda t: np.cos(order * t - x * np.sin(t)), math.pi) / math.pi
    if kind == "Y":
        waves = integral(lambda t: np.sin(x * np.sin(t) - order * t), math.pi)
        sign = (-1) ** order
        rest = integral(
            lambda t: (np.exp(order * t) + sign * np.exp(-order * t)) * np.exp(-x * np.sinh(t)), 8
        )
        return (waves - rest) / math.pi
    if kind == "I":
        return (
            integral(lambda t: np.exp(x * (np.cos(t) - 1)) * np.cos(order * t), math.pi) / math.pi
        )
    return integral(lambda t: np.exp(-2 * x * np.sinh(t / 2) ** 2) * np.cosh(order * t), 8)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("kind", ["I", "J", "K", "Y"])
def test_bessel(kind: str, order: int) -> None:
    wanted = bessel(kind, order, ARGUMENTS)
    if kind in "JY":
        found = computed(f"Bessel{kind}{order}", ARGUMENTS)
        np.testing.assert_allclose(found, wanted, 1e-9, 1e-11)
        return
    factor = np.exp(ARGUMENTS if kind == "I" else -ARGUMENTS)
    np.testing.assert_allclose(computed(f"Bessel{kind}{order}e", ARGUMENTS), wanted, 1e-10)
    np.testing.assert_allclose(computed(f"Bessel{kind}{order}", ARGUMENTS), wanted * factor, 1e-10)


@pytest.mark.parametrize("kind", ["I", "J"])
def test_bessel_of_negative_numbers(kind: str) -> None:
    for order, sign in enumerate((1, -1)):
        name = f"Bessel{kind}{order}"
        np.testing.assert_array_equal(computed(name, -ARGUMENTS), sign * computed(name, ARGUMENTS))


@pytest.mark.parametrize(
    ("name", "pole"), [("K0", np.inf), ("K1e", np.inf), ("Y0", -np.inf), ("Y1", -np.inf)]
)
def test_bessel_from_its_pole(name: str, pole: float) -> None:
    np.testing.assert_array_equal(computed(f"Bessel{name}", np.array([0.0, -1.0])), pole)


def gamma_sums(order: int, x: float) -> float:
    """Return the upper incomplete gamma function of a whole order."""
    return sum(math.exp(k * math.log(x) - x - math.lgamma(k + 1)) for k in range(order))


@pytest.mark.parametrize("order", [1, 2, 7, 100, 3000])
@pytest.mark.parametrize("share", [0.05, 0.8, 1.0, 1.001, 1.1, 6.0])
def test_incomplete_gamma_of_whole_orders(order: int, share: float) -> None:
    x = order * share
    upper = gamma_sums(order, x)
    a, at = np.float64(order), np.float64(x)
    np.testing.assert_allclose(computed("Igammac", a, at), upper, 1e-9)
    # All further terms of the sum, of which the first are the greatest where x is less.
    lower = gamma_sums(order + 600, x) - upper if share < 0.9 else 1 - upper
    np.testing.assert_allclose(computed("Igamma", a, at), lower, 1e-9, 1e-12)


def test_incomplete_gamma_elsewhere() -> None:
    x = np.array([1e-9, 0.01, 0.5, 1.49, 1.51, 9.0])
    half = np.full(6, 0.5)
    np.testing.assert_allclose(computed("Igamma", half, x), [math.erf(v**0.5) for v in x], 1e-10)
    np.testing.assert_allclose(computed("Igammac", half, x), [math.erfc(v**0.5) for v in x], 1e-10)
    # As in TensorFlow.
    a, x = np.array([0, 0, -1, 2, 2, 2]), np.array([0, 1, 1, -1, np.inf, 0])
    with np.errstate(all="ignore"):
        lower, upper = computed("Igamma", a * 1.0, x), computed("Igammac", a * 1.0, x)
    np.testing.assert_array_equal(lower, [0, np.nan, np.nan, np.nan, 1, 0])
    np.testing.assert_array_equal(upper, [np.nan, np.nan, np.nan, np.nan, 0, 1])


@pytest.mark.parametrize(("a", "c"), [(1, 1), (2, 3), (1, 40), (40, 1), (30, 50), (400, 300)])
def test_incomplete_beta_of_whole_numbers(a: int, c: int) -> None:
    count = a + c - 1
    for x in (1e-6, 0.2, a / (a + c), 0.58, 0.97):
        terms = [
            math.exp(
                math.lgamma(count + 1) - math.lgamma(j + 1) - math.lgamma(count - j + 1)
                + j * math.log(x) + (count - j) * math.log1p(-x)
            )
            for j in range(a, count + 1)
        ]  # fmt: skip
        found = computed("Betainc", np.float64(a), np.float64(c), np.float64(x))
        np.testing.assert_allclose(found, sum(terms), 1e-9)


def test_incomplete_beta_elsewhere() -> None:
    x = np.array([0, 1e-12, 0.001, 0.3, 0.5, 0.9, 0.9999, 1])
    half = np.full(8, 0.5)
    wanted = 2 / math.pi * np.arcsin(np.sqrt(x))
    np.testing.assert_allclose(computed("Betainc", half, half, x), wanted, 1e-10)
    small, one = np.full(8, 0.01), np.ones(8)
    np.testing.assert_allclose(computed("Betainc", small, one, x), x**0.01, 1e-10)
    wanted = -np.expm1(0.01 * np.log1p(-x[:-1]))
    found = computed("Betainc", one[:-1], small[:-1], x[:-1])
    np.testing.assert_allclose(found, wanted, 1e-9)
    bad = (
        np.array([0.0, 1, -1, 1, 1]),
        np.array([1.0, 0, 1, 2, 2]),
        np.array([0.5, 0.5, 0, 2, -1]),
    )
    with np.errstate(all="ignore"):
        assert np.isnan(computed("Betainc", *bad)).all()


def test_zeta() -> None:
    powers = np.array([2.0, 4.0, 2.0, 1e10, 3.0, 1.0, 0.5, 2.5, 2.0, 3.0, np.inf])
    starts = np.array([1.0, 1.0, 0.5, 1.0, np.inf, 1.0, 1.0, -0.5, -3.0, -3.0, 2.0])
    wanted = [math.pi**2 / 6, math.pi**4 / 90, math.pi**2 / 2, 1, 0, np.inf, *[np.nan] * 2,
              np.inf, np.nan, 0]  # fmt: skip
    with np.errstate(all="ignore"):
        found = computed("Zeta", powers, starts)
    np.testing.assert_allclose(found, wanted, 1e-14, 1e-80)


@pytest.mark.parametrize("power", [2.0, 3.0, 7.0])
def test_zeta_steps_across_zero(power: float) -> None:
    starts = np.array([-6.25, -2.4, -0.9, -0.1, 0.2, 3.0])
    powers = np.full(6, power)
    wanted = starts**-power + computed("Zeta", powers, starts + 1)
    np.testing.assert_allclose(computed("Zeta", powers, starts), wanted, 1e-11)


def test_polygamma() -> None:
    orders = np.array([0.0, 1.0, 1.0, 2.0, -1.0, 0.5])
    found = computed("Polygamma", orders, np.array([1, 1, 0.5, 1, 1, 1.0]))
    apery = 1.2020569031595942
    wanted = [-np.euler_gamma, math.pi**2 / 6, math.pi**2 / 2, -2 * apery, np.nan, np.nan]
    np.testing.assert_allclose(found, wanted, 1e-13)
    x = np.array([0.1, 0.3, 1.7, 5.2])
    both = computed("Polygamma", np.ones(4), x) + computed("Polygamma", np.ones(4), 1 - x)
    np.testing.assert_allclose(both, (math.pi / np.sin(math.pi * x)) ** 2, 1e-12)
