"""Tiles of `strided.cu`: for 16-bit floats, and for numbers cut into tf32.

Costs of the latter are fitted by hand to eleven products of float32 on an H200, 1 to 256 at a time,
of 64 to 512 rows, 32 to 3136 columns and 64 to 2048 terms; those of 16-bit floats, loosely.
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
    CtaTile(128, 128, 32, 3, (4, 2), "mma", 1, Cost(0.8, 1.7, 2.2)),
    CtaTile(128, 64, 32, 3, (4, 2), "mma", 2, Cost(0.2, 1.25, 2.0)),
    CtaTile(64, 64, 32, 3, (2, 2), "mma", 3, Cost(0.42, 0.45, 1.5)),
    CtaTile(64, 64, 32, 3, (2, 2), "mma", 2, Cost(0.05, 0.8, 1.5), slices=2),
    CtaTile(32, 64, 32, 3, (2, 2), "mma", 4, Cost(0.6, 0.22, 1.4)),
    CtaTile(32, 32, 32, 3, (2, 2), "mma", 6, Cost(0.43, 0.12, 1.0)),
    CtaTile(32, 32, 32, 3, (2, 2), "mma", 4, Cost(0.17, 0.19, 1.0), slices=2),
)
