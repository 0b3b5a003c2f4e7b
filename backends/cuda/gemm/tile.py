"""Tiles: the part of a product that a CTA computes; their cost, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from math import ceil, inf
from operator import itemgetter
from typing import Literal, NamedTuple

from ....runtime.base.record import record
from ..recipe.operands import ceil_div
from ..recipe.targets import Target
from .problem import Problem

#: Microseconds per launch; bytes per microsecond of memory and, for 132 multiprocessors, of the
#: L2 cache: by copies of threads (cp.async) and by TMA. Measured on an H200.
LAUNCH, MEMORY, CACHE, TMA_CACHE = 1.0, 3.2e6, 6.5e6, 10e6
#: Maximum portable cluster size.
MAX_CLUSTER = 8
#: Minimum number of multiprocessors per GPC on Hopper, which limits clusters.
CLUSTER_SIZE = 16
#: Multiprocessors of the GPCs of an H200: 30 clusters of four blocks start at a time, if each block
#: needs a multiprocessor.
GPCS = (18, 18, 18, 18, 18, 18, 12, 12)
#: The share of multiprocessors that blocks of clusters occupy at a time: GPCs have odd numbers of
#: multiprocessors, and two blocks seldom share one. Measured: of 96 blocks none waits, of 110 to
#: 128 some do. Splitting convolutions so that none waits makes ResNet-50 at batch 1 7 % faster;
#: linear layers of ViT-B and BERT-base at batch 1, which wait for the previous kernel to end,
#: become 1 to 3 % slower.
CLUSTERED = 104 / 132
#: Problems whose configurations are kept by the functions that choose among them: those of a few
#: large networks, or of one in many shapes.
MAX_KEPT = 1024
#: Factor by which a TMA product must be estimated to be faster than one whose blocks can split a
#: tile, as estimates are inexact.
MARGIN = 0.95
#: The same for deep tiles of `tma_persistent.cu` and constant weights, which seldom are in the
#: cache, where the other kernel waits for them: estimates are further below times then. Fitted to
#: 11 products of 32 to 197 rows on an H100, and to 9 of 128 to 256 rows in networks on an H200.
WEIGHTS_MARGIN = 1.05
#: Steps per stage above which a kernel waits for weights that are not in the cache.
STEPS_AHEAD = 3


@record
class Cost:
    """The measured cost of a tile in microseconds; see `estimate`.

    Attributes:
        latency: minimum time of a step.
        time: additional time of a step per resident block.
        wave: prologue and epilogue of a wave of blocks.
        end: additional time of these per resident block.
        window: additional time of a step for window address lookups.
        split: combining the sums of several blocks.
        begin: additional time of the first wave.
    """

    latency: float
    time: float
    wave: float
    end: float = 0.0
    window: float = 0.0
    split: float = 0.0
    begin: float = 0.0


@record
class CtaTile:
    """The part of a product that a CTA computes, and how.

    Attributes:
        bm, bn: rows and columns of the CTA's result.
        bk: K per step.
        stages: pipeline stages of A in shared memory.
        warps: consumer warps along rows and columns; without tensor cores, rows and columns of
            results per thread.
        atom: the instruction: ``fma`` without tensor cores, ``mma`` per warp, ``wgmma`` per warp
            group.
        resident: CTAs per multiprocessor (occupancy), limited by registers or shared memory; 0 if
            it depends on the problem.
        cost: its measured cost.
        stages_b: pipeline stages of B, if different from A.
        slices: thread groups that split the K of a step (sliced-K).
        overlap: whether a warp group loads the next step while it multiplies.
        ping_pong: whether warp groups alternate on tiles of their own.
        epilogues: number of strips of 64 columns of results buffered in shared memory, 0 if none.
        deep: whether it has more stages than another tile of its size, for long products only, or
            for those of few blocks.
        lean: whether it has fewer.
        boxes: of pixels of an image, each of which serves all taps of 64 channels; 0 if pixels are
            read tap by tap.
    """

    bm: int
    bn: int
    bk: int
    stages: int
    warps: tuple[int, int]
    atom: Literal["fma", "mma", "wgmma"]
    resident: int
    cost: Cost
    stages_b: int = 0
    slices: int = 1
    overlap: bool = False
    ping_pong: bool = False
    epilogues: int = 0
    deep: bool = False
    lean: bool = False
    boxes: int = 0

    @property
    def wgmma(self) -> bool:
        """Whether it uses wgmma."""
        return self.atom == "wgmma"

    @property
    def groups(self) -> int:
        """Number of consumer warp groups."""
        return self.warps[0] * self.warps[1] // 4

    @property
    def ends(self) -> tuple[int, int]:
        """Stages of A and B."""
        return self.stages, self.stages_b or self.stages

    def is_filled(self, k: int) -> bool:
        """Whether its stages are full most of the time in a product of `k` terms."""
        return ceil_div(k, self.bk) >= 2 * self.stages

    def count(self, m: int, n: int) -> int:
        """Return the number of tiles of a result."""
        return -(-m // self.bm) * -(-n // self.bn)

    def blocks(self, problem: Problem) -> int:
        """Return the number of tiles of all products of a problem."""
        return self.count(problem.m, problem.n) * problem.batch

    def constants(self, *names: str) -> tuple[tuple[str, int | bool], ...]:
        """Return its compile-time constants."""
        known = {
            **{"BM": self.bm, "BN": self.bn, "BK": self.bk, "STAGES": self.stages},
            **{"WARPS_M": self.warps[0], "WARPS_N": self.warps[1], "WGMMA": self.wgmma},
            **{"TM": self.warps[0], "TN": self.warps[1], "SLICES": self.slices},
            **{"GROUPS": self.groups, "RESIDENT": self.resident, "OVERLAP": self.overlap},
            **{"STAGES_A": self.ends[0], "STAGES_B": self.ends[1]},
            **{"PING_PONG": self.ping_pong},
        }
        return tuple((name, known[name]) for name in names)

    def __str__(self) -> str:
        """Return its name, such as ``64x64``.

        With wgmma and cp.async it is ``w64x64``, with ping-pong ``2x128x192``, without tensor cores
        ``32x64x16``; ``/4`` is appended for four slices, ``deep`` for more stages, ``lean`` for
        fewer.
        """
        size, slices = f"{self.bm}x{self.bn}", f"/{self.slices}" if self.slices > 1 else ""
        if self.deep:
            return f"{replace(self, deep=False)} deep"
        if self.boxes:
            return f"{replace(self, boxes=0)} boxed"
        if self.lean:
            return f"{replace(self, lean=False)} lean"
        if self.atom == "fma":
            return f"{size}x{self.bk}{slices}"
        if self.ping_pong:
            return f"{self.groups}x{size}"
        by_tma = self.stages_b or self.epilogues
        return f"{'w' if self.wgmma and not by_tma else ''}{size}{slices}"


def with_deep(stages: int, tile: CtaTile) -> tuple[CtaTile, CtaTile]:
    """Return the deep form of a tile, with this many stages of A, and the tile."""
    return replace(tile, stages=stages, deep=True), tile


def rs_tile(
    bm: int, bn: int, stages: int, resident: int, cost: Cost, *, overlap: bool = False
) -> CtaTile:
    """Return a tile of `wgmma_rs.cu`: 32 terms per step, and a warp for every 16 rows."""
    return CtaTile(bm, bn, 32, stages, (bm // 16, 1), "wgmma", resident, cost, overlap=overlap)


@record
class Config:
    """A tile with its number of K splits."""

    tile: CtaTile
    splits: int = 1

    def __str__(self) -> str:
        """Return its name, such as ``w128x64 split 4``."""
        return f"{self.tile} split {self.splits}" if self.splits > 1 else str(self.tile)

    @staticmethod
    def parse(text: str, tiles: Iterable[CtaTile]) -> Config:
        """Return the configuration of this name among these tiles; raises KeyError if unknown."""
        title, _, splits = text.partition(" split ")
        return Config({str(tile): tile for tile in tiles}[title], int(splits or 1))


# ── what it takes: one model of waves of blocks, for every schedule ──────────────────────────────


class BlockWork(NamedTuple):
    """The work of a launch's blocks; a choice of a tile makes hundreds.

    Attributes:
        blocks: tiles times splits.
        steps: steps per block.
        resident: blocks per multiprocessor.
        processors: multiprocessors in use.
        cached: microseconds of all L2 reads, with 132 multiprocessors.
        traffic: bytes of memory traffic.
        share: size of a step relative to the measured one.
        wave: minimum microseconds per wave.
    """

    blocks: int
    steps: int
    resident: int
    processors: float
    cached: float = 0.0
    traffic: float = 0.0
    share: float = 1.0
    wave: float = 0.0


def estimate(cost: Cost, work: BlockWork, *, windows: bool = False) -> float:
    """Return the microseconds of all waves; `windows` adds the cost of address lookups."""
    latency = cost.latency + (cost.window if windows else 0)
    waves, rest = divmod(ceil(work.blocks / work.processors), work.resident)
    time = cost.begin + (waves * _wave(cost, work, latency, work.resident) if waves else 0)
    return time + (_wave(cost, work, latency, rest) if rest else 0)


def _wave(cost: Cost, work: BlockWork, latency: float, count: int) -> float:
    """Return the microseconds of a wave of this many blocks per multiprocessor."""
    step = latency + count * cost.time * work.share
    return max(cost.wave + count * cost.end + work.steps * step, work.wave)


def overlapped(time: float, work: BlockWork, target: Target) -> float:
    """Return the microseconds of waves of blocks overlapped with their memory traffic.

    The largest dominates; the others count a little when they are nearly as large.
    """
    cache = work.cached * 132 / target.processors
    return (time**4 + cache**4 + (work.traffic / MEMORY) ** 4) ** 0.25


# ── the choice ───────────────────────────────────────────────────────────────────────────────────


@record
class TimedConfig:
    """A configuration with its estimate in microseconds."""

    microseconds: float
    config: Config

    @property
    def tile(self) -> CtaTile:
        """The tile."""
        return self.config.tile


def ranked(configs: Iterable[Config], time: Callable[[Config], float]) -> list[TimedConfig]:
    """Return configurations with their estimates, fastest first."""
    return sorted((TimedConfig(time(c), c) for c in configs), key=lambda found: found.microseconds)


def quickest(configs: Iterable[Config], time: Callable[[Config], float]) -> TimedConfig:
    """Return the first of `ranked`; one configuration suits at least."""
    least, best = min(((time(c), c) for c in configs), key=itemgetter(0))
    return TimedConfig(least, best)


def filled(
    tiles: Iterable[CtaTile], problem: Problem, lowest: float = -inf, narrowest: float = -inf
) -> list[CtaTile]:
    """Return the tiles of which a product fills more than half of the columns, and half the rows.

    Args:
        tiles: to choose from.
        problem: the product.
        lowest: tiles with at most this many rows are always included.
        narrowest: tiles with at most this many columns are always included.
    """
    return [
        tile
        for tile in tiles
        if tile.bm <= 2 * problem.m or tile.bm <= lowest
        if tile.bn < 2 * problem.n or tile.bn <= narrowest
    ]


def suited(tiles: list[CtaTile], problem: Problem) -> list[CtaTile]:
    """Return the tiles that are filled, and the smallest ones."""
    lowest, narrowest = min(tile.bm for tile in tiles), min(tile.bn for tile in tiles)
    return filled(tiles, problem, lowest, narrowest) or tiles


@lru_cache(MAX_KEPT)
def clusters_of(size: int, target: Target) -> int:
    """Return how many clusters fit on a GPU with one block per multiprocessor."""
    return sum(gpc // size for gpc in GPCS) * target.processors // sum(GPCS)


def inbox(rows: int, columns: int, blocks: int, *, by_columns: bool = False) -> int:
    """Return the bytes of shared memory for a block's share of a tile, see `inbox.cuh`; 0 for one.

    Args:
        rows: of the tile, or groups of them that one block finishes.
        columns: of a row, or of a group, in float32.
        blocks: of a cluster, each of which sends its part of the share.
        by_columns: whether sums are in the order of columns, an odd number of rows apart.
    """
    if blocks == 1:
        return 0
    own = ceil_div(rows, blocks)
    return 16 + 4 * blocks * (own | 1 if by_columns else own) * columns


def with_splits(
    tiles: Iterable[CtaTile], problem: Problem, target: Target, *, clusters: bool
) -> Iterator[Config]:
    """Yield tiles with splits of at least one step and at most one block per multiprocessor.

    The blocks of a cluster must fit in one GPC, with sixteen or a few more multiprocessors.
    """
    groups = target.processors // CLUSTER_SIZE
    for tile in tiles:
        yield Config(tile)
        blocks = max(tile.blocks(problem), 1)
        maximum = min(ceil_div(problem.k, tile.bk), target.processors // blocks, MAX_CLUSTER)
        for splits in range(2, maximum + 1):
            if not clusters or blocks <= groups * (CLUSTER_SIZE // splits):
                yield Config(tile, splits)


def considerate(ways: list[TimedConfig], problem: Problem, target: Target) -> list[TimedConfig]:
    """Return the configurations that leave multiprocessors to products that run beside this one.

    Those whose splits have more blocks than the fastest one without splits, and than half of the
    multiprocessors, would have the others wait. On an H200, GoogLeNet in float32 takes 2 % less
    time at batch 1 than with splits of up to half of them, and 0.7 % less at batch 32.

    Args:
        ways: fastest first.
        problem: the product.
        target: the GPU.
    """
    if not problem.concurrent:
        return ways
    whole = next(way.tile.blocks(problem) for way in ways if way.config.splits == 1)
    most = max(whole, target.processors // 2)
    return [
        w for w in ways if w.config.splits == 1 or w.tile.blocks(problem) * w.config.splits <= most
    ]
