"""Weight compression: pruning, value sharing, and gaps between the remaining positions.

Han, Mao and Dally, "Deep Compression" (ICLR 2016): magnitude pruning, k-means codebooks with evenly
spaced initial values, 8-bit gaps with zero fillers for longer ones, and Huffman codes.
"""

from __future__ import annotations

import heapq
from typing import Any, cast

import numpy as np

from ...runtime.ir.types import Array

#: Maximum gap in a byte; longer ones need fillers.
MAX_GAP = 255
#: Codes are bytes.
MAX_BITS = 8
_MAX_STEPS = 100


def pruned(weights: Array, sparsity: float) -> Array:
    """Return a copy in which the smallest elements are zero.

    Args:
        weights: floats of any shape.
        sparsity: fraction of elements that become zero, 0 to 1.
    """
    count = round(sparsity * weights.size)
    found = weights.copy().reshape(-1)
    if count:
        found[np.argpartition(np.abs(found), count - 1)[:count]] = 0
    return found.reshape(weights.shape)


def gaps_of(positions: Array) -> tuple[Array, Array]:
    """Return the gaps between positions as bytes, and which are not fillers.

    The first gap counts from 0; the running sum gives positions, including those of fillers.

    Args:
        positions: int64, ascending.
    """
    steps = np.diff(positions, prepend=0)
    fillers = np.maximum(steps - 1, 0) // MAX_GAP
    last = np.cumsum(fillers + 1) - 1
    gaps = np.full(int(last[-1]) + 1 if len(last) else 0, MAX_GAP, np.uint8)
    gaps[last] = steps - MAX_GAP * fillers
    is_weight = np.zeros(len(gaps), bool)
    is_weight[last] = True
    return gaps, is_weight


def shared(values: Array, clusters: int) -> tuple[Array, Array]:
    """Return codes as bytes, and their codebook.

    One-dimensional k-means: Lloyd's algorithm on sorted values until convergence.

    Args:
        values: at least one float along one axis.
        clusters: maximum size of the codebook, 1 to 256.
    """
    order = np.sort(values.astype(np.float64))
    sums = np.concatenate([[0.0], np.cumsum(order)])
    centres = np.unique(np.linspace(order[0], order[-1], clusters))
    bounds = np.empty(0, np.int64)
    for _ in range(_MAX_STEPS):
        found = np.searchsorted(order, (centres[1:] + centres[:-1]) / 2)
        if np.array_equal(found, bounds):
            break
        bounds = found
        ends = np.concatenate([[0], bounds, [len(order)]])
        sizes = np.diff(ends)
        centres = np.where(sizes, np.diff(sums[ends]) / np.maximum(sizes, 1), centres)
    centres = np.unique(centres).astype(values.dtype)
    centres = centres[np.append(True, centres[1:] != centres[:-1])]
    middles = (centres[1:].astype(np.float64) + centres[:-1]) / 2
    return np.searchsorted(middles, values).astype(np.uint8), centres


def huffman_lengths(symbols: Array) -> dict[int, int]:
    """Return the code lengths of an optimal prefix code; a single symbol takes 1 bit."""
    kinds, counts = np.unique(symbols, return_counts=True)
    heap: list[Any] = [
        (int(n), i, (int(kind),)) for i, (kind, n) in enumerate(zip(kinds, counts, strict=True))
    ]
    lengths = dict.fromkeys((int(kind) for kind in kinds), int(len(heap) == 1))
    heapq.heapify(heap)
    while len(heap) > 1:
        first, second = heapq.heappop(heap), heapq.heappop(heap)
        members = cast("tuple[int, ...]", first[2] + second[2])
        for kind in members:
            lengths[kind] += 1
        heapq.heappush(heap, (first[0] + second[0], first[1], members))
    return lengths


def huffman_bytes(symbols: Array) -> int:
    """Return the size of symbols in a Huffman code, with one table byte per distinct symbol."""
    lengths = huffman_lengths(symbols)
    kinds, counts = np.unique(symbols, return_counts=True)
    bits = sum(lengths[int(kind)] * int(n) for kind, n in zip(kinds, counts, strict=True))
    return -(-bits // 8) + len(kinds)
