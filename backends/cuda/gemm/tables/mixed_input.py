"""Tiles for products of 16-bit floats with weights of a few bits."""

from __future__ import annotations

from ..tile import Cost, CtaTile


def _tile(rows: int, warps: int, slices: int, resident: int, cost: Cost) -> CtaTile:
    """Return a tile with this many rows of A, whose warps have 32 rows of weights each.

    It has as many stages as fit, and K has 512 bits of weights per slice; `mixed_input.fitted`
    fills these in.
    """
    return CtaTile(rows, 32 * warps, 512, 4, (1, warps), "mma", resident, cost, slices=slices)


#: Costs are estimates, for weights of four bits: a warp issues 88, 112, 224 or 448 instructions or
#: products (16, 32, 64, 128 rows) per 512 bytes of weights, at 1700 clock cycles per microsecond.
MIXED_INPUT = (
    _tile(16, 1, 8, 2, Cost(0.25, 0.42, 0.4, 0.1, split=0.6, begin=1.2)),
    _tile(16, 2, 4, 1, Cost(0.25, 0.42, 0.5, 0.1, split=0.6, begin=1.2)),
    _tile(16, 2, 8, 1, Cost(0.25, 0.83, 0.5, 0.1, split=0.6, begin=1.2)),
    _tile(16, 4, 4, 1, Cost(0.25, 0.83, 0.5, 0.1, split=0.6, begin=1.2)),
    _tile(32, 2, 4, 1, Cost(0.25, 0.53, 0.7, 0.1, split=0.8, begin=1.2)),
    _tile(32, 4, 2, 1, Cost(0.25, 0.53, 0.7, 0.1, split=0.8, begin=1.2)),
    _tile(64, 2, 4, 1, Cost(0.25, 1.05, 0.7, 0.1, split=1.0, begin=1.2)),
    _tile(64, 4, 2, 1, Cost(0.25, 1.05, 0.7, 0.1, split=1.0, begin=1.2)),
    _tile(128, 4, 2, 1, Cost(0.25, 2.1, 1.0, 0.2, split=1.4, begin=1.2)),
    _tile(128, 4, 1, 1, Cost(0.25, 1.05, 1.0, 0.2, split=1.4, begin=1.2)),
)
