"""Counter-based random numbers: Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, 2011).

Elements 2n and 2n + 1 of a result derive from the four words of counter n, with the seed as key:
the word pairs (0, 1) and (2, 3) are 53-bit numbers in [0, 1); the Box-Muller transform makes both
into two normally distributed numbers. So a number depends only on its position and the seed, and
every backend gives the same ones: `backends/cuda/kernels/elementwise/random.cu`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ....runtime.ir.types import Array

ROUNDS = 10
#: Multipliers of words 0 and 2, and the key increments per round.
MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL = 0x9E3779B9, 0xBB67AE85
#: Counters per block.
BLOCK = 1 << 14

_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(counter: tuple[Array, Array, Array, Array], key: tuple[int, int]) -> tuple[Array, ...]:
    """Return four words per counter; 32-bit words in uint64."""
    w0, w1, w2, w3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        a, b = MULTIPLIERS[0] * w0, MULTIPLIERS[1] * w2
        w0, w1 = (b >> _SHIFT) ^ w1 ^ np.uint64(k0), b & _LOW
        w2, w3 = (a >> _SHIFT) ^ w3 ^ np.uint64(k1), a & _LOW
        k0, k1 = k0 + WEYL[0] & 0xFFFFFFFF, k1 + WEYL[1] & 0xFFFFFFFF
    return w0, w1, w2, w3


def _blocks(seed: int, count: int) -> Iterator[tuple[slice, Array, Array]]:
    """Yield the ranges of pairs among `count` pairs, and their numbers in [0, 1)."""
    key = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for first in range(0, count, BLOCK):
        last = min(first + BLOCK, count)
        n = np.arange(first, last, dtype=np.uint64)
        none = np.zeros_like(n)
        w = philox((n & _LOW, n >> _SHIFT, none, none), key)
        yield slice(first, last), _unit(w[0], w[1]), _unit(w[2], w[3])


def _unit(high: Array, low: Array) -> Array:
    """Return numbers in [0, 1) from two words each."""
    return ((high << np.uint64(21)) ^ (low >> np.uint64(11))) * 2.0**-53


def uniform(seed: int, shape: tuple[int, ...]) -> Array:
    """Return uniform numbers in [0, 1), as float64."""
    count = int(np.prod(shape, dtype=np.int64))
    found = np.empty((-(-count // 2), 2))
    for part, first, second in _blocks(seed, len(found)):
        found[part, 0], found[part, 1] = first, second
    return found.reshape(-1)[:count].reshape(shape)


def normal(seed: int, shape: tuple[int, ...]) -> Array:
    """Return standard normal numbers, as float64."""
    count = int(np.prod(shape, dtype=np.int64))
    found = np.empty((-(-count // 2), 2))
    for part, first, second in _blocks(seed, len(found)):
        size, angle = np.sqrt(-2.0 * np.log(1.0 - first)), 2.0 * np.pi * second
        found[part, 0], found[part, 1] = size * np.cos(angle), size * np.sin(angle)
    return found.reshape(-1)[:count].reshape(shape)
