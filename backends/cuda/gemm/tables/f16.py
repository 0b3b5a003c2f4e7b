"""Tiles for products of 16-bit floats; bytes use those of `MULTISTAGE`, two per element.

Measured on an H200 over the convolutions of ResNet-50, MobileNetV2, VGG-16 and GoogLeNet.
"""

from __future__ import annotations

from ..tile import Cost, CtaTile, with_deep

#: At batch 1 and 32, with 36 tiles and all sensible splits. The tiles with wgmma are within 1 %
#: (geometric mean) of always choosing the best, and a choice by `estimate` is within 3 %. Resident
#: blocks follow from shared memory and threads of 128 registers. Deep tiles come
#: before others of their size, and are chosen where the estimates are equal, with one block per
#: multiprocessor: in chains of products on an H100 whose weights are not in the cache, they take 5
#: to 20 % less. The split cost of w64x96 is from ten products of 128 to 256 rows and 3072 terms,
#: measured in whole networks on an H200: for products alone it would be half of that.
MULTISTAGE = (
    *with_deep(
        10, CtaTile(32, 32, 64, 6, (2, 2), "mma", 0, Cost(0.124, 0.085, 0.253, 0.195, 0.105, 1.473))
    ),
    CtaTile(32, 64, 64, 6, (2, 2), "mma", 0, Cost(0.147, 0.135, 0.366, 0.307, 0.052, 1.643)),
    CtaTile(64, 64, 64, 4, (2, 2), "mma", 0, Cost(0.191, 0.13, 0.11, 0.606, 0.06, 1.641)),
    CtaTile(128, 64, 64, 3, (4, 2), "mma", 0, Cost(0.273, 0.247, 0.352, 1.07, 0.057, 2.396)),
    CtaTile(128, 128, 64, 3, (4, 2), "mma", 0, Cost(0.216, 0.517, 1.407, 1.159, 0.119, 2.694)),
    CtaTile(64, 16, 64, 6, (4, 1), "wgmma", 0, Cost(0.085, 0.045, 0.333, 0.299, 0.068, 1.216)),
    *with_deep(
        10,
        CtaTile(64, 32, 64, 6, (4, 1), "wgmma", 0, Cost(0.151, 0.028, 0.199, 0.355, 0.074, 1.383)),
    ),
    *with_deep(
        8,
        CtaTile(64, 64, 64, 4, (4, 1), "wgmma", 0, Cost(0.148, 0.043, 0.161, 0.556, 0.089, 1.562)),
    ),
    CtaTile(64, 96, 64, 4, (4, 1), "wgmma", 0, Cost(0.155, 0.109, 0.26, 0.794, 0.067, 3.55)),
    CtaTile(64, 128, 64, 3, (4, 1), "wgmma", 0, Cost(0.29, 0.053, 0.244, 1.032, 0.07, 1.949)),
    CtaTile(128, 32, 64, 4, (8, 1), "wgmma", 0, Cost(0.174, 0.056, 0.154, 0.631, 0.071, 1.83)),
    CtaTile(128, 64, 64, 3, (8, 1), "wgmma", 0, Cost(0.279, 0.046, 0.2, 1.003, 0.063, 2.399)),
    CtaTile(128, 128, 64, 3, (8, 1), "wgmma", 0, Cost(0.233, 0.169, 1.636, 1.271, 0.041, 2.61)),
    CtaTile(128, 128, 64, 4, (8, 1), "wgmma", 0, Cost(0.16, 0.243, 1.315, 1.349, 0.017, 2.911)),
    CtaTile(128, 192, 64, 4, (8, 1), "wgmma", 0, Cost(0.535, 0.016, 1.705, 2.267, 0.11, 2.621)),
    CtaTile(128, 256, 64, 4, (8, 1), "wgmma", 0, Cost(0.699, 0.087, 1.927, 2.413, 0.042, 4.336)),
)

#: At batch 32 and with 26 tiles. A choice among these and `MULTISTAGE` by estimates is within 3 %
#: (geometric mean) of always choosing the best measured one. Costs are those of steps of 64 terms.
#: Those of splits are from 248 measured forms of 15 convolutions by 3x3 windows at batch 1. Deep
#: tiles are for products of few blocks, which wait for weights from memory. Their costs are from
#: ResNet-50, VGG-16, BERT-base and ViT-B at batch 1 on an H100, whole networks being measured with
#: one tile at a time replaced: so they are relative to those of `MULTISTAGE` there. 256x32 begins
#: later than fitted, as measured so in ResNeXt-50 at batch 1. Those of 256x128 are such that it is
#: chosen for four layers of VGG-16 at batch 32 that take 3 to 6 % less time with it.
TMA = (
    CtaTile(64, 64, 64, 2, (4, 1), "wgmma", 1, Cost(0.12, 0.0, 0.85, split=0.9), 9, deep=True),
    CtaTile(64, 64, 64, 6, (4, 1), "wgmma", 1, Cost(0.1, 0.0, 1.2), 6, deep=True),
    CtaTile(128, 64, 64, 4, (8, 1), "wgmma", 1, Cost(0.1, 0.0, 2.6), 5, deep=True),
    CtaTile(
        *(256, 32, 64, 1, (8, 1), "wgmma", 2),
        *(Cost(0.08, 0.29, 0.4, 0.5, split=2.3, begin=0.2), 4),
    ),
    CtaTile(
        *(256, 32, 64, 2, (8, 1), "wgmma", 1),
        *(Cost(0.05, 0.25, 0.3, 0.4, split=2.3, begin=0.7), 4),
    ),
    CtaTile(
        128, 32, 64, 4, (8, 1), "wgmma", 3, Cost(0.205, 0.206, 0.229, 0.518, split=0.0), stages_b=4
    ),
    CtaTile(
        128, 64, 64, 4, (8, 1), "wgmma", 2, Cost(0.242, 0.055, 1.042, 0.471, split=1.1), stages_b=4
    ),
    CtaTile(
        256, 64, 64, 1, (8, 1), "wgmma", 2, Cost(0.079, 0.34, 0.763, 1.053, split=2.3), stages_b=4
    ),
    CtaTile(
        256, 64, 64, 2, (8, 1), "wgmma", 2, Cost(0.493, 0.264, 0.893, 0.901, split=2.3), stages_b=2
    ),
    CtaTile(
        128, 96, 64, 2, (8, 1), "wgmma", 2, Cost(0.125, 0.172, 0.607, 1.242, split=1.8), stages_b=3
    ),
    CtaTile(
        128, 96, 64, 3, (8, 1), "wgmma", 2, Cost(0.195, 0.156, 1.029, 0.824, split=1.8), stages_b=3
    ),
    CtaTile(
        64, 128, 64, 2, (4, 1), "wgmma", 2, Cost(0.047, 0.011, 5.003, 0.079, split=0.4), stages_b=4
    ),
    CtaTile(
        64, 128, 64, 4, (4, 1), "wgmma", 2, Cost(0.205, 0.029, 1.814, 0.34, split=0.4), stages_b=4
    ),
    CtaTile(
        128, 128, 64, 1, (8, 1), "wgmma", 2, Cost(0.082, 0.292, 0.42, 1.072, split=2.4), stages_b=4
    ),
    CtaTile(
        128, 128, 64, 2, (8, 1), "wgmma", 2, Cost(0.107, 0.258, 0.355, 1.407, split=2.4), stages_b=3
    ),
    CtaTile(
        128, 128, 64, 3, (8, 1), "wgmma", 2, Cost(0.164, 0.168, 1.848, 0.754, split=2.4), stages_b=3
    ),
    CtaTile(
        128, 256, 64, 4, (8, 1), "wgmma", 1, Cost(0.067, 0.495, 1.848, 2.096, split=4.7), stages_b=4
    ),
    CtaTile(
        192, 128, 64, 5, (12, 1), "wgmma", 1, Cost(0.067, 0.38, 1.8, 1.6, split=4.7), stages_b=5
    ),
    CtaTile(
        256, 128, 64, 2, (8, 1), "wgmma", 1, Cost(0.067, 0.55, 1.8, 1.6, split=4.7), stages_b=6
    ),
)

#: Fitted on an H200 by least squares of logarithms of measured times, with more weight for times
#: close to the best tile's: over fifteen products (linear layers of ViT-B and BERT-base at batch
#: 32, the last convolutions of the blocks of ResNet-50, matrices of 1024 to 8192 rows), and for
#: small tiles over 54 more of 64 to 1024 rows. Ping-pong tiles hide more latency in longer products
#: than in these, so their `begin` is smaller than fitted. Costs of 192x192, 128x256 and 2x128x128
#: are such that over 18 products of 1600 to 48000 rows on an H100, of BERT, ViT-B, CLIP, Whisper
#: and Llama, the tile chosen takes at most 4 % longer than the fastest one, on average 0.3 %. Those
#: of 64x192 are from nine products of 50 to 1600 rows on an H200. Deep tiles take 3 to 12 % less
#: than others of their size where weights come from memory. 128x256 has a form for results that are
#: wider than operands, for which shared memory has no fourth stage.
TMA_PERSISTENT = (
    CtaTile(
        128,
        128,
        64,
        5,
        (8, 1),
        "wgmma",
        1,
        Cost(0.0, 0.37, 0.5, begin=1.8),
        ping_pong=True,
        epilogues=2,
    ),
    CtaTile(192, 192, 64, 3, (12, 1), "wgmma", 1, Cost(0.0, 0.775, 1.448, begin=2.4), epilogues=3),
    CtaTile(128, 192, 64, 4, (8, 1), "wgmma", 1, Cost(0.0, 0.531, 0.366, begin=2.4), epilogues=3),
    CtaTile(64, 192, 64, 6, (4, 1), "wgmma", 1, Cost(0.0, 0.284, 1.35, begin=1.54), epilogues=3),
    CtaTile(
        128,
        192,
        64,
        4,
        (8, 1),
        "wgmma",
        1,
        Cost(0.0, 0.53, 0.2, begin=2.9),
        ping_pong=True,
        epilogues=3,
    ),
    *with_deep(
        4,
        CtaTile(128, 256, 64, 3, (8, 1), "wgmma", 1, Cost(0.0, 0.7, 1.178, begin=2.4), epilogues=2),
    ),
    CtaTile(128, 128, 64, 6, (8, 1), "wgmma", 1, Cost(0.0, 0.36, 0.59, begin=1.9), epilogues=2),
    *with_deep(
        8,
        CtaTile(128, 64, 64, 6, (8, 1), "wgmma", 1, Cost(0.0, 0.23, 0.275, begin=1.8), epilogues=1),
    ),
    *with_deep(
        10,
        CtaTile(64, 64, 64, 6, (4, 1), "wgmma", 1, Cost(0.0, 0.147, 0.65, begin=1.2), epilogues=2),
    ),
)

#: The same for two products whose results the epilogue combines: half as many results. Fitted to
#: SwiGLU of 4096 rows and 768, 1024 and 2048 terms on an H100 within 3 %, and multiplied by 0.9: so
#: far estimates of the tiles above are below their times there.
TMA_PAIRS = (
    CtaTile(128, 256, 64, 4, (8, 1), "wgmma", 1, Cost(0.0, 0.63, 1.0, begin=2.4), epilogues=2),
    CtaTile(128, 128, 64, 5, (8, 1), "wgmma", 1, Cost(0.0, 0.323, 0.86, begin=1.9), epilogues=1),
)

#: Tiles of warp groups that have the weights of a convolution in common; `bm` are pixels. Costs are
#: set by seventeen convolutions of 16 to 128 channels on an H200, in which other numbers of groups,
#: squares of pixels, stages and blocks were rarely faster: at most 16 % in three of them. Those of
#: the tile of 128 pixels, whose products have filters as rows, are set by three of VGG-16.
STATIONARY = tuple(
    CtaTile(bm, bn, 64, 1, (4 * groups, 1), "wgmma", 1, cost, ping_pong=True)
    for groups, bm, bn, cost in (
        (4, 64, 32, Cost(0.0, 0.053, 0.5, 0.03, begin=2.0)),
        (4, 64, 64, Cost(0.0, 0.09, 0.7, 0.03, begin=2.0)),
        (3, 128, 64, Cost(0.0, 0.15, 1.0, 0.03, begin=2.0)),
        (4, 64, 96, Cost(0.0, 0.131, 1.0, 0.03, begin=2.0)),
        (4, 64, 128, Cost(0.0, 0.175, 1.3, 0.03, begin=2.0)),
    )
)
