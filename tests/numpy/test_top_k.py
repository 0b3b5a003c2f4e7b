"""TopK where few elements are chosen of many, which are partitioned before they are sorted."""

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tercet

FLOATS = ("float32", "float16", "bfloat16")
CASES = [*product(("ties", "distinct"), (*FLOATS, "int64", "uint8")), *product(("nan",), FLOATS)]


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_as_a_stable_sort(kind: str, dtype: str, largest: int) -> None:
    rng = np.random.default_rng(3)
    drawn: Any = (
        rng.integers(0, 4, (6, 90))
        if kind == "ties"
        else rng.permuted(np.tile(np.arange(90), (6, 1)), axis=1)
    )
    x = drawn.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    if kind == "nan":
        x[2, [5, 40]] = np.nan
    values, places = tercet.run_op("TopK", x, np.array([7]), axis=1, largest=largest, outputs=2)
    key = np.where(np.isnan(x), np.inf, x.astype(float))
    order = np.argsort(-key if largest else key, axis=1, kind="stable")[:, :7]
    np.testing.assert_array_equal(places, order)
    expected = np.take_along_axis(x, order, 1)
    np.testing.assert_array_equal(values.astype(float), expected.astype(float))
