"""Memory planning: offsets of tensors with known lifetimes in one block, the arena."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

ALIGNMENT = 256
#: Number of blocks from which on numpy arrays are faster than lists.
MANY = 400


@dataclass(slots=True)
class Allocation:
    """Bytes that are needed from step `first` to step `last`, inclusive.

    Attributes:
        nbytes: size, a multiple of `ALIGNMENT` (see `aligned`).
        first: index of the step that writes it.
        last: index of the last step that reads it.
        offset: its start in the arena, set by `pack`.
    """

    nbytes: int
    first: int
    last: int
    offset: int = 0


def aligned(nbytes: int) -> int:
    """Return `nbytes` rounded up to the arena's alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


#: Orders in which blocks are placed greedily. None is best for every graph: chains with
#: skips like the largest first, long thin networks like the order of execution.
_ORDERS: tuple[Callable[[Allocation], tuple[int, ...]], ...] = (
    lambda b: (-b.nbytes, b.first),
    lambda b: (b.first, -b.nbytes),
    lambda b: (-b.nbytes * (b.last - b.first + 1), b.first),
    lambda b: (-(b.last - b.first), -b.nbytes),
)


def pack(blocks: Sequence[Allocation]) -> int:
    """Set the offset of every block so that blocks with overlapping lifetimes do not overlap.

    Offline dynamic storage allocation is NP-hard; this takes the best of a few greedy placements.
    `peak` is the lower bound to compare with; a chain, where each block overlaps only its
    neighbours, always reaches it.

    Returns:
        The size of the arena in bytes.
    """
    floor = peak(blocks)
    best: tuple[int, list[int]] = (0, []) if not blocks else _place_from_both_ends(blocks, floor)
    for order in _ORDERS:
        if best[0] == floor:
            break
        found = _place(blocks, sorted(range(len(blocks)), key=lambda i: order(blocks[i])))
        best = min(best, found, key=lambda placement: placement[0])
    for block, offset in zip(blocks, best[1], strict=True):
        block.offset = offset
    return best[0]


def peak(blocks: Sequence[Allocation]) -> int:
    """Return the maximum number of bytes alive at any time: a lower bound for every arena."""
    changes: dict[int, int] = {}
    for block in blocks:
        changes[block.first] = changes.get(block.first, 0) + block.nbytes
        changes[block.last + 1] = changes.get(block.last + 1, 0) - block.nbytes
    live = maximum = 0
    for step in sorted(changes):
        live += changes[step]
        maximum = max(maximum, live)
    return maximum


def _place(blocks: Sequence[Allocation], order: Sequence[int]) -> tuple[int, list[int]]:
    """Place each block in the tightest gap that is free over its lifetime."""
    arena = _placed(blocks)
    for i in order:
        gaps = [gap for gap in arena.gaps(i, None) if gap[1] - gap[0] >= blocks[i].nbytes]
        arena.put(i, min(gaps, key=lambda gap: gap[1] - gap[0])[0])
    return arena.size, arena.offsets


def _place_from_both_ends(blocks: Sequence[Allocation], cap: int) -> tuple[int, list[int]]:
    """Fill an arena of `cap` bytes alternately from the bottom and the top."""
    arena = _placed(blocks)
    for number, i in enumerate(sorted(range(len(blocks)), key=lambda i: blocks[i].first)):
        size = blocks[i].nbytes
        gaps = [gap for gap in arena.gaps(i, cap) if gap[1] - gap[0] >= size]
        if not gaps:
            arena.put(i, arena.gaps(i, None)[-1][0])
        elif number % 2:
            arena.put(i, gaps[-1][1] - size)
        else:
            arena.put(i, gaps[0][0])
    return arena.size, arena.offsets


def _placed(blocks: Sequence[Allocation]) -> _Placed | _ManyPlaced:
    return _ManyPlaced(blocks) if len(blocks) > MANY else _Placed(blocks)


def _last_gap(end: int, cap: int | None) -> list[tuple[int, int]]:
    """Return the free range after `end`: none if that is not below `cap`."""
    if cap is None:
        return [(end, 1 << 62)]
    return [(end, cap)] if cap > end else []


class _Placed:
    """Blocks that have been placed, sorted by offset."""

    def __init__(self, blocks: Sequence[Allocation]) -> None:
        self.blocks = blocks
        self.offsets = [0] * len(blocks)
        self.size = 0
        self._sorted: list[tuple[int, int]] = []

    def gaps(self, i: int, cap: int | None) -> list[tuple[int, int]]:
        """Return the free ranges over the lifetime of block `i`, up to `cap` or unbounded."""
        block, end = self.blocks[i], 0
        found: list[tuple[int, int]] = []
        for offset, j in self._sorted:
            other = self.blocks[j]
            if other.last < block.first or block.last < other.first:
                continue
            if offset > end:
                found.append((end, offset))
            end = max(end, offset + other.nbytes)
        return [*found, *_last_gap(end, cap)]

    def put(self, i: int, offset: int) -> None:
        """Place block `i`."""
        self.offsets[i] = offset
        self.size = max(self.size, offset + self.blocks[i].nbytes)
        insort(self._sorted, (offset, i))


class _ManyPlaced:
    """The same for thousands of blocks, with numpy arrays."""

    def __init__(self, blocks: Sequence[Allocation]) -> None:
        self.blocks = blocks
        self.offsets = [0] * len(blocks)
        self.size = 0
        self._count = 0
        #: Start and end of each block, and its first and last step.
        self._table = np.zeros((4, len(blocks)), np.int64)

    def gaps(self, i: int, cap: int | None) -> list[tuple[int, int]]:
        """Return the free ranges over the lifetime of block `i`, up to `cap` or unbounded."""
        block = self.blocks[i]
        starts, ends, firsts, lasts = self._table[:, : self._count]
        alive = (lasts >= block.first) & (firsts <= block.last)
        starts, reached = starts[alive], np.maximum.accumulate(ends[alive])
        before = np.concatenate([[0], reached[:-1]]) if reached.size else reached
        free = starts > before
        found = list(zip(before[free].tolist(), starts[free].tolist(), strict=True))
        return [*found, *_last_gap(int(reached[-1]) if reached.size else 0, cap)]

    def put(self, i: int, offset: int) -> None:
        """Place block `i`."""
        block, count = self.blocks[i], self._count
        self.offsets[i] = offset
        self.size = max(self.size, offset + block.nbytes)
        at = int(np.searchsorted(self._table[0, :count], offset, "right"))
        self._table[:, at + 1 : count + 1] = self._table[:, at:count]
        self._table[:, at] = offset, offset + block.nbytes, block.first, block.last
        self._count += 1
