"""Tiles for float32 products on CUDA cores.

Measured on an H200 over the convolutions of ResNet-50, VGG-19 and SqueezeNet, with 26 tiles and all
sensible splits. These nine are within 0.3 % (geometric mean) of always choosing the best, and a
choice by `estimate` is within 2 %.
"""

from __future__ import annotations

from ..tile import Cost, CtaTile

#: Microseconds, from the same measurement: of a launch, of the start of each wave of blocks, of a
#: second pass, and of each partial sum in it. Storing results takes some memory time, too.
LAUNCH, WAVE, SECOND_PASS, PARTIAL_SUM = 1.05, 1.27, 1.54, 1.27e-6
RESULT = 7.5e-7

SIMT = (
    CtaTile(64, 128, 16, 3, (8, 8), "fma", 3, Cost(0.41, 0.665, WAVE)),
    CtaTile(128, 64, 16, 3, (8, 8), "fma", 3, Cost(0.36, 0.72, WAVE)),
    CtaTile(64, 64, 16, 3, (8, 4), "fma", 4, Cost(0.245, 0.385, WAVE)),
    CtaTile(32, 64, 32, 3, (8, 8), "fma", 3, Cost(0.195, 0.425, WAVE), slices=4),
    CtaTile(32, 64, 32, 3, (8, 4), "fma", 2, Cost(0.17, 0.465, WAVE), slices=4),
    CtaTile(32, 64, 16, 3, (8, 4), "fma", 4, Cost(0.12, 0.235, WAVE), slices=2),
    CtaTile(32, 64, 16, 3, (4, 4), "fma", 7, Cost(0.165, 0.24, WAVE)),
    CtaTile(32, 32, 32, 3, (8, 4), "fma", 5, Cost(0.15, 0.245, WAVE), slices=4),
    CtaTile(32, 16, 32, 3, (4, 4), "fma", 7, Cost(0.145, 0.15, WAVE), slices=4),
)
