"""Tile sizes for `mma.cu`, and how many blocks share the sum of one tile."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import ceil

from .compile import Target
from .layout import ceil_div

#: Terms of the sums in one step.
STEP = 64
#: Blocks of a cluster, on every GPU that has clusters.
MOST_IN_CLUSTER = 8
#: Multiprocessors that can share memory: at least so many on a Hopper.
GROUP = 16
#: The share of the multiprocessors that blocks of clusters are on at once: groups have odd ones,
#: and two seldom share one. Measured: of 96 blocks none waits, of 110 to 128 some do. To split
#: convolutions so that none waits makes ResNet-50 at batch 1 7 % faster; linear layers of ViT-B and
#: BERT-base at batch 1, which wait while the kernel in front ends, are 1 to 3 % slower by it.
GATHERED = 104 / 132


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds that a tile takes, measured.

    Attributes:
        latency: of a step, in any case.
        time: by which each resident block makes a step longer.
        wave: of the beginning and the end of a block.
        end: by which each resident block makes those longer.
        window: by which looking up windows makes a step longer.
        split: of adding up the sums of several blocks.
    """

    latency: float
    time: float
    wave: float
    end: float
    window: float = 0.0
    split: float = 0.0


@dataclass(frozen=True, slots=True)
class HalfTile:
    """What a block computes, and how.

    Attributes:
        bm, bn: rows and columns of a block's tile.
        warps_m, warps_n: how its warps share it.
        stages: steps in shared memory, some in use and the others on their way.
        wgmma: products by groups of four warps from shared memory (Hopper).
        cost: what it takes.
    """

    bm: int
    bn: int
    warps_m: int
    warps_n: int
    stages: int
    wgmma: bool = False
    cost: Cost = Cost(0.1, 0.2, 1.0, 0.5, 0.1, 1.5)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps_m * self.warps_n

    def shared(self, steps: int) -> int:
        """Return the bytes of shared memory of a block: of the steps, and later of the sums."""
        buffers = min(self.stages, steps) * (self.bm + self.bn) * STEP * 2
        return max(buffers, self.bm * (self.bn + 8) * 4)

    def resident(self, steps: int, target: Target) -> int:
        """Return how many blocks fit on a multiprocessor, whose threads have 128 registers."""
        memory = (target.shared + 1024) // (self.shared(steps) + 1024)
        return max(1, min(memory, 512 // self.threads))

    @property
    def title(self) -> str:
        """Such as ``64x64`` or, with wgmma, ``w128x128``."""
        return f"{'w' if self.wgmma else ''}{self.bm}x{self.bn}"

    @property
    def constants(self) -> tuple[tuple[str, int | bool], ...]:
        """The constants that the kernel is compiled with."""
        return (
            *(("BM", self.bm), ("BN", self.bn), ("WARPS_M", self.warps_m)),
            *(("WARPS_N", self.warps_n), ("STAGES", self.stages), ("WGMMA", self.wgmma)),
        )


#: Measured on an H200 over the convolutions of ResNet-50, MobileNetV2, VGG-16 and GoogLeNet at
#: batch 1 and 32, with 36 tiles and all sensible splits. The ones with wgmma are within 1 %
#: (geometric mean) of always taking the best, and what `estimate` makes of their figures is within
#: 3 %.
TILES = (
    HalfTile(32, 32, 2, 2, 6, cost=Cost(0.124, 0.085, 0.253, 0.195, 0.065, 1.473)),
    HalfTile(32, 64, 2, 2, 6, cost=Cost(0.147, 0.135, 0.366, 0.307, 0.052, 1.643)),
    HalfTile(64, 64, 2, 2, 4, cost=Cost(0.191, 0.13, 0.11, 0.606, 0.06, 1.641)),
    HalfTile(128, 64, 4, 2, 3, cost=Cost(0.273, 0.247, 0.352, 1.07, 0.057, 2.396)),
    HalfTile(128, 128, 4, 2, 3, cost=Cost(0.216, 0.517, 1.407, 1.159, 0.119, 2.694)),
    HalfTile(64, 16, 4, 1, 6, True, cost=Cost(0.085, 0.045, 0.333, 0.299, 0.068, 1.216)),
    HalfTile(64, 32, 4, 1, 6, True, cost=Cost(0.151, 0.028, 0.199, 0.355, 0.074, 1.383)),
    HalfTile(64, 64, 4, 1, 4, True, cost=Cost(0.148, 0.043, 0.161, 0.556, 0.089, 1.562)),
    HalfTile(64, 96, 4, 1, 4, True, cost=Cost(0.155, 0.109, 0.26, 0.794, 0.067, 1.651)),
    HalfTile(64, 128, 4, 1, 3, True, cost=Cost(0.29, 0.053, 0.244, 1.032, 0.07, 1.949)),
    HalfTile(128, 32, 8, 1, 4, True, cost=Cost(0.174, 0.056, 0.154, 0.631, 0.071, 1.83)),
    HalfTile(128, 64, 8, 1, 3, True, cost=Cost(0.279, 0.046, 0.173, 1.003, 0.063, 2.399)),
    HalfTile(128, 128, 8, 1, 3, True, cost=Cost(0.233, 0.169, 1.636, 1.271, 0.041, 2.61)),
    HalfTile(128, 128, 8, 1, 4, True, cost=Cost(0.16, 0.243, 1.315, 1.349, 0.017, 2.911)),
    HalfTile(128, 192, 8, 1, 4, True, cost=Cost(0.535, 0.016, 1.705, 2.267, 0.11, 2.621)),
    HalfTile(128, 256, 8, 1, 4, True, cost=Cost(0.699, 0.087, 1.927, 2.413, 0.042, 4.336)),
)
#: From the same measurement: microseconds of a launch, bytes a microsecond of the memory and, for
#: 132 multiprocessors, of the L2 cache.
LAUNCH, MEMORY, CACHE = 1.0, 3.2e6, 6.5e6


# ── tiles that the copy engine brings ────────────────────────────────────────────────────────────


class Layout(Enum):
    """How rows of `a` lie in shared memory; see `mma_bulk.cu`."""

    MATRIX, RUN, SQUARES, TAPWISE = range(4)


@dataclass(frozen=True, slots=True)
class BulkTile:
    """What a block of `mma_bulk.cu` computes, and how.

    Attributes:
        groups: of four warps that multiply.
        blocks: of 64 rows, that each of them has.
        bn: columns of the tile.
        stages_a, stages_b: tiles in shared memory, in use or on their way.
        resident: blocks that fit on a multiprocessor.
        cost: what it takes, with steps of 64 terms.
    """

    groups: int
    blocks: int
    bn: int
    stages_a: int
    stages_b: int
    resident: int
    cost: Cost

    @property
    def bm(self) -> int:
        """Rows of the tile."""
        return self.groups * self.blocks * 64

    @property
    def threads(self) -> int:
        """Threads of a block: two warps more than multiply."""
        return self.groups * 128 + 64

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts that it is meant for: whether a tile of `a` serves one step or several."""
        one = self.stages_a == self.stages_b
        return (Layout.MATRIX, Layout.TAPWISE) if one else (Layout.RUN, Layout.SQUARES)

    @property
    def title(self) -> str:
        """Such as ``128x128``."""
        return f"{self.bm}x{self.bn}"

    def shared(self, stage: int, chunk: int) -> int:
        """Return the bytes of shared memory of a block.

        Args:
            stage: bytes of one tile of `a`.
            chunk: terms of a step.
        """
        barriers = 16 * (self.stages_a + self.stages_b)
        return self.stages_a * stage + self.stages_b * self.bn * chunk * 2 + barriers

    def fits(self, stage: int, chunk: int, target: Target) -> bool:
        """Whether so many blocks fit on a multiprocessor; see `shared`."""
        return (self.shared(stage, chunk) + 1024) * self.resident <= target.shared + 1024

    @property
    def constants(self) -> tuple[tuple[str, int], ...]:
        """The constants that the kernel is compiled with."""
        names = ("GROUPS", "BLOCKS", "BN", "STAGES_A", "STAGES_B", "RESIDENT")
        stages = (self.stages_a, self.stages_b)
        values = (self.groups, self.blocks, self.bn, *stages, self.resident)
        return tuple(zip(names, values, strict=True))


@dataclass(frozen=True, slots=True)
class Task:
    """One or several products of equal shape.

    Attributes:
        m: rows of the product.
        n: its columns.
        k: terms of its sums.
        batch: how many such products.
        image: the rows are pixels, or windows of them.
        windows: they are windows, whose elements are looked up.
        traffic: bytes that are read and written.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    image: bool = False
    windows: bool = False
    traffic: int = 0

    def blocks(self, tile: HalfTile) -> int:
        """Return the number of tiles."""
        return ceil_div(self.m, tile.bm) * ceil_div(self.n, tile.bn) * self.batch


def choose(task: Task, target: Target, *, wgmma: bool = True) -> tuple[HalfTile, int]:
    """Return the tile and the number of splits that should be fastest on a GPU.

    Args:
        task: what is multiplied.
        target: the GPU.
        wgmma: Hopper's own products may be taken.
    """
    wgmma = wgmma and target.has_wgmma
    usable = [
        tile
        for tile in TILES
        if (wgmma or not tile.wgmma) and tile.shared(tile.stages) <= target.shared
    ]
    lowest, narrowest = min(tile.bm for tile in usable), min(tile.bn for tile in usable)
    filled = [  # of the others half would multiply nothing
        tile
        for tile in usable
        if tile.bm < 2 * task.m or tile.bm == lowest
        if tile.bn < 2 * task.n or tile.bn == narrowest
    ]
    ways = [
        (estimate(task, tile, splits, target), i, splits)
        for i, tile in enumerate(filled or usable)
        for splits in splits_of(task, tile, target)
    ]
    _, i, splits = min(ways)
    return (filled or usable)[i], splits


def splits_of(task: Task, tile: HalfTile, target: Target) -> list[int]:
    """Return the numbers of splits with a multiprocessor for each block and a step for each.

    The blocks of a cluster lie on one of the groups of multiprocessors, sixteen or a few more.
    """
    blocks, groups = max(task.blocks(tile), 1), target.processors // GROUP
    most = min(ceil_div(task.k, STEP), target.processors // blocks, MOST_IN_CLUSTER)
    return [1] + [
        splits
        for splits in range(2, most + 1)
        if not target.has_clusters or blocks <= groups * (GROUP // splits)
    ]


def estimate(task: Task, tile: HalfTile, splits: int, target: Target) -> float:
    """Return the expected microseconds of a task done in this way; see `choose`."""
    cost, blocks = tile.cost, task.blocks(tile) * splits
    steps = ceil_div(ceil_div(task.k, STEP), splits)
    latency = cost.latency + (cost.window if task.windows else 0)
    processors, resident = float(target.processors), tile.resident(steps, target)
    if splits > 1 and target.has_clusters and (task.image or resident == 1):
        processors, resident = GATHERED * processors, 1
    waves, rest = divmod(ceil(blocks / processors), resident)

    def wave_of(count: int) -> float:
        return cost.wave + count * cost.end + steps * (latency + count * cost.time)

    total = waves * wave_of(resident) + (wave_of(rest) if rest else 0)
    cache = blocks * steps * (tile.bm + tile.bn) * STEP * 2 / CACHE
    total = _overlapped(total, cache, task.traffic, target)
    return LAUNCH + total + (cost.split if splits > 1 else 0)


# ── tiles that the copy engine brings: which one ─────────────────────────────────────────────────

#: Measured as `TILES`, at batch 32 and with 26 tiles. To choose among these and `TILES` by what is
#: expected is within 3 % (geometric mean) of always taking the best of what was measured.
BULK_TILES = (
    BulkTile(2, 1, 32, 4, 4, 3, Cost(0.205, 0.206, 0.229, 0.518)),
    BulkTile(2, 1, 64, 4, 4, 2, Cost(0.242, 0.055, 1.042, 0.471)),
    BulkTile(2, 2, 64, 1, 4, 2, Cost(0.079, 0.34, 0.763, 1.053)),
    BulkTile(2, 2, 64, 2, 2, 2, Cost(0.493, 0.264, 0.893, 0.901)),
    BulkTile(2, 1, 96, 2, 3, 2, Cost(0.125, 0.172, 0.607, 1.242)),
    BulkTile(2, 1, 96, 3, 3, 2, Cost(0.195, 0.156, 1.029, 0.824)),
    BulkTile(1, 1, 128, 2, 4, 2, Cost(0.047, 0.011, 5.003, 0.079)),
    BulkTile(1, 1, 128, 4, 4, 2, Cost(0.205, 0.029, 1.814, 0.34)),
    BulkTile(2, 1, 128, 1, 4, 2, Cost(0.082, 0.292, 0.42, 1.072)),
    BulkTile(2, 1, 128, 2, 3, 2, Cost(0.107, 0.258, 0.355, 1.407)),
    BulkTile(2, 1, 128, 3, 3, 2, Cost(0.164, 0.168, 1.848, 0.754)),
    BulkTile(2, 1, 256, 4, 4, 1, Cost(0.067, 0.495, 1.848, 2.096)),
)
#: Bytes a microsecond that the copy engines of 132 multiprocessors get from the L2 cache.
BULK_CACHE = 10e6


@dataclass(frozen=True, slots=True)
class BulkTask:
    """One product, cut into tiles.

    Attributes:
        tiles: their number.
        steps: of each of them.
        chunk: terms of a step.
        taken: bytes that they take from the cache.
        traffic: bytes that are read and written.
    """

    tiles: int
    steps: int
    chunk: int
    taken: int
    traffic: int


def estimate_bulk(task: BulkTask, tile: BulkTile, target: Target) -> float:
    """Return the expected microseconds of a task; see `estimate`."""
    cost, share = tile.cost, task.chunk / STEP
    waves, rest = divmod(ceil_div(task.tiles, target.processors), tile.resident)

    def wave_of(count: int) -> float:
        step = cost.latency + count * cost.time * share
        return cost.wave + count * cost.end + task.steps * step

    total = waves * wave_of(tile.resident) + (wave_of(rest) if rest else 0)
    cache = task.taken / BULK_CACHE * max(1.0, target.processors / max(task.tiles, 1))
    return LAUNCH + _overlapped(total, cache, task.traffic, target)


def _overlapped(time: float, cache: float, traffic: float, target: Target) -> float:
    """Return what work takes that overlaps with its traffic.

    The longest counts, and the others a little where they are nearly as long.

    Args:
        time: of the work.
        cache: of what it takes from the L2 cache, with 132 multiprocessors.
        traffic: bytes from and to the memory.
        target: the GPU.
    """
    cache *= 132 / target.processors
    return (time**4 + cache**4 + (traffic / MEMORY) ** 4) ** 0.25
