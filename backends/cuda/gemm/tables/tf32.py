"""Tiles for float32 products on tensor cores: three tf32 products, or one."""

from __future__ import annotations

from ..tile import Cost, CtaTile, rs_tile

_UNMEASURED = Cost(0.3, 0.3, 0.0, 0.5, 0.1, 1.5, begin=1.0)

#: With mma.sync, for GPUs other than Hopper.
MULTISTAGE = (
    CtaTile(64, 64, 32, 3, (2, 2), "mma", 1, _UNMEASURED),
    CtaTile(128, 64, 32, 3, (4, 2), "mma", 1, _UNMEASURED),
    CtaTile(128, 128, 32, 3, (4, 2), "mma", 1, _UNMEASURED),
)

#: Measured on an H200 over the convolutions of ResNet-50, MobileNetV2, VGG-16 and GoogLeNet at
#: batch 1 and 32, with 14 tiles and all sensible splits: a choice by `estimate` is within 2 %
#: (geometric mean) of always choosing the best.
WGMMA_RS = (
    rs_tile(64, 16, 6, 2, Cost(0.07, 0.184, 0.0, 0.426, 0.035, 1.05, begin=1.17), overlap=True),
    rs_tile(64, 32, 5, 2, Cost(0.078, 0.191, 0.0, 0.6, 0.04, 1.02, begin=1.25), overlap=True),
    rs_tile(64, 64, 4, 2, Cost(0.284, 0.062, 0.0, 0.719, 0.056, 1.13, begin=1.38), overlap=True),
    rs_tile(64, 96, 3, 2, Cost(0.384, 0.087, 0.0, 1.47, 0.001, 0.844, begin=1.41), overlap=True),
    rs_tile(64, 128, 2, 2, Cost(0.656, 0.072, 0.0, 0.972, 0.0, 1.39, begin=1.55)),
    rs_tile(128, 96, 5, 1, Cost(0.59, 0.131, 0.0, 2.48, 0.001, 1.33, begin=1.77), overlap=True),
    rs_tile(128, 128, 4, 1, Cost(0.247, 0.69, 0.0, 2.51, 0.0, 1.49, begin=2.49)),
    rs_tile(192, 64, 5, 1, Cost(0.494, 0.348, 0.0, 1.81, 0.0, 1.99, begin=2.74)),
    rs_tile(192, 96, 4, 1, Cost(0.658, 0.506, 0.0, 6.7, 0.0, 0.0, begin=1.62)),
)
