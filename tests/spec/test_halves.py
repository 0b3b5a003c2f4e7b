"""Rounding to 16-bit floats gives the bits that numpy's own casts give."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tercet.runtime.base import parallel
from tercet.runtime.ir.halves import rounded
from tercet.runtime.ir.types import Array

TYPES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def samples(dtype: type[np.floating]) -> Array:
    """Return numbers of all magnitudes, ties between subnormal ones, and all that is special."""
    rng = np.random.default_rng(1)
    ties = np.arange(-4100, 4100) * 2.0**-25
    exponents = rng.integers(-40, 20, 20_000)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.9, 65520, 2.0**-14, -(2.0**-25)]
    numbers = (ties, np.nextafter(ties, 1), rng.standard_normal(20_000) * 2.0**exponents, special)
    return np.concatenate(numbers).astype(dtype)


@pytest.mark.parametrize("wide", [np.float32, np.float64])
@pytest.mark.parametrize("narrow", TYPES, ids=str)
def test_bits_are_those_of_numpy(wide: type[np.floating], narrow: np.dtype) -> None:
    data = samples(wide)
    with np.errstate(all="ignore"):
        expected = data.astype(narrow)
    assert rounded(data, narrow).tobytes() == expected.tobytes()


def test_no_order_of_axes_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "WORTH_SHARING", 1)
    data = np.resize(samples(np.float32), (40, 30, 50))
    one = data[:1, :1, :1]
    for transposed in (
        data,
        data.T,
        data.transpose(1, 0, 2),
        data[::2, 1:],
        np.broadcast_to(one, (3, 4, 5)),
    ):
        with np.errstate(all="ignore"):
            expected = transposed.astype(np.float16)
        found = rounded(transposed, TYPES[0])
        assert found.shape == expected.shape
        assert np.array_equal(found.view(np.uint16), expected.view(np.uint16))


def test_other_types_and_scalars() -> None:
    assert rounded(np.arange(5), TYPES[0]).tolist() == [0, 1, 2, 3, 4]
    assert rounded(np.full((), 2.5, np.float32), TYPES[0]).shape == ()
    assert rounded(np.zeros((0, 3), np.float32), TYPES[0]).shape == (0, 3)
