"""Tiles: what a block of threads (CTA) computes, and how; and what that takes, as measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

#: What a product is: rows, columns and terms.
Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds that a tile takes, measured; see `cost.estimate`.

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
