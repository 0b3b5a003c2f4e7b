"""A rough cost model for one core, and the number of blocks worth making."""

from __future__ import annotations

from ....runtime.ir.graph import Node
from ....runtime.plan.macs import is_static, macs

#: Nanoseconds per multiplication in a matrix product.
PRODUCT = 0.02
#: Nanoseconds per element of a call on cached data.
ELEMENT = 0.3
#: Nanoseconds to fetch an element of a matrix that is used once.
FETCH = 0.2

#: Minimum nanoseconds of work worth waking another thread.
WORTH = 120_000
#: Fewest nanoseconds of a block. Each thread gets up to `MAX_BLOCKS` of them, because one thread
#: may be late, but only of `LARGE_BLOCK` ones: threads hold each other up with every call.
MIN_BLOCK, LARGE_BLOCK, MAX_BLOCKS = 60_000, 500_000, 2


def balanced(count: int, workers: int) -> int:
    """Return a number of equal blocks, at least `count`, that leaves no thread without a last one.

    Fewer blocks than threads are left as they are.
    """
    return count if count < workers else -(-count // workers) * workers


def blocks_worth(nanoseconds: float, workers: int) -> int:
    """Return the number of blocks for some work, one if the caller should do it alone."""
    if workers == 1 or nanoseconds < WORTH:
        return 1
    share = max(1, min(workers, int(nanoseconds / MIN_BLOCK)))
    most = min(MAX_BLOCKS * workers, int(nanoseconds / LARGE_BLOCK))
    return balanced(max(share, most), workers)


def workers_worth(nanoseconds: float, workers: int) -> int:
    """Return the number of threads for some work, however many blocks it has."""
    return workers if blocks_worth(nanoseconds, workers) > 1 else 1


#: Multiply-accumulates up to which OpenBLAS computes any product, however its matrices are shaped,
#: on one thread: it splits products by vectors from 9,216 and others from 262,144.
UNSPLIT = 1 << 13
#: Elements of matrices whose products are not split whatever their sizes: 262,144 in all.
FEW = 1 << 9


def splits_products(node: Node) -> bool:
    """Whether BLAS might split a product of a node that multiplies matrices."""
    if not node.op.dense:
        return False
    count = macs(node)  # 0 where attributes hold the matrices
    return count is None or not 0 < count <= UNSPLIT


def is_small(node: Node) -> bool:
    """Whether no tensor of a node has more than `FEW` elements."""
    values = (*node.distinct_reads, *node.outputs)
    return all(is_static(value) and value.tensor.size <= FEW for value in values)
