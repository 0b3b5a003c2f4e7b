"""Tiles for float32 products on Hopper's tensor cores, as three float16 products."""

from __future__ import annotations

from dataclasses import replace

from ..tile import Cost, CtaTile, rs_tile

_FLAT = rs_tile(128, 64, 8, 1, Cost(0.117, 0.337, 0.143, 1.469, 0.128, 1.608, begin=1.479))
#: For few rows: its blocks start while those of other kernels end. So its first wave begins 1 us
#: sooner, as measured on an H100 in BERT-base and ViT-B at batch 1.
_LEAN = replace(_FLAT, stages=3, lean=True, cost=replace(_FLAT.cost, begin=0.479))

#: Measured on an H200 over 74 linear layers and convolutions of ViT, BERT, ResNet-50, VGG-16,
#: GoogLeNet and MobileNetV2 at batch 1 and 32, with all sensible splits: a choice by `estimate` is
#: within 1.5 % (geometric mean) of always choosing the best.
WGMMA_RS = (
    rs_tile(64, 16, 8, 2, Cost(0.226, 0.056, 0.0, 0.528, 0.081, 1.046, begin=1.13), overlap=True),
    rs_tile(64, 32, 8, 2, Cost(0.265, 0.025, 0.0, 0.726, 0.079, 1.235, begin=1.084), overlap=True),
    rs_tile(64, 64, 6, 2, Cost(0.284, 0.041, 0.0, 0.782, 0.057, 1.41, begin=1.399), overlap=True),
    rs_tile(
        64, 96, 5, 2, Cost(0.309, 0.073, 0.062, 1.028, 0.034, 1.496, begin=1.428), overlap=True
    ),
    rs_tile(
        64, 128, 4, 2, Cost(0.34, 0.081, 1.129, 0.773, 0.009, 1.537, begin=1.164), overlap=True
    ),
    rs_tile(64, 160, 4, 2, Cost(0.573, 0.021, 0.035, 1.688, 0.0, 1.528, begin=1.318)),
    _FLAT,
    _LEAN,
    rs_tile(128, 96, 7, 1, Cost(0.125, 0.425, 2.285, 0.056, 0.085, 1.813, begin=1.054)),
    rs_tile(128, 128, 6, 1, Cost(0.188, 0.488, 0.671, 2.263, 0.032, 2.066, begin=0.858)),
    rs_tile(128, 160, 6, 1, Cost(0.404, 0.404, 2.829, 0.894, 0.075, 2.032, begin=0.624)),
    rs_tile(128, 192, 5, 1, Cost(0.322, 0.622, 2.52, 1.62, 0.0, 2.07, begin=0.557)),
    rs_tile(192, 64, 6, 1, Cost(0.297, 0.297, 0.129, 1.815, 0.066, 1.741, begin=1.572)),
    rs_tile(192, 96, 6, 1, Cost(0.367, 0.367, 2.716, 0.131, 0.016, 1.684, begin=1.416)),
)


def _tile(bm: int, bn: int, stages: int, cost: Cost, *, overlap: bool = False) -> CtaTile:
    return CtaTile(bm, bn, 64, stages, (bm // 16, 1), "wgmma", 1, cost, overlap=overlap)


#: Tiles of `halves.cu`; stages are of 32 terms, costs of steps of 64. Fitted by least squares of
#: logarithms to 497 forms of 17 linear layers, of ViT-B and BERT-base at batch 1 and 32 and of 577
#: rows, on an H100 with weights from memory: a choice by `in_halves.expected` is within 0.4 % of
#: the best. Tiles of one group, or of few columns, multiply a step while they add up the last one.
#: 64x96 begins later than fitted: with as many blocks, those of the next kernel find few idle
#: multiprocessors, and ViT-B with 197 rows takes 6 % longer than with 128x64.
HALVES = (
    _tile(64, 32, 12, Cost(0.14, 0.179, 0.76, 0.135, split=1.676, begin=0.466), overlap=True),
    _tile(64, 64, 12, Cost(0.249, 0.15, 0.445, 0.445, split=1.54, begin=1.338), overlap=True),
    _tile(64, 96, 10, Cost(0.183, 0.288, 1.266, 0.422, split=2.255, begin=1.9), overlap=True),
    _tile(64, 128, 8, Cost(0.423, 0.124, 0.882, 0.882, split=2.063, begin=1.591), overlap=True),
    _tile(128, 64, 8, Cost(0.203, 0.304, 1.417, 0.582, split=2.03, begin=1.025), overlap=True),
    _tile(128, 96, 7, Cost(0.599, 0.109, 1.642, 1.642, split=2.173, begin=0.3), overlap=True),
    _tile(128, 128, 6, Cost(0.424, 0.521, 2.079, 1.407, split=2.76, begin=0.3)),
    _tile(128, 192, 5, Cost(0.642, 0.733, 3.023, 2.448, split=0.271, begin=1.891)),
    _tile(192, 96, 5, Cost(0.496, 0.589, 2.247, 1.535, split=1.87, begin=0.3)),
    _tile(192, 128, 5, Cost(0.702, 0.791, 2.247, 1.574, split=0.959, begin=1.817)),
)

#: Tiles of `image_halves.cu`, whose costs are those of products, as measured on an H100 and an H200
#: in 23 convolutions of ResNet-50 and VGG-16 at batch 32; splits of one tile aside.
IMAGE_HALVES = (
    *HALVES[:7],
    replace(HALVES[7], cost=replace(HALVES[7].cost, split=9.0)),
    *HALVES[8:],
)


def _by_tma(
    bm: int, bn: int, stages: int, places: int, cost: Cost, *, overlap: bool = False
) -> CtaTile:
    tile = rs_tile(bm, bn, stages, 1, cost, overlap=overlap)
    return replace(tile, epilogues=places)


#: Tiles of `wgmma_rs_tma.cu`, with the strips of 32 columns that are buffered. Fitted by least
#: squares of logarithms to 26 convolutions by 1x1 of ResNet-50, GoogLeNet and MobileNetV2 at batch
#: 32, on an H100, each within 4 to 6 % (root mean square).
WGMMA_RS_TMA = (
    _by_tma(128, 32, 6, 6, Cost(0.0, 0.375, 0.0, 0.472, begin=1.584), overlap=True),
    _by_tma(128, 64, 5, 6, Cost(0.0, 0.492, 0.0, 0.8, begin=1.656), overlap=True),
    _by_tma(128, 128, 5, 4, Cost(0.0, 0.671, 0.0, 1.706, begin=2.023), overlap=True),
    _by_tma(192, 64, 4, 3, Cost(0.0, 0.646, 0.0, 1.336, begin=1.205)),
    _by_tma(192, 96, 4, 3, Cost(0.0, 0.741, 0.0, 1.941, begin=1.947)),
)
