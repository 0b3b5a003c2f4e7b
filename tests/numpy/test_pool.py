"""Max-pooling with its second result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tercet
from tercet.runtime.ir.dtypes import DType, float16, float32


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
