"""Softmax of half floats: computed in float32, and rounded once."""

from __future__ import annotations

import numpy as np
import pytest

import tercet
from tercet.runtime.ir.dtypes import DType, bfloat16, float16


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
def test_halves_are_rounded_once(operator: str, dtype: DType, axis: int) -> None:
    x = (np.random.default_rng(0).standard_normal((40, 70)) * 3).astype(dtype)
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(axis, keepdims=True))
    exact = powers / powers.sum(axis, keepdims=True)
    if operator == "LogSoftmax":
        exact = np.log(exact)
    found = tercet.run_op(operator, x, axis=axis)
    place = np.spacing(np.abs(exact).astype(dtype)).astype(np.float64)
    assert found.dtype == dtype
    assert (np.abs(found.astype(np.float64) - exact) / place).max() < 0.51
