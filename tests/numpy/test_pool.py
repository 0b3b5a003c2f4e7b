"""Poolings: both ways to reduce windows, and the second result of maxima."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import tercet
from tercet.backends.numpy.windows.sliding import Sliding
from tercet.runtime.ir.dtypes import DType, float16, float32

from ..ops.case import Case, check
from ..ops.cases_pool import AVERAGES, MAXIMA


@pytest.fixture(params=[0.0, inf], ids=["along one row", "axis by axis"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce windows in one way, whether it is estimated to be faster or not."""
    monkeypatch.setattr(Sliding, "nanoseconds", request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("case", [*MAXIMA, *AVERAGES], ids=str)
def test_windows_are_reduced_either_way(case: Case) -> None:
    check(case, "numpy")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_infinities_and_nans_stay_in_their_windows(op: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 9, 8)).astype(float32)
    x[0, 0, 0, 7], x[0, 1, 8, 7], x[0, 2, 8, 0], x[1, 0, 4, 7] = np.nan, np.inf, np.nan, -np.inf
    got = tercet.run_op(op, x, kernel_shape=(3, 2), strides=(2, 1), pads=(1, 1, 1, 0))
    pads, outside = ((0, 0), (0, 0), (1, 1), (1, 0)), -inf if op == "MaxPool" else np.nan
    padded = np.pad(x.astype(np.float64), pads, constant_values=outside)
    windows = sliding_window_view(padded, (3, 2), (2, 3))[:, :, ::2]
    if op == "MaxPool":
        np.testing.assert_array_equal(got, windows.max((-2, -1)))
        return
    inside = sliding_window_view(np.pad(np.ones(x.shape), pads), (3, 2), (2, 3))[:, :, ::2] > 0
    want = np.add.reduce(windows, (-2, -1), where=inside) / inside.sum((-2, -1))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": (2, 2)},
        {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 1, 1, 0)},
        {"kernel_shape": (1, 1), "pads": (1, 1, 1, 1)},
    ],
    ids=str,
)
def test_to_ask_for_positions_changes_no_result(window: dict[str, Any], dtype: DType) -> None:
    """NaN is the greatest of its window, and the position is that of what was taken."""
    x = np.random.default_rng(0).standard_normal((2, 3, 7, 6)).astype(dtype)
    x[x > 1] = np.nan
    want = tercet.run_op("MaxPool", x, **window)
    got, places = tercet.run_op("MaxPool", x, outputs=2, **window)
    np.testing.assert_array_equal(got, want)
    inside = places >= 0
    np.testing.assert_array_equal(got[inside], x.ravel()[places[inside]])
    assert np.isneginf(got[~inside]).all()
    assert np.isnan(got).any()
