"""Reductions of short rows give the bits that numpy finds row by row."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tercet
from tercet.backends.numpy.numerics.short_rows import reduced

SHAPES = [(9000, 4), (3, 70, 16), (64, 17), (63, 2), (5000, 1), (80, 0), (0, 3), (7,)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int64", "uint8", "bool"])
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_extremes(shape: tuple[int, ...], name: str, op: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name)) if name == "bfloat16" else np.dtype(name)
    x = (4 * np.random.default_rng(1).standard_normal(shape)).astype(np.float32)
    if dtype.kind in "fV" and x.size:
        x.flat[[0, -1]] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        x = x.astype(dtype)
    found = tercet.run_op(op, x, np.array([-1]))
    wide = x.astype(np.float64) if dtype.kind in "fV" else x
    function = np.max if op == "ReduceMax" else np.min
    if x.shape[-1]:
        assert np.array_equal(found.astype(wide.dtype), function(wide, -1, keepdims=True), True)
    else:
        assert found.shape == (*shape[:-1], 1)


@pytest.mark.parametrize("size", range(1, 18))
@pytest.mark.parametrize("name", ["float32", "float64", "int32", "uint8"])
def test_bits_of_sums_and_products(size: int, name: str) -> None:
    x = (3 * np.random.default_rng(1).standard_normal((5000, size))).astype(np.float32)
    with np.errstate(invalid="ignore"):
        x = x.astype(name)
    x[3] = -0.0
    for function in (np.add, np.multiply):
        alone = [function.reduce(row, -1, x.dtype, keepdims=True) for row in x[:200]]
        with np.errstate(over="ignore"):
            found = reduced(function, x)
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(found[:200], alone)
        assert found.tobytes() == function.reduce(x, -1, x.dtype, keepdims=True).tobytes()


@pytest.mark.parametrize("size", [2, 10, 16])
def test_softmax(size: int) -> None:
    x = np.random.default_rng(1).standard_normal((3000, size)).astype(np.float32)
    x[5], x[6, 0] = -np.inf, np.inf
    with np.errstate(invalid="ignore"):
        wide = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
        found, alone = tercet.run_op("Softmax", x), tercet.run_op("Softmax", x[:9])
        np.testing.assert_allclose(found, wide / wide.sum(-1, keepdims=True), rtol=1e-6)
    assert np.array_equal(found[:9], alone, equal_nan=True)
