"""Transposes of tensors whose rows share sets of the cache, which are copied in pieces."""

from __future__ import annotations

import numpy as np
import pytest

import tercet
from tercet.backends.numpy.engine import apply

from .graphs import model, node, random


@pytest.mark.parametrize(
    "shape", [(70, 512), (300, 150), (3, 40, 1024), (2, 33, 32, 32), (2, 0, 3), (5, 7)]
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_every_element_is_copied(shape: tuple[int, ...], dtype: str) -> None:
    x = (100 * random(*shape)).astype(dtype)
    order = (0, *range(2, len(shape)), 1) if len(shape) > 2 else (1, 0)
    found = tercet.run_op("Transpose", x, perm=order)
    np.testing.assert_array_equal(found, x.transpose(order))


@pytest.mark.parametrize(("columns", "pieces"), [(1024, 5), (768, 3), (1000, 1)])
def test_colliding_rows_are_copied_some_at_a_time(columns: int, pieces: int) -> None:
    x = random(70, columns)
    proto = model([node("Transpose", "x", "t", perm=[1, 0]), node("Relu", "t", "y")], {"x": x}, {})
    assert len(list(apply._pieces(np.empty((columns, 70), x.dtype), x.T))) == pieces
    with tercet.load(proto) as loaded:
        np.testing.assert_array_equal(loaded.run({"x": x})["y"], np.maximum(x.T, 0))
