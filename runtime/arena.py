"""Placing tensors with known lifetimes in one block of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

ALIGNMENT = 256


@dataclass(slots=True)
class Block:
    """Bytes that are needed from step `first` to step `last`, both included.

    Attributes:
        nbytes: size, a multiple of `ALIGNMENT` (see `aligned`).
        first: number of the step that writes it.
        last: number of the last step that reads it.
        offset: where it starts in the arena, once `pack` has placed it.
    """

    nbytes: int
    first: int
    last: int
    offset: int = 0


def aligned(nbytes: int) -> int:
    """Return `nbytes` rounded up to the arena's alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


#: Orders in which greedy placement takes the blocks. None is best for every graph: chains with
#: skips like the largest first, long thin networks like the order of execution.
_ORDERS: tuple[Callable[[Block], tuple[int, ...]], ...] = (
    lambda b: (-b.nbytes, b.first),
    lambda b: (b.first, -b.nbytes),
    lambda b: (-b.nbytes * (b.last - b.first + 1), b.first),
    lambda b: (-(b.last - b.first), -b.nbytes),
)


def pack(blocks: Sequence[Block]) -> int:
    """Set the offset of every block so that no two that live at one time overlap.

    Offline dynamic storage allocation is NP-hard; this takes the best of a few greedy orders, each
    of which puts a block into the tightest gap that is free over its whole life. `peak` is the
    lower bound to compare with.

    Returns:
        The size of the arena in bytes.
    """
    best: tuple[int, list[int]] | None = None
    floor = peak(blocks)
    for order in _ORDERS:
        size, offsets = _place(blocks, sorted(range(len(blocks)), key=lambda i: order(blocks[i])))
        if best is None or size < best[0]:
            best = size, offsets
        if size == floor:
            break
    if best is None:
        return 0
    for block, offset in zip(blocks, best[1], strict=True):
        block.offset = offset
    return best[0]


def peak(blocks: Sequence[Block]) -> int:
    """Return the greatest number of bytes that live at one time: no arena can be smaller."""
    changes: dict[int, int] = {}
    for block in blocks:
        changes[block.first] = changes.get(block.first, 0) + block.nbytes
        changes[block.last + 1] = changes.get(block.last + 1, 0) - block.nbytes
    live = most = 0
    for step in sorted(changes):
        live += changes[step]
        most = max(most, live)
    return most


def _place(blocks: Sequence[Block], order: Sequence[int]) -> tuple[int, list[int]]:
    offsets = [0] * len(blocks)
    placed: list[int] = []  # by offset
    size = 0
    for i in order:
        block = blocks[i]
        at, tightest, end = None, None, 0
        for j in placed:
            other = blocks[j]
            if other.last < block.first or block.last < other.first:
                continue
            gap = offsets[j] - end
            if gap >= block.nbytes and (tightest is None or gap < tightest):
                at, tightest = end, gap
            end = max(end, offsets[j] + other.nbytes)
        offsets[i] = end if at is None else at
        size = max(size, offsets[i] + block.nbytes)
        position = len(placed)
        while position and offsets[placed[position - 1]] > offsets[i]:
            position -= 1
        placed.insert(position, i)
    return size, offsets
