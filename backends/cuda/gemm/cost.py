"""What a product should take: one model of waves of blocks, for every schedule; and the choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import ceil, inf

from ..recipe.layout import ceil_div
from ..recipe.targets import Target
from .problem import Problem
from .tile import Config, Cost, Tile

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
        blocks = max(problem.blocks(tile), 1)
        maximum = min(ceil_div(problem.k, tile.bk), target.processors // blocks, MAX_CLUSTER)
        for splits in range(2, maximum + 1):
            if not clusters or blocks <= groups * (CLUSTER_SIZE // splits):
                yield Config(tile, splits)
