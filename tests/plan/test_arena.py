"""Placement in the arena: no overlap, never under the floor, and the textbook cases exactly."""

from itertools import pairwise

import numpy as np
import pytest

from tercet.runtime.plan import arena
from tercet.runtime.plan.arena import Allocation, aligned, pack, peak


def drawn() -> list[list[Allocation]]:
    """Return lists of none to 40 blocks of many sizes that live for a few steps each."""
    rng, found = np.random.default_rng(0), list[list[Allocation]]()
    for _ in range(200):
        count, most = rng.integers(41), rng.choice([300, 5000])
        sizes, first = rng.integers(1, most, count), rng.integers(0, 31, count)
        last = first + rng.integers(0, 13, count)
        blocks = zip(sizes.tolist(), first.tolist(), last.tolist(), strict=True)
        found.append([Allocation(aligned(size), *life) for size, *life in blocks])
    return found


def test_blocks_that_live_together_do_not_overlap() -> None:
    for found in drawn():
        size = pack(found)
        for i, a in enumerate(found):
            assert a.offset % 256 == 0
            assert a.offset + a.nbytes <= size
            for b in found[:i]:
                together = a.first <= b.last and b.first <= a.last
                apart = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
                assert apart or not together


def test_arena_is_between_the_floor_and_the_sum() -> None:
    for found in drawn():
        size = pack(found)
        assert peak(found) <= size <= sum(block.nbytes for block in found)


def test_a_chain_needs_its_greatest_pair_of_neighbours() -> None:
    rng = np.random.default_rng(1)
    for count in range(2, 31):
        sizes = rng.integers(1, 5001, count).tolist()
        chain = [Allocation(aligned(size), i, i + 1) for i, size in enumerate(sizes)]
        pairs = [a.nbytes + b.nbytes for a, b in pairwise(chain)]
        assert peak(chain) == max(pairs)
        assert pack(chain) == max(pairs)


def test_equal_tensors_in_a_chain_need_two_buffers() -> None:
    chain = [Allocation(25_600, i, i + 1) for i in range(8)]
    assert pack(chain) == 2 * 25_600


def test_a_skip_link_holds_its_buffer() -> None:
    skip = [
        Allocation(1024, 0, 3),
        Allocation(1024, 1, 2),
        Allocation(1024, 2, 3),
        Allocation(1024, 3, 4),
    ]
    assert pack(skip) == 3 * 1024


def test_nothing_needs_nothing() -> None:
    assert pack([]) == 0


@pytest.mark.parametrize("count", [30, 1000])
def test_lists_and_arrays_place_alike(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of blocks are placed by arrays, to the byte as few are by lists."""
    rng = np.random.default_rng(count)
    first, length = rng.integers(0, count, count), rng.choice([0, 1, 2, 5, count], count)
    sizes = 256 * rng.choice([0, 1, 1, 3, 10, 50], count)
    found: list[list[int]] = []
    for maximum in (0, 1 << 60):
        monkeypatch.setattr(arena, "MANY", maximum)
        blocks = [
            Allocation(*map(int, each)) for each in zip(sizes, first, first + length, strict=True)
        ]
        found.append([pack(blocks), *(block.offset for block in blocks)])
    assert found[0] == found[1]
