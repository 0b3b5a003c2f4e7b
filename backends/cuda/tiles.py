"""Tile sizes for `gemm.cu`, and how many blocks share the sum of one tile."""

from __future__ import annotations

from dataclasses import dataclass

from .compile import Target
from .layout import ceil_div


@dataclass(frozen=True, slots=True)
class Tile:
    """What a block and a thread of `gemm.cu` compute.

    Attributes:
        bm, bn: rows and columns of a block's tile.
        tm, tn: rows and columns of a thread's.
        bk: terms of the sum that lie in shared memory together: one step.
        slices: groups of threads that share the terms of a step.
        stages: steps in shared memory, one in use and the others on their way.
        resident: blocks that fit on a multiprocessor, as their registers allow.
        time: microseconds by which each resident block makes a step longer.
        latency: microseconds that a step takes anyway.
    """

    bm: int
    bn: int
    tm: int
    tn: int
    bk: int
    slices: int
    stages: int
    resident: int
    time: float
    latency: float

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.bm // self.tm * (self.bn // self.tn) * self.slices

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        steps = self.stages * (self.bm * (self.bk + 4) + self.bk * self.bn)
        exchange = self.slices * self.bm * self.bn if self.slices > 1 else 0
        return 4 * max(steps, exchange)

    @property
    def title(self) -> str:
        """Such as ``64x64x16``, with a ``/4`` behind it for four slices."""
        slices = f"/{self.slices}" if self.slices > 1 else ""
        return f"{self.bm}x{self.bn}x{self.bk}{slices}"

    @property
    def constants(self) -> tuple[tuple[str, int], ...]:
        """The constants that `gemm.cu` is compiled with."""
        names = ("BM", "BN", "BK", "TM", "TN", "STAGES", "SLICES")
        values = (self.bm, self.bn, self.bk, self.tm, self.tn, self.stages, self.slices)
        return tuple(zip(names, values, strict=True))


#: Measured on an H200 over the convolutions of ResNet-50, VGG-19 and SqueezeNet, with 26 tiles and
#: all sensible splits. These nine are within 0.3 % (geometric mean) of always taking the best, and
#: what `estimate` makes of their two figures is within 2 %.
TILES = (
    Tile(64, 128, 8, 8, 16, 1, 3, resident=3, time=0.665, latency=0.41),
    Tile(128, 64, 8, 8, 16, 1, 3, resident=3, time=0.72, latency=0.36),
    Tile(64, 64, 8, 4, 16, 1, 3, resident=4, time=0.385, latency=0.245),
    Tile(32, 64, 8, 8, 32, 4, 3, resident=3, time=0.425, latency=0.195),
    Tile(32, 64, 8, 4, 32, 4, 3, resident=2, time=0.465, latency=0.17),
    Tile(32, 64, 8, 4, 16, 2, 3, resident=4, time=0.235, latency=0.12),
    Tile(32, 64, 4, 4, 16, 1, 3, resident=7, time=0.24, latency=0.165),
    Tile(32, 32, 8, 4, 32, 4, 3, resident=5, time=0.245, latency=0.15),
    Tile(32, 16, 4, 4, 32, 4, 3, resident=7, time=0.15, latency=0.145),
)
#: Microseconds, from the same measurement: of a launch, of the start of each wave of blocks, of a
#: second pass, and of each partial sum in it. A result takes some time of the memory, too.
LAUNCH, WAVE, SECOND_PASS, PARTIAL_SUM = 1.05, 1.27, 1.54, 1.27e-6
RESULT = 7.5e-7
MOST_SPLITS = 64
#: Blocks for each multiprocessor beyond which a sum is not split.
MOST_BLOCKS = 10


def choose(m: int, n: int, k: int, batch: int, target: Target) -> tuple[Tile, int]:
    """Return the tile and the number of splits that should be fastest.

    Args:
        m: rows of the product.
        n: its columns.
        k: terms of its sums.
        batch: how many such products.
        target: the GPU.
    """
    narrowest = min(tile.bn for tile in TILES)
    ways = [
        (estimate(m, n, k, batch, tile, splits, target.processors), i, splits)
        for i, tile in enumerate(TILES)
        if tile.bn < 2 * n or tile.bn == narrowest  # else half of it would multiply nothing
        for splits in _splits(m, n, k, batch, tile, target)
    ]
    _, i, splits = min(ways)
    return TILES[i], splits


def title_of(tile: Tile, splits: int) -> str:
    """Return such as ``64x64x16/2 split 4``."""
    return f"{tile.title} split {splits}" if splits > 1 else tile.title


def tile_named(form: str) -> tuple[Tile, int]:
    """Return what `title_of` names; raises KeyError where there is no such tile."""
    title, _, splits = form.partition(" split ")
    return {tile.title: tile for tile in TILES}[title], int(splits or 1)


def _splits(m: int, n: int, k: int, batch: int, tile: Tile, target: Target) -> range:
    """Return the numbers of splits that leave three steps for each and not too many blocks."""
    blocks = ceil_div(m, tile.bm) * ceil_div(n, tile.bn) * batch
    steps = ceil_div(k, tile.bk)
    fits = MOST_BLOCKS * target.processors // max(blocks, 1)
    return range(1, max(1, min(steps // 3, fits, MOST_SPLITS)) + 1)


def estimate(m: int, n: int, k: int, batch: int, tile: Tile, splits: int, processors: int) -> float:
    """Return the expected microseconds of a product done in this way; see `choose`."""
    blocks = ceil_div(m, tile.bm) * ceil_div(n, tile.bn) * batch * splits
    steps = ceil_div(ceil_div(k, tile.bk), splits)
    waves, rest = divmod(ceil_div(blocks, processors), tile.resident)
    total = LAUNCH + RESULT * m * n * batch
    total += waves * (WAVE + steps * (tile.latency + tile.resident * tile.time))
    if rest:
        total += WAVE + steps * (tile.latency + rest * tile.time)
    if splits > 1:
        total += SECOND_PASS + PARTIAL_SUM * m * n * batch * splits
    return total
