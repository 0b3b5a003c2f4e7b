"""How long work takes on one core, roughly, and into how many blocks it is worth cutting."""

from __future__ import annotations

#: Nanoseconds of one multiplication in a product of matrices.
PRODUCT = 0.02
#: Nanoseconds that a call takes for one element of the result while that is in the cache.
ELEMENT = 0.3
#: Nanoseconds of fetching an element of a matrix that is used once.
FETCH = 0.2

#: Nanoseconds of work below which waking another thread costs more than it helps.
WORTH = 250_000
#: Fewest nanoseconds of a block. Each thread gets up to `MAX_BLOCKS` of them, because one thread
#: may be late, but only of `LARGE_BLOCK` ones: threads hold each other up with every call.
MIN_BLOCK, LARGE_BLOCK, MAX_BLOCKS = 60_000, 500_000, 2


def blocks_worth(nanoseconds: float, workers: int) -> int:
    """Return how many blocks work should be cut into, one if it is best done by the caller."""
    if workers == 1 or nanoseconds < WORTH:
        return 1
    share = max(1, min(workers, int(nanoseconds / MIN_BLOCK)))
    return max(share, min(MAX_BLOCKS * workers, int(nanoseconds / LARGE_BLOCK)))
