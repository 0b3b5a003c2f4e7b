"""Statistics of differences: known values."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import DTypeLike

from tercet.tools.verdict.differences import Differences, differences


def of(reference: object, found: object, dtype: DTypeLike = np.float32) -> Differences:
    made = differences(np.array(reference, dtype), np.array(found, dtype))
    assert made is not None
    return made


def test_quantiles() -> None:
    x = np.zeros(1001)
    made = of(x, np.arange(1001), np.float64)
    assert made.mean == 500
    assert (made.median, made.p90, made.p99, made.p999) == pytest.approx((500, 900, 990, 999))


@pytest.mark.parametrize(
    ("reference", "found", "cosine"),
    [
        ([1, 0], [1, 0], 1),
        ([1, 0], [0, 1], 0),
        ([1, 0], [-2, 0], -1),
        ([1, 1], [1, 0], math.sqrt(0.5)),
        ([0, 0], [1, 0], math.nan),
    ],
)
def test_cosine(reference: list[int], found: list[int], cosine: float) -> None:
    assert of(reference, found).cosine == pytest.approx(cosine, nan_ok=True)


def test_psnr() -> None:
    """A range of 10, and every element off by 0.1: 20 log10(100) decibels."""
    assert of([0, 10], [0.1, 10.1], np.float64).psnr == pytest.approx(40)
    assert of([0, 10], [0, 10]).psnr == math.inf


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_units_in_the_last_place(dtype: DTypeLike) -> None:
    one = np.array([1, -1, 0], dtype)
    up = np.nextafter(one, np.array(np.inf, dtype))
    made = differences(one, up)
    assert made is not None
    assert made.ulp == 1
    assert of([0.0], [-0.0], dtype).ulp == 0


def test_units_count_across_zero() -> None:
    tiny = np.array([np.float32(1e-45)])
    made = differences(tiny, -tiny)
    assert made is not None
    assert made.ulp == 2


def test_best_classes() -> None:
    reference = np.arange(20).reshape(2, 10)
    swapped = reference.copy()
    swapped[0, [8, 9]] = swapped[0, [9, 8]]
    made = of(reference, swapped)
    assert made.top1 == 0.5
    assert made.top5 == 1
    lost = reference.copy()
    lost[1, 9] = -1
    assert of(reference, lost).top5 == 0.5
    assert of(reference.reshape(2, 10, 1, 1), lost.reshape(2, 10, 1, 1)).top5 == 0.5
    assert of([[1, 2]], [[1, 2]]).top5 is None
    assert of([[1]], [[1]]).top1 is None


def test_what_has_no_numbers() -> None:
    texts = np.array(["a"], object)
    assert differences(texts, texts) is None
    assert differences(np.zeros(0), np.zeros(0)) is None
    assert differences(np.array([np.nan]), np.array([np.nan])) is None


def test_nan_and_infinities_are_left_out() -> None:
    made = of([1, np.nan, np.inf, 2], [1, np.nan, np.inf, 4])
    assert made.mean == 1
    assert made.top1 is None


def test_integers_and_complex_numbers() -> None:
    whole = of([1, 5], [1, 7], np.int32)
    assert (whole.mean, whole.ulp, whole.top1) == (1, None, None)
    assert of([1j], [2j], np.complex64).mean == 1
