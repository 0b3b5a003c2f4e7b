"""Blocks cover a tensor once, and threads get as many each."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.backends.numpy.engine.blocking import blocks, lengths
from tercet.backends.numpy.engine.cost import balanced, blocks_worth


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("limit", [1, 7, 60, 1254, 10**6])
@pytest.mark.parametrize("shape", [(55, 55), (1, 13, 13), (5,), (3, 2, 40), (1, 1), ()])
def test_blocks_cover_everything_once(shape: tuple[int, ...], limit: int, workers: int) -> None:
    seen = np.zeros(shape, int)
    for block in blocks(shape, limit, workers):
        assert np.prod(lengths(block), dtype=int) <= limit or max(lengths(block)) == 1
        seen[block] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize(
    ("shape", "limit", "workers", "count"),
    [
        ((55, 55), 1254, 1, 3),
        ((55, 55), 1254, 2, 4),  # not 3: the third would be half of the time
        ((55, 55), 1254, 8, 3),  # fewer than threads
        ((55, 55), 3025, 2, 1),
        ((5, 100), 100, 2, 5),  # a row cannot be cut
        ((2, 3, 100), 100, 2, 6),
        ((111, 111), 25 * 111, 2, 6),
        ((111, 111), 25 * 111, 3, 6),
    ],
)
def test_each_thread_gets_as_many(
    shape: tuple[int, ...], limit: int, workers: int, count: int
) -> None:
    assert len(list(blocks(shape, limit, workers))) == count


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("nanoseconds", [0.0, 1e5, 2e5, 5e5, 1.6e6, 3e6, 1e9])
def test_work_is_cut_into_rounds_without_rest(nanoseconds: float, workers: int) -> None:
    count = blocks_worth(nanoseconds, workers)
    assert count <= workers or count % workers == 0
    assert balanced(count, workers) == count
