"""Work on large arrays that several threads share, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.base import parallel
from tercet.runtime.ir.types import Array


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "WORTH_SHARING", 1)
    monkeypatch.setattr(parallel, "COPIED", 40)


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("parts", "axis"),
    [
        ([numbers(7, 3), numbers(7, 5), numbers(7, 1)], 1),
        ([numbers(7, 3), numbers(2, 3)], 0),
        ([numbers(3, 7).T, numbers(5, 7).T], 1),
        ([numbers(3, 7).T, numbers(7, 5)], 1),
        ([numbers(2, 3, 4), numbers(2, 0, 4), numbers(2, 6, 4)], 1),
        ([numbers(5), numbers(300)], 0),
        ([numbers(0, 4), numbers(0, 4)], 1),
    ],
    ids=["columns", "rows", "transposed", "both orders", "an empty one", "vectors", "none"],
)
def test_joined_like_numpy(parts: list[Array], axis: int) -> None:
    found, expected = parallel.joined(parts, axis), np.concatenate(parts, axis)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype
    assert found.strides == expected.strides
