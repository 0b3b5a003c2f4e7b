"""Tiles: what a block of threads (CTA) computes, and how; what that takes; and which to choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import ceil, inf
from typing import Literal

from ..recipe.layout import ceil_div
from ..recipe.targets import Target
from .problem import Problem

#: Microseconds of a launch, bytes a microsecond of the memory and, for 132 multiprocessors, of the
#: L2 cache: by copies of threads (cp.async) and by TMA. Measured on an H200.
LAUNCH, MEMORY, CACHE, TMA_CACHE = 1.0, 3.2e6, 6.5e6, 10e6
#: Blocks of a cluster, on every GPU that has clusters.
MAX_CLUSTER = 8
#: Multiprocessors that can share memory: at least so many on a Hopper.
CLUSTER_SIZE = 16
#: The share of the multiprocessors that blocks of clusters are on at once: groups have odd ones,
#: and two seldom share one. Measured: of 96 blocks none waits, of 110 to 128 some do. To split
#: convolutions so that none waits makes ResNet-50 at batch 1 7 % faster; linear layers of ViT-B and
#: BERT-base at batch 1, which wait while the kernel in front ends, are 1 to 3 % slower by it.
CLUSTERED = 104 / 132
#: By so much a product by TMA has to be faster than one whose blocks can share a tile: estimates
#: err.
MARGIN = 0.95


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds that a tile takes, measured; see `estimate`.

    Attributes:
        latency: of a step, in any case.
        time: by which each resident block makes a step longer.
        wave: of the beginning and the end of a wave of blocks.
        end: by which each resident block makes those longer.
        window: by which looking up windows makes a step longer.
        split: of adding up the sums of several blocks.
        begin: of the first wave alone.
    """

    latency: float
    time: float
    wave: float
    end: float = 0.0
    window: float = 0.0
    split: float = 0.0
    begin: float = 0.0


@dataclass(frozen=True, slots=True)
class Tile:
    """The part of a product that a block computes, and how.

    Attributes:
        bm, bn: rows and columns of the block's results.
        bk: terms of the sums in one step.
        stages: steps of A in shared memory, some in use and the others on their way.
        warps: along rows and columns, of those that multiply; without tensor cores the rows and
            columns of a thread's results.
        atom: what multiplies: ``fma`` without tensor cores, ``mma`` in single warps, ``wgmma`` in
            groups of four.
        resident: blocks of a multiprocessor, as registers or shared memory allow; 0 if the number
            depends on the problem.
        cost: what it takes.
        stages_b: steps of B in shared memory, where they are not as many as those of A.
        slices: groups of threads that share the terms of a step (sliced-K).
        overlap: a group reads one step while it multiplies another.
        ping_pong: each group of four warps has tiles of its own, and they take turns.
        epilogues: tiles whose results have a place in shared memory, 0 if they need none there.
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

    @property
    def wgmma(self) -> bool:
        """Whether it needs Hopper's instructions of four warps."""
        return self.atom == "wgmma"

    @property
    def groups(self) -> int:
        """Groups of four warps that multiply."""
        return self.warps[0] * self.warps[1] // 4

    @property
    def ends(self) -> tuple[int, int]:
        """Steps of A and of B in shared memory."""
        return self.stages, self.stages_b or self.stages

    def count(self, m: int, n: int) -> int:
        """Return the number of tiles of a result."""
        return -(-m // self.bm) * -(-n // self.bn)

    def blocks(self, problem: Problem) -> int:
        """Return the number of tiles of all products of a problem."""
        return self.count(problem.m, problem.n) * problem.batch

    def constants(self, *names: str) -> tuple[tuple[str, int | bool], ...]:
        """Return some of the constants that kernels are compiled with."""
        known = {
            **{"BM": self.bm, "BN": self.bn, "BK": self.bk, "STAGES": self.stages},
            **{"WARPS_M": self.warps[0], "WARPS_N": self.warps[1], "WGMMA": self.wgmma},
            **{"TM": self.warps[0], "TN": self.warps[1], "SLICES": self.slices},
            **{"GROUPS": self.groups, "RESIDENT": self.resident, "OVERLAP": self.overlap},
            **{"STAGES_A": self.ends[0], "STAGES_B": self.ends[1]},
            **{"TURNS": self.ping_pong, "PLACES": self.epilogues},
        }
        return tuple((name, known[name]) for name in names)

    def __str__(self) -> str:
        """Return such as ``64x64``.

        With wgmma and copies by threads it is ``w64x64``, with groups that take turns
        ``2x128x192``, without tensor cores ``32x64x16``, there with a ``/4`` behind it for four
        slices.
        """
        size = f"{self.bm}x{self.bn}"
        if self.atom == "fma":
            return f"{size}x{self.bk}{f'/{self.slices}' if self.slices > 1 else ''}"
        if self.ping_pong:
            return f"{self.groups}x{size}"
        by_tma = self.stages_b or self.epilogues
        return f"{'w' if self.wgmma and not by_tma else ''}{size}"


@dataclass(frozen=True, slots=True)
class Config:
    """A tile, and how many blocks share the sum of one (split-K)."""

    tile: Tile
    splits: int = 1

    def __str__(self) -> str:
        """Return such as ``w128x64 split 4``."""
        return f"{self.tile} split {self.splits}" if self.splits > 1 else str(self.tile)

    @staticmethod
    def parse(text: str, tiles: Iterable[Tile]) -> Config:
        """Return what `str` names, of these tiles; raises KeyError where there is no such tile."""
        title, _, splits = text.partition(" split ")
        return Config({str(tile): tile for tile in tiles}[title], int(splits or 1))


# ── what it takes: one model of waves of blocks, for every schedule ──────────────────────────────


@dataclass(frozen=True, slots=True)
class Work:
    """What the blocks of a launch do.

    Attributes:
        blocks: tiles, times the blocks that share one.
        steps: of each of them.
        resident: blocks of a multiprocessor.
        processors: multiprocessors that they are on.
        cached: microseconds of what all of them take from the L2 cache, with 132 multiprocessors.
        traffic: bytes from and to the memory.
        share: terms of a step, by those of a step that was measured.
        wave: microseconds that a wave of blocks takes at least.
    """

    blocks: int
    steps: int
    resident: int
    processors: float
    cached: float = 0.0
    traffic: float = 0.0
    share: float = 1.0
    wave: float = 0.0


def estimate(cost: Cost, work: Work, *, windows: bool = False) -> float:
    """Return the microseconds of the waves of blocks; `windows` says whether they are looked up."""
    latency = cost.latency + (cost.window if windows else 0)
    waves, rest = divmod(ceil(work.blocks / work.processors), work.resident)

    def wave_of(count: int) -> float:
        step = latency + count * cost.time * work.share
        return max(cost.wave + count * cost.end + work.steps * step, work.wave)

    return cost.begin + waves * wave_of(work.resident) + (wave_of(rest) if rest else 0)


def overlapped(time: float, work: Work, target: Target) -> float:
    """Return the microseconds of waves of blocks that overlap with their traffic.

    The longest counts, and the others a little where they are nearly as long.
    """
    cache = work.cached * 132 / target.processors
    return (time**4 + cache**4 + (work.traffic / MEMORY) ** 4) ** 0.25


# ── the choice ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration with the microseconds that it should take."""

    microseconds: float
    config: Config

    @property
    def tile(self) -> Tile:
        """The tile."""
        return self.config.tile


def ranked(configs: Iterable[Config], time: Callable[[Config], float]) -> list[Choice]:
    """Return configurations with what they should take, the fastest first."""
    return sorted((Choice(time(c), c) for c in configs), key=lambda found: found.microseconds)


def filled(
    tiles: Iterable[Tile], problem: Problem, lowest: float = -inf, narrowest: float = -inf
) -> list[Tile]:
    """Return the tiles of which a product fills more than half.

    Args:
        tiles: to choose from.
        problem: the product.
        lowest: tiles of no more rows do in any case.
        narrowest: tiles of no more columns do in any case.
    """
    return [
        tile
        for tile in tiles
        if tile.bm < 2 * problem.m or tile.bm <= lowest
        if tile.bn < 2 * problem.n or tile.bn <= narrowest
    ]


def suited(tiles: list[Tile], problem: Problem) -> list[Tile]:
    """Return the tiles that are filled, or are the lowest or the narrowest that there are."""
    lowest, narrowest = min(tile.bm for tile in tiles), min(tile.bn for tile in tiles)
    return filled(tiles, problem, lowest, narrowest) or tiles


def with_splits(
    tiles: Iterable[Tile], problem: Problem, target: Target, *, clusters: bool
) -> Iterator[Config]:
    """Yield tiles with the splits that leave a multiprocessor for each block and a step for each.

    The blocks of a cluster lie on one of the groups of multiprocessors, sixteen or a few more.
    """
    groups = target.processors // CLUSTER_SIZE
    for tile in tiles:
        yield Config(tile)
        blocks = max(tile.blocks(problem), 1)
        maximum = min(ceil_div(problem.k, tile.bk), target.processors // blocks, MAX_CLUSTER)
        for splits in range(2, maximum + 1):
            if not clusters or blocks <= groups * (CLUSTER_SIZE // splits):
                yield Config(tile, splits)
