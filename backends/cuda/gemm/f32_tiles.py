"""Tiles of products of float32 on tensor cores: what each takes, and which is the fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from ..recipe.operands import ceil_div
from ..recipe.targets import Target
from .atoms import F16X3, Atom
from .problem import Problem, RowKind
from .resources import Resources
from .schedules import multistage, wgmma_rs
from .tables import f16x3, tf32
from .tile import (
    CACHE,
    LAUNCH,
    MAX_KEPT,
    BlockWork,
    Config,
    CtaTile,
    TimedConfig,
    clusters_of,
    considerate,
    estimate,
    overlapped,
    quickest,
    ranked,
    suited,
    with_splits,
)

#: The share of multiprocessors that blocks of clusters of more than two can have to themselves at a
#: time, if their size allows it (`clusters_of`). Measured on an H200: 117 blocks in threes, 120 in
#: fours, 98 in sevens and 112 in eights, but not 120, 128, 112 and 128.
CLUSTERED = 118 / 132
#: Columns that have one scale in halves.
BLOCK = 64


def tiles_of(atom: Atom, target: Target) -> tuple[CtaTile, ...]:
    """Return the tiles for an instruction on a GPU."""
    if atom is F16X3:
        return f16x3.WGMMA_RS
    return tf32.WGMMA_RS if target.has_wgmma else tf32.MULTISTAGE


def resources(tile: CtaTile, atom: Atom) -> Resources:
    """Return what a block takes without splits."""
    if tile.wgmma:
        return wgmma_rs.resources(Config(tile), atom.words)
    return multistage.resources(tile, tile.stages, atom.parts)


@lru_cache(MAX_KEPT)
def _fitting(atom: Atom, target: Target) -> list[CtaTile]:
    """Return the tiles for an instruction of which a multiprocessor has room for as many blocks."""
    return [tile for tile in tiles_of(atom, target) if resources(tile, atom).fits(target)]


def estimator(problem: Problem, atom: Atom, target: Target) -> Callable[[Config], float]:
    """Return a function of a configuration to its estimate in microseconds."""
    m, n, k, count = problem.m, problem.n, problem.k, problem.batch
    words, windows = atom.words, problem.windows
    read = m * k // (9 if windows else 1)  # windows overlap
    traffic = 4 * count * (read + m * n + words * n * k)
    # The costs of TF32's tiles are fitted to convolutions, where they contain this.
    contained = atom is not F16X3 and problem.rows is not RowKind.MATRIX
    clustered = target.has_clusters and not contained

    def expected(config: Config) -> float:
        tile, splits = config.tile, config.splits
        blocks = tile.blocks(problem) * splits
        steps = ceil_div(ceil_div(k, tile.bk), splits)
        cached = blocks * steps * (tile.bm + words * tile.bn) * tile.bk * 4 / CACHE
        processors: float = target.processors
        if splits > 2 and clustered:
            processors = min(processors * CLUSTERED, clusters_of(splits, target) * splits)
        work = BlockWork(blocks, steps, tile.resident, processors, cached, traffic)
        time = overlapped(estimate(tile.cost, work, windows=windows), work, target)
        return LAUNCH + time + (tile.cost.split if splits > 1 else 0)

    return expected


@lru_cache(MAX_KEPT)
def ways_of(problem: Problem, atom: Atom, target: Target) -> tuple[TimedConfig, ...]:
    """Return all configurations with their estimates, fastest first."""
    found = _configs(problem, atom, target)
    ways = ranked(found, estimator(problem, atom, target))
    return tuple(considerate(ways, problem, target))


def _configs(problem: Problem, atom: Atom, target: Target) -> Iterator[Config]:
    """Yield the tiles that suit a product, with and without splits."""
    tiles = suited(_fitting(atom, target), problem)
    for config in with_splits(tiles, problem, target, clusters=target.has_wgmma):
        if _meant(config, problem, target):
            yield config


def _meant(config: Config, problem: Problem, target: Target) -> bool:
    """Whether a product is one that a tile is meant for: lean ones, for one wave of a matrix."""
    tile = config.tile
    if not tile.lean:
        return True
    one_wave = tile.blocks(problem) * config.splits <= target.processors
    return one_wave and problem.rows is RowKind.MATRIX


@lru_cache(MAX_KEPT)
def choose(problem: Problem, atom: Atom, target: Target) -> TimedConfig:
    """Return the configuration with the lowest estimate."""
    if problem.concurrent:
        return ways_of(problem, atom, target)[0]
    return quickest(_configs(problem, atom, target), estimator(problem, atom, target))


def choose_blocks(problem: Problem, atom: Atom, target: Target) -> TimedConfig:
    """Return the one with the lowest estimate whose columns are blocks that have one scale."""
    return next(way for way in ways_of(problem, atom, target) if way.tile.bn % BLOCK == 0)
