"""TopK where few elements are chosen of many, of which only candidates are sorted."""

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tercet

FLOATS = ("float32", "float16", "bfloat16")
CASES = [*product(("ties", "distinct"), (*FLOATS, "int64", "uint8")), *product(("nan",), FLOATS)]


@pytest.mark.parametrize("shape", [(6, 90), (1, 90), (2, 5000)], ids=str)
@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_as_a_stable_sort(
    kind: str, dtype: str, largest: int, count: int, shape: tuple[int, int]
) -> None:
    rng = np.random.default_rng(3)
    drawn: Any = (
        rng.integers(0, 4, shape)
        if kind == "ties"
        else rng.permuted(np.tile(np.arange(shape[1]), (shape[0], 1)), axis=1)
    )
    x = drawn.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    if kind == "nan":
        x[-1, [5, 40]] = np.nan
    values, places = tercet.run_op("TopK", x, np.array([count]), axis=1, largest=largest, outputs=2)
    key = np.where(np.isnan(x), np.inf, x.astype(float))
    order = np.argsort(-key if largest else key, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(places, order)
    expected = np.take_along_axis(x, order, 1)
    np.testing.assert_array_equal(values.astype(float), expected.astype(float))
