"""Cumulative sums and products, row by row where rows are long."""

from __future__ import annotations

import numpy as np
import pytest

import tercet

SHAPES = [
    *(((7, 5, 90), 1), ((6, 200), 0), ((4, 3), 0), ((5, 64), 1)),
    *(((1, 80), 0), ((0, 80), 0), ((70, 8), 1)),
]


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "float64"])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_as_numpy_in_float64(
    shape: tuple[int, ...], axis: int, dtype: str, exclusive: int, reverse: int
) -> None:
    x = np.random.default_rng(2).integers(-9, 9, shape).astype(dtype)  # all sums are exact
    found = tercet.run_op("CumSum", x, np.array(axis), exclusive=exclusive, reverse=reverse)
    wide = np.flip(x, axis) if reverse else x
    want = np.cumsum(wide.astype(np.float64), axis)
    want = want - wide if exclusive else want
    np.testing.assert_array_equal(found, np.flip(want, axis) if reverse else want)
