"""Tiles of `strided.cu`: for 16-bit floats, and for numbers cut into tf32.

Costs are fitted by hand to six products of float32 on an H200, with 64 to 1024 rows and columns and
64 to 3136 terms, less 10.8 us each that the measurement adds; those of 16-bit floats, loosely.
"""

from __future__ import annotations

from ..tile import Cost, CtaTile

DIRECT = (
    CtaTile(128, 128, 64, 3, (2, 4), "mma", 1, Cost(0.55, 0.37, 1.8)),
    CtaTile(128, 64, 64, 3, (4, 2), "mma", 2, Cost(0.5, 0.21, 1.7)),
    CtaTile(64, 64, 64, 3, (2, 2), "mma", 4, Cost(0.43, 0.11, 1.6)),
    CtaTile(64, 64, 64, 3, (2, 2), "mma", 2, Cost(0.31, 0.13, 1.8), slices=2),
    CtaTile(32, 64, 64, 3, (2, 2), "mma", 4, Cost(0.37, 0.08, 1.6)),
    CtaTile(32, 32, 64, 3, (2, 2), "mma", 6, Cost(0.35, 0.05, 1.5)),
    CtaTile(32, 32, 64, 3, (2, 2), "mma", 4, Cost(0.25, 0.06, 1.7), slices=2),
)
CUT = (
    CtaTile(128, 128, 32, 3, (4, 2), "mma", 1, Cost(1.0, 1.8, 2.2)),
    CtaTile(128, 64, 32, 3, (4, 2), "mma", 2, Cost(0.85, 1.2, 2.0)),
    CtaTile(64, 64, 32, 3, (2, 2), "mma", 3, Cost(0.72, 0.45, 1.8)),
    CtaTile(64, 64, 32, 3, (2, 2), "mma", 2, Cost(0.42, 0.8, 2.0), slices=2),
    CtaTile(32, 64, 32, 3, (2, 2), "mma", 4, Cost(0.56, 0.32, 1.7)),
    CtaTile(32, 32, 32, 3, (2, 2), "mma", 6, Cost(0.42, 0.16, 1.6)),
    CtaTile(32, 32, 32, 3, (2, 2), "mma", 4, Cost(0.25, 0.24, 1.8), slices=2),
)
