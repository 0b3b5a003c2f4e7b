"""Tile sizes for float32 on tensor cores, and how many blocks share the sum of one tile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .compile import Target
from .half_tiles import GROUP, MOST_IN_CLUSTER, Cost, Task
from .layout import ceil_div

#: Terms of the sums in one step.
STEP = 32
#: Registers of a multiprocessor, and the most that a thread which multiplies can have.
REGISTERS, MOST_REGISTERS = 65536, 240


_UNMEASURED = Cost(0.3, 0.3, 1.0, 0.5, 0.1, 1.5)


@dataclass(frozen=True, slots=True)
class SplitTile:
    """What a block computes, and how.

    Attributes:
        bm, bn: rows and columns of a block's tile.
        stages: steps in shared memory, some in use and the others on their way.
        resident: blocks of a multiprocessor.
        warps_m, warps_n: how warps share it (mma.sync); 0 where groups of four warps multiply 64
            rows each, and four more load (wgmma, on Hopper).
        overlap: whether a group reads one step while it multiplies another; wgmma only.
        cost: what it takes.
    """

    bm: int
    bn: int
    stages: int
    resident: int = 1
    warps_m: int = 0
    warps_n: int = 0
    overlap: bool = False
    cost: Cost = _UNMEASURED

    @property
    def wgmma(self) -> bool:
        """Whether it needs a Hopper."""
        return self.warps_m == 0

    @property
    def groups(self) -> int:
        """Groups of four warps that multiply."""
        return self.bm // 64

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * (self.groups + 1) if self.wgmma else 32 * self.warps_m * self.warps_n

    def shared(self, parts: int) -> int:
        """Return the bytes of shared memory of a block, whose numbers have so many parts."""
        steps = self.stages * 128 * (self.bm + parts * self.bn)
        return max(steps, self.bm * (self.bn + 8) * 4) + 16 * self.stages if self.wgmma else steps

    @property
    def title(self) -> str:
        """Such as ``64x64`` or, with wgmma, ``w128x128``."""
        return f"{'w' if self.wgmma else ''}{self.bm}x{self.bn}"

    @property
    def constants(self) -> tuple[tuple[str, int], ...]:
        """The constants that the kernel is compiled with."""
        if not self.wgmma:
            return (
                *(("BM", self.bm), ("BN", self.bn), ("STAGES", self.stages)),
                *(("WARPS_M", self.warps_m), ("WARPS_N", self.warps_n)),
            )
        most = REGISTERS // (self.threads * self.resident) // 8 * 8
        total = (self.groups + 1) * min(most, MOST_REGISTERS)
        own = min((total - 24 - 16 * self.groups) // self.groups // 8 * 8, MOST_REGISTERS)
        return (
            *(("GROUPS", self.groups), ("BN", self.bn), ("STAGES", self.stages)),
            *(("RESIDENT", self.resident), ("REGISTERS", own)),
            *(("LOADER_REGISTERS", total - self.groups * own), ("OVERLAP", self.overlap)),
        )


#: The ones with wgmma measured on an H200 over the convolutions of ResNet-50, MobileNetV2, VGG-16
#: and GoogLeNet at batch 1 and 32, with 14 tiles and all sensible splits: what `estimate` makes of
#: their figures is within 2 % (geometric mean) of always taking the best.
TILES = (
    SplitTile(64, 64, 3, 1, 2, 2),
    SplitTile(128, 64, 3, 1, 4, 2),
    SplitTile(128, 128, 3, 1, 4, 2),
    SplitTile(64, 16, 6, 2, overlap=True, cost=Cost(0.07, 0.184, 1.17, 0.426, 0.035, 1.05)),
    SplitTile(64, 32, 5, 2, overlap=True, cost=Cost(0.078, 0.191, 1.25, 0.6, 0.04, 1.02)),
    SplitTile(64, 64, 4, 2, overlap=True, cost=Cost(0.284, 0.062, 1.38, 0.719, 0.056, 1.13)),
    SplitTile(64, 96, 3, 2, overlap=True, cost=Cost(0.384, 0.087, 1.41, 1.47, 0.001, 0.844)),
    SplitTile(64, 128, 2, 2, cost=Cost(0.656, 0.072, 1.55, 0.972, 0.0, 1.39)),
    SplitTile(128, 96, 5, overlap=True, cost=Cost(0.59, 0.131, 1.77, 2.48, 0.001, 1.33)),
    SplitTile(128, 128, 4, cost=Cost(0.247, 0.69, 2.49, 2.51, 0.0, 1.49)),
    SplitTile(192, 64, 5, cost=Cost(0.494, 0.348, 2.74, 1.81, 0.0, 1.99)),
    SplitTile(192, 96, 4, cost=Cost(0.658, 0.506, 1.62, 6.7, 0.0, 0.0)),
)
#: Microseconds of a launch, bytes a microsecond of the memory and, for 132 multiprocessors, of the
#: L2 cache.
LAUNCH, MEMORY, CACHE = 1.0, 3.2e6, 6.5e6


@cache
def choose(task: Task, parts: int, target: Target) -> tuple[SplitTile, int]:
    """Return the tile and the number of splits that should be fastest on a GPU."""
    _, tile, splits = ways_of(task, parts, target)[0]
    return tile, splits


def ways_of(task: Task, parts: int, target: Target) -> list[tuple[float, SplitTile, int]]:
    """Return the microseconds, tile and number of splits of every way, the fastest first."""
    usable = [
        tile
        for tile in TILES
        if tile.wgmma == target.has_wgmma and tile.shared(parts) <= target.shared
    ]
    lowest, narrowest = min(tile.bm for tile in usable), min(tile.bn for tile in usable)
    ways = [
        (estimate(task, tile, splits, parts, target), tile, splits)
        for tile in usable
        if tile.bm < 2 * task.m or tile.bm == lowest  # of the others half would multiply nothing
        if tile.bn < 2 * task.n or tile.bn == narrowest
        for splits in splits_of(task, tile, target)
    ]
    return sorted(ways, key=lambda way: way[0])


def title_of(tile: SplitTile, splits: int) -> str:
    """Return such as ``w128x64 split 4``."""
    return f"{tile.title} split {splits}" if splits > 1 else tile.title


def tile_named(variant: str) -> tuple[SplitTile, int]:
    """Return what `title_of` names; raises KeyError where there is no such tile."""
    title, _, splits = variant.partition(" split ")
    return {tile.title: tile for tile in TILES}[title], int(splits or 1)


def blocks_of(task: Task, tile: SplitTile) -> int:
    """Return the number of tiles."""
    return ceil_div(task.m, tile.bm) * ceil_div(task.n, tile.bn) * task.batch


def splits_of(task: Task, tile: SplitTile, target: Target) -> list[int]:
    """Return the numbers of splits with a multiprocessor for each block and a step for each.

    The blocks of a cluster lie on one of the groups of multiprocessors, sixteen or a few more.
    """
    blocks, groups = max(blocks_of(task, tile), 1), target.processors // GROUP
    most = min(ceil_div(task.k, STEP), target.processors // blocks, MOST_IN_CLUSTER)
    return [1] + [
        splits
        for splits in range(2, most + 1)
        if not tile.wgmma or blocks <= groups * (GROUP // splits)
    ]


def estimate(task: Task, tile: SplitTile, splits: int, parts: int, target: Target) -> float:
    """Return the expected microseconds of a task done in this way."""
    cost, blocks = tile.cost, blocks_of(task, tile) * splits
    steps = ceil_div(ceil_div(task.k, STEP), splits)
    latency = cost.latency + (cost.window if task.windows else 0)
    waves, rest = divmod(ceil_div(blocks, target.processors), tile.resident)

    def wave_of(count: int) -> float:
        return count * cost.end + steps * (latency + count * cost.time)

    total = cost.wave + waves * wave_of(tile.resident) + (wave_of(rest) if rest else 0)
    loaded = blocks * steps * (tile.bm + parts * tile.bn) * STEP * 4
    cache = loaded / CACHE * 132 / target.processors
    # The three overlap: the longest counts, and the others a little where they are nearly as long.
    total = (total**4 + cache**4 + (task.traffic / MEMORY) ** 4) ** 0.25
    return LAUNCH + total + (cost.split if splits > 1 else 0)
