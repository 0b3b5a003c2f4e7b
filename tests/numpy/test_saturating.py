"""Whole floats are stored in short integers saturated, and NaN as the smallest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tercet import run_op
from tercet.backends.numpy.numerics.convert import SHORT, saturating

VALUES = np.array([-np.inf, -1e9, -32769, -129, -128, -1, -0.0, 0, 127, 255, 256, 65536, np.inf])
ALL = np.resize([*VALUES, np.nan], 3000).astype(np.float32)


def _run(tape: list[Callable[[], object]]) -> None:
    with np.errstate(invalid="ignore"):
        for call in tape:
            call()


def _wanted(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.nan_to_num(np.clip(x.astype(np.float64), limits.min, limits.max), nan=limits.min)


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_limits(dtype: np.dtype) -> None:
    x, out = ALL.reshape(3, -1), np.empty((3, 2000), dtype)[:, ::2]
    x = x.copy()
    _run(saturating(x, out))
    assert np.array_equal(out, _wanted(ALL.reshape(3, -1), dtype))


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_elements_that_are_shown(dtype: np.dtype) -> None:
    x = ALL[:100].copy()
    out = np.empty((5, 10), dtype)
    _run(saturating(x, out, x.reshape(5, 20)[:, ::2]))
    assert np.array_equal(out, _wanted(ALL[:100].reshape(5, 20)[:, ::2], dtype))


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("zero", [0, 3])
def test_quantized(dtype: np.dtype, zero: int) -> None:
    with np.errstate(invalid="ignore"):
        found = run_op("QuantizeLinear", ALL, np.float32(1), np.array(zero, dtype))
    assert np.array_equal(found, _wanted(ALL + zero, dtype))
