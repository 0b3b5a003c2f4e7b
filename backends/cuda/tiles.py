"""Tile sizes for `gemm.cu`, and how many blocks share the sum of one tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .compile import Target
from .layout import ceil_div


@dataclass(frozen=True, slots=True)
class Tile:
    """What a block and a thread of `gemm.cu` compute.

    Attributes:
        bm, bn: rows and columns of a block's tile.
        tm, tn: rows and columns of a thread's.
        bk: steps of the sum that lie in shared memory together.
        stages: such pieces of it, one in use and the others on their way.
    """

    bm: int
    bn: int
    tm: int
    tn: int
    bk: int = 16
    stages: int = 3

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.bm // self.tm * (self.bn // self.tn)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return 4 * self.stages * (self.bm * (self.bk + 4) + self.bk * self.bn)

    @property
    def title(self) -> str:
        """Such as ``64x64x16``."""
        return f"{self.bm}x{self.bn}x{self.bk}"

    @property
    def constants(self) -> tuple[tuple[str, int], ...]:
        """The constants that `gemm.cu` is compiled with."""
        names = ("BM", "BN", "BK", "TM", "TN", "STAGES")
        return tuple(
            zip(names, (self.bm, self.bn, self.bk, self.tm, self.tn, self.stages), strict=True)
        )


TILES = (
    Tile(128, 128, 8, 8),
    Tile(128, 64, 8, 8),
    Tile(64, 64, 8, 4),
    Tile(64, 64, 4, 4),
    Tile(64, 32, 4, 4),
    Tile(32, 64, 4, 4),
    Tile(32, 32, 4, 4),
    Tile(128, 32, 8, 4),
    Tile(128, 16, 4, 4),
    Tile(64, 16, 4, 4),
)


def choose(m: int, n: int, k: int, batch: int, target: Target) -> tuple[Tile, int]:
    """Return the tile and the number of splits that should be fastest.

    Args:
        m, n, k: rows, columns and terms of the product.
        batch: how many products.
        target: the GPU.
    """
    return min(_candidates(m, n, k, batch, target), key=lambda c: _cost(m, n, k, batch, *c, target))


def _candidates(m: int, n: int, k: int, batch: int, target: Target) -> Iterator[tuple[Tile, int]]:
    for tile in TILES:
        blocks = ceil_div(m, tile.bm) * ceil_div(n, tile.bn) * batch
        steps = ceil_div(k, tile.bk)
        splits = 1
        while splits <= min(steps // 4, 64) or splits == 1:
            yield tile, splits
            if blocks * splits > 8 * target.processors:
                break
            splits += 1


def _cost(m: int, n: int, k: int, batch: int, tile: Tile, splits: int, target: Target) -> float:
    """Return an estimate of the time, in cycles."""
    blocks = ceil_div(m, tile.bm) * ceil_div(n, tile.bn) * batch * splits
    steps = ceil_div(ceil_div(k, tile.bk), splits)
    warps = tile.threads / 32
    # A scheduler needs several warps to hide latencies; more than it can hold wait for their turn.
    resident = min(max(1, target.shared // max(tile.shared, 1)), int(40 // warps))
    waves = ceil_div(blocks, target.processors)
    together = min(waves, resident)
    busy = min(1.0, (together * warps) / 8)
    arithmetic = tile.bm * tile.bn * tile.bk / 128
    words = (tile.bm + tile.bn) * tile.bk * 4 / 20
    step = max(arithmetic / (0.85 * (0.35 + 0.65 * busy)), words)
    total = waves * steps * step + 1500
    if splits > 1:
        total += 2000 + 3 * splits * m * n * batch * 4 / (target.processors * 20)
    return total
