"""Tiles for products of 16-bit floats with weights of a few bits."""

from __future__ import annotations

from ..tile import Cost, CtaTile


def _tile(rows: int, columns: int, warps: int, step: float, wave: float) -> CtaTile:
    """Return a tile of this many rows of A and rows of weights, which eight warps compute.

    It has as many stages as fit, and K has 512 bits of weights per slice; `mixed_input.fitted`
    fills these in.

    Args:
        rows: of A.
        columns: rows of weights.
        warps: among which these are divided; slices of K have the others.
        step: microseconds per step, with weights of four bits.
        wave: microseconds of a wave of blocks besides its steps.
    """
    cost = Cost(0.2 * step, 0.8 * step, wave, begin=0.3)
    return CtaTile(rows, columns, 512, 8, (1, warps), "mma", 1, cost, slices=8 // warps)


#: Costs of up to 32 rows are fitted to 38 products of an H100, with 2 to 29 MB of weights, from
#: which they differ by 6 %; the others are estimates.
MIXED_INPUT = (
    _tile(16, 32, 1, 0.94, 0.8),
    _tile(16, 64, 1, 2.1, 0.8),
    _tile(16, 128, 1, 3.54, 0.8),
    _tile(16, 128, 2, 1.89, 0.8),
    _tile(32, 32, 1, 0.83, 2.25),
    _tile(32, 64, 1, 2.03, 2.25),
    _tile(32, 64, 2, 1.2, 2.25),
    _tile(32, 128, 2, 2.26, 2.25),
    _tile(64, 64, 2, 1.3, 2.0),
    _tile(64, 128, 4, 1.3, 2.0),
    _tile(128, 128, 4, 2.35, 2.5),
)
