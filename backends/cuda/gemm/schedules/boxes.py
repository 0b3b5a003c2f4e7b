"""Windows of float32 images as three float16 products, whose pixels are cut once for all taps.

The kernel is `swap_f16x3.cu` with `cut_boxes.cuh`: a tile is a patch of the result, eight pixels in
each row, and the pixels that its windows cover are a box in shared memory for every 64 channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from math import hypot, prod

from .....runtime.base.record import record
from .....runtime.plan.format import HALVES_BLOCK
from ...codegen.epilogue import Epilogue
from ...recipe.launch import Launch
from ...recipe.operands import Ints, ceil_div
from ...recipe.targets import Target
from ..problem import GemmArguments, Image
from ..tile import (
    MAX_CLUSTER,
    MAX_KEPT,
    Config,
    Cost,
    CtaTile,
    TimedConfig,
    clusters_of,
    inbox,
    ranked,
)
from . import swap_f16x3
from .image_halves import SIDE, geometry, side_by_side
from .swap_f16x3 import COLUMNS, STARTING, STARTING_LARGE, STEP_BYTES

#: Maximum windows, and pixels of a patch.
MAX_WINDOWS, MAX_PATCH = 4096, 64
#: Share of the multiprocessors that a form may have beside a single other convolution. With that
#: beside several ones, ResNet-18 takes 3 % more time at batch 1 on an H200, DLA-34 2 %.
BESIDE_ONE = 0.5
#: Microseconds that it takes to cut a box, and each of its pixels.
OF_BOX, OF_PIXEL = 0.25, 0.005


@record
class Patches:
    """Windows of images, whose tiles are patches of eight pixels in each row.

    Attributes:
        images: number of images.
        output: rows and columns of the result.
        kernel: rows and columns of a window.
        dilations: distances of its taps.
        strides: distances of windows.
    """

    images: int
    output: Ints
    kernel: Ints
    dilations: Ints
    strides: Ints

    @property
    def taps(self) -> int:
        """Pixels of a window."""
        return prod(self.kernel)

    def count(self, tile: CtaTile) -> int:
        """Return the number of patches."""
        return self.images * prod(side_by_side(self.output, tile.bm))

    def pixels(self, tile: CtaTile) -> int:
        """Return the pixels of a box: in each plane, those that the windows of a patch cover."""
        reach = [(k - 1) * d for k, d in zip(self.kernel, self.dilations, strict=True)]
        sides = zip((tile.bm // SIDE, SIDE), reach, self.strides, strict=True)
        planes = (min(r + 1, stride) for r, stride in zip(reach, self.strides, strict=True))
        return prod(side + r // stride for side, r, stride in sides) * prod(planes)

    def steps(self, k: int) -> int:
        """Return the steps of so many terms, whose channels are whole tiles of 32 for each tap."""
        return self.taps * ceil_div(k // self.taps, HALVES_BLOCK)

    def boxes(self, steps: int, splits: int) -> int:
        """Return the boxes of a block at most, of so many steps that blocks share."""
        ends = [steps * split // splits for split in range(splits + 1)]
        return max((b - 1) // self.taps - a // self.taps + 1 for a, b in pairwise(ends))


def shared(tile: CtaTile, each: int, splits: int, patches: Patches) -> int:
    """Return the bytes of shared memory of a block of so many steps."""
    pixels = patches.pixels(tile)
    box = 2 * ceil_div(pixels * STEP_BYTES // 2, 1024) * 1024
    tiles = tile.boxes * box + STEP_BYTES * tile.stages * COLUMNS
    sums = 4 * tile.slices * tile.bm * (COLUMNS + 4)
    rest = ceil_div(4 * tile.boxes * pixels, 8) * 8 + 16 * each
    return ceil_div(max(tiles, sums) + rest, 16) * 16 + inbox(tile.bm, COLUMNS, splits)


def ways_of(
    shape: Ints, patches: Patches, target: Target, *, others: int
) -> tuple[TimedConfig, ...]:
    """Return the forms with their estimates, fastest first.

    Args:
        shape: the sizes, with channels in whole tiles of 32 for each tap.
        patches: the windows.
        target: the GPU.
        others: number of convolutions that run beside it.
    """
    if shape[0] > MAX_WINDOWS or not target.has_wgmma:
        return ()
    ways = _ways_of(shape, patches, target)
    if not others:
        return ways
    share = BESIDE_ONE if others == 1 else swap_f16x3.BESIDE
    columns, most = ceil_div(shape[1], COLUMNS), target.processors * share

    def blocks(config: Config) -> int:
        return config.splits * columns * patches.count(config.tile)

    return tuple(way for way in ways if blocks(way.config) <= most)


@lru_cache(MAX_KEPT)
def _ways_of(shape: Ints, patches: Patches, target: Target) -> tuple[TimedConfig, ...]:
    return tuple(
        ranked(
            configs(shape, patches, target),
            lambda config: expected(shape, config, patches, target),
        )
    )


def configs(shape: Ints, patches: Patches, target: Target) -> Iterator[Config]:
    """Yield tiles with splits such that all blocks run at once."""
    _, n, k = shape
    steps, columns = patches.steps(k), ceil_div(n, COLUMNS)
    sizes = {}  # the fewest rows of as many patches
    for rows in range(MAX_PATCH // SIDE, 0, -1):
        sizes[patches.images * prod(side_by_side(patches.output, rows * SIDE))] = rows * SIDE
    for count, bm in sizes.items():
        for splits in range(1, min(MAX_CLUSTER, steps) + 1):
            together = target.processors if splits == 1 else clusters_of(splits, target)
            if count * columns > together * STARTING.get(splits, STARTING_LARGE):
                break
            tile = _fitted(bm, steps, splits, patches, target)
            if tile is not None:
                yield Config(tile, splits)


def _fitted(bm: int, steps: int, splits: int, patches: Patches, target: Target) -> CtaTile | None:
    """Return a tile with as many stages of weights as fit: all steps, or two per slice."""
    each, slices, boxes = ceil_div(steps, splits), 2, patches.boxes(steps, splits)
    for stages in range(each, min(each, 2 * slices) - 1, -1):
        sizes = bm, COLUMNS, HALVES_BLOCK, stages, (4, 1), "wgmma", 1, Cost(0, 0, 0)
        tile = CtaTile(*sizes, slices=slices, boxes=boxes)
        if shared(tile, each, splits, patches) <= target.shared:
            return tile
    return None


def expected(shape: Ints, config: Config, patches: Patches, target: Target) -> float:
    """Return the estimate for a form in microseconds."""
    (_, n, k), tile, splits = shape, config.tile, config.splits
    each, pixels = ceil_div(patches.steps(k), splits), tile.boxes * patches.pixels(tile)
    blocks = patches.count(tile) * ceil_div(n, COLUMNS) * splits
    read = STEP_BYTES * (each * COLUMNS + pixels)
    cache = swap_f16x3.CACHE * target.processors / 132
    reading = max(read / swap_f16x3.PROCESSOR, blocks * read / cache)
    rows = max(tile.bm, swap_f16x3.FEWEST_ROWS)
    multiplying = 3 * each * rows * COLUMNS * HALVES_BLOCK / swap_f16x3.PRODUCTS
    time = swap_f16x3.BEGIN + swap_f16x3.OF_ROW * tile.bm + hypot(reading, multiplying)
    time += tile.boxes * OF_BOX + OF_PIXEL * pixels
    time += ceil_div(each, tile.slices) * swap_f16x3.OF_STEP
    return time + (swap_f16x3.JOIN if splits > 1 else 0.0)


def launch(
    gemm: GemmArguments, epilogue: Epilogue, config: Config, patches: Patches, target: Target
) -> Launch:
    """Return the launch of a convolution.

    Args:
        gemm: the product; its `b` is packed by `in_halves`, regardless of `ldb`.
        epilogue: applied to every result.
        config: tile and splits.
        patches: the windows.
        target: the GPU.
    """
    image, tile = gemm.a, config.tile
    assert isinstance(image, Image)
    each = ceil_div(patches.steps(gemm.shape[2]), config.splits)
    boxes = swap_f16x3.Boxes(
        rows={
            **{"a": image.data, "lda": image.row, "channels": image.channels},
            "image": geometry(image, tile.bm, patches=True),
        },
        constants=(
            *zip(("KH", "KW"), patches.kernel, strict=True),
            *zip(("DH", "DW"), patches.dilations, strict=True),
            *zip(("SH", "SW"), patches.strides, strict=True),
        ),
        tiles=patches.count(tile),
        each=each,
        shared=shared(tile, each, config.splits, patches),
    )
    return swap_f16x3.launch(gemm, epilogue, config, target, boxes=boxes)
