"""How weights are packed for tensor cores."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.backends.cuda.gemm.first_layer import pack_spans, pack_strips
from tercet.backends.cuda.gemm.pack import EIGHTS, filters_of, joined_groups, padded
from tercet.backends.cuda.recipe.operands import divisor
from tercet.backends.numpy import evaluate
from tercet.runtime.ops.conv import Conv

from .dry import normal


@pytest.mark.parametrize("dims", [(1, 1), (3, 130), (257, 128), (200, 300), (2, 140, 9)])
def test_rows_are_padded_whichever_way_they_lie(dims: tuple[int, ...]) -> None:
    columns = normal(*dims).swapaxes(-1, -2)
    for rows in (columns, np.ascontiguousarray(columns)):
        found = padded(rows, 8)
        count = rows.shape[-1]
        assert found.shape == (*rows.shape[:-1], -(-count // 8) * 8)
        np.testing.assert_array_equal(found[..., :count], rows)
        assert not found[..., count:].any()


def test_filters_are_rows_of_eights() -> None:
    w = normal(6, 5, 3, 3)
    packed = EIGHTS(filters_of(w, 2, 8))
    assert packed.shape == (2, 3, 72)
    np.testing.assert_array_equal(packed[1, 2].reshape(9, 8)[4, :5], w[5, :, 1, 1])
    assert not packed.reshape(6, 9, 8)[..., 5:].any()


def test_strips_hold_the_rows_of_windows() -> None:
    w = normal(6, 3, 7, 7)
    packed = pack_strips(w, 8).reshape(6, 7, 8, 4)
    np.testing.assert_array_equal(packed[:, 2, 5, :3], w[:, :, 2, 5])
    assert not packed[:, :, 7].any()
    assert not packed[..., 3].any()


def test_spans_hold_the_rows_of_windows() -> None:
    w = normal(6, 3, 7, 3)
    packed = pack_spans(w, 16, 2).reshape(6, 7, 2, 2, 4)
    for column, (place, pixel) in enumerate([(0, 0), (1, 0), (1, 1)]):
        np.testing.assert_array_equal(packed[:, 2, place, pixel, :3], w[:, :, 2, column])
    assert not packed[:, :, 0, 1].any()
    assert not packed[..., 3].any()


@pytest.mark.parametrize("d", [1, 2, 3, 7, 49, 196, 3136, 12544, 2**20, 2**30 - 1])
def test_division_by_multiplication(d: int) -> None:
    factor, shift = divisor(d)
    for n in (0, 1, d - 1, d, d + 1, 2 * d - 1, 2**31 - 1):
        assert (n * (factor % 2**32)) >> shift == n // d


@pytest.mark.parametrize("joined", [1, 2, 6])
def test_joined_groups_compute_what_groups_do(joined: int) -> None:
    """Against a convolution that is told nothing of it."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 24, 5, 6)).astype(np.float32)
    w = rng.standard_normal((12, 4, 3, 3)).astype(np.float32)
    wide = joined_groups(w, 6 // joined, joined)
    assert wide.shape == (12, 4 * joined, 3, 3)
    plain, found = (
        evaluate(Conv(group=group), [x, weights, None], 1)
        for group, weights in ((6, w), (6 // joined, wide))
    )
    assert plain is not None
    assert found is not None
    np.testing.assert_allclose(found[0], plain[0], rtol=1e-5, atol=1e-5)
