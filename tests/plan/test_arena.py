"""Placement in the arena: no overlap, never under the floor, and the textbook cases exactly."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tercet.runtime.plan import arena
from tercet.runtime.plan.arena import Allocation, aligned, pack, peak

blocks = st.lists(
    st.builds(
        lambda size, first, life: Allocation(aligned(size), first, first + life),
        st.integers(1, 5000),
        st.integers(0, 30),
        st.integers(0, 12),
    ),
    max_size=40,
)

#: A busy machine is no fault.
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@calm
@given(blocks)
def test_blocks_that_live_together_do_not_overlap(found: list[Allocation]) -> None:
    size = pack(found)
    for i, a in enumerate(found):
        assert a.offset % 256 == 0
        assert a.offset + a.nbytes <= size
        for b in found[:i]:
            together = a.first <= b.last and b.first <= a.last
            apart = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
            assert apart or not together


@calm
@given(blocks)
def test_arena_is_between_the_floor_and_the_sum(found: list[Allocation]) -> None:
    size = pack(found)
    assert peak(found) <= size <= sum(block.nbytes for block in found)


@calm
@given(st.lists(st.integers(1, 5000), min_size=2, max_size=30))
def test_a_chain_needs_its_greatest_pair_of_neighbours(sizes: list[int]) -> None:
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
