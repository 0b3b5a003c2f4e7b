"""Linear layers and 1x1 convolutions of 16-bit floats on Hopper: recipes for `mma_linear.cu`."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt

from .compile import Target
from .gemm.atoms import atom_of
from .gemm.epilogue import epilogue_flags
from .half_tiles import MEMORY, STEP
from .launch import Launch
from .layout import ceil_div
from .operands import Packed, Scratch, Tensor, TensorMap
from .tail import Tail

#: Columns of a strip of results, and rows of a block of them.
STRIP, ROWS = 64, 64
#: Registers of a thread that fetches or stores, and of one that multiplies, by groups of those.
FEW, MANY = 40, {1: 216, 2: 232, 3: 152}
#: Microseconds from a request to the operand's arrival, and elements a microsecond, for `exchange`.
LATENCY, EXCHANGED = 1.65, 1e4
#: Bytes of `b` that stay in the L2 cache while rows of `a` go by.
STAYING = 25e6


@dataclass(frozen=True, slots=True)
class LinearTile:
    """What a block of `mma_linear.cu` computes, and how.

    Attributes:
        groups: of four warps that multiply.
        blocks: of 64 rows, that each of them has.
        bn: columns of the tile.
        stages: tiles of either operand in shared memory, in use or on their way.
        turns: each group has tiles of its own.
        begin: microseconds until the first step, and from the last one to the end.
        wave: of what a tile takes besides its steps.
        step: of a step of 64 terms.
        places: for the results of so many tiles in shared memory.
    """

    groups: int
    blocks: int
    bn: int
    stages: int
    turns: bool
    begin: float
    wave: float
    step: float
    places: int = 1

    @property
    def bm(self) -> int:
        """Rows of the tile."""
        return (1 if self.turns else self.groups) * self.blocks * ROWS

    @property
    def threads(self) -> int:
        """Threads of a block: four warps more than multiply."""
        return self.groups * 128 + 128

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        stages = self.stages * ((self.bm + self.bn) * STEP * 2 + 32)
        results = self.places * (self.bm * self.bn * 2 + self.groups * 16)
        return stages + results + self.groups * 24

    @property
    def exchange(self) -> float:
        """Microseconds until results have made place for the next operand, and that is there."""
        return LATENCY / self.places + self.bm * self.bn / EXCHANGED

    @property
    def title(self) -> str:
        """Such as ``192x192``; ``2x128x192`` where groups take turns."""
        return f"{f'{self.groups}x' if self.turns else ''}{self.bm}x{self.bn}"

    @property
    def constants(self) -> tuple[tuple[str, int | bool], ...]:
        """The constants that the kernel is compiled with."""
        return (
            *(("GROUPS", self.groups), ("BLOCKS", self.blocks), ("BN", self.bn)),
            *(("STAGES", self.stages), ("TURNS", self.turns), ("PLACES", self.places)),
            *(("FEW", FEW), ("MANY", MANY[self.groups])),
        )

    def tiles(self, m: int, n: int) -> tuple[int, int]:
        """Return the rows of tiles of a result, and their columns."""
        return ceil_div(m, self.bm), ceil_div(n, self.bn)


#: Least squares of logarithms of what was measured on an H200, with more weight the nearer to the
#: best tile: over fifteen products (linear layers of ViT-B and BERT-base at batch 32, the last
#: convolutions of the blocks of ResNet-50, matrices of 1024 to 8192 rows), and the small tiles over
#: 54 more of 64 to 1024 rows. Tiles in turns, which hide more behind a product than these have,
#: begin earlier than fitted. What is expected to be the fastest tile takes 2.4 % longer at most
#: than the one that is; of several that the memory bounds it is the first.
LINEAR_TILES = (
    LinearTile(2, 1, 128, 3, False, 2.4, 0.165, 0.455, 2),
    LinearTile(2, 2, 128, 3, True, 2.2, 0.07, 0.457, 2),
    LinearTile(3, 1, 192, 3, False, 2.4, 1.448, 0.757),
    LinearTile(2, 1, 192, 4, False, 2.4, 0.366, 0.531),
    LinearTile(2, 2, 192, 4, True, 2.9, 0.2, 0.53),
    LinearTile(2, 1, 256, 3, False, 2.4, 1.178, 0.677),
    LinearTile(2, 1, 128, 5, False, 1.9, 0.59, 0.36),
    LinearTile(2, 1, 64, 6, False, 1.8, 0.275, 0.23),
    LinearTile(1, 1, 64, 6, False, 1.2, 0.65, 0.147, 2),
)


@dataclass(frozen=True, slots=True)
class Linear:
    """A product c = a @ b' + bias, or c = a @ b + bias.

    Attributes:
        c: the result, m rows of n.
        a: m rows of k.
        b: [n][k], or [k][n] if `across`; constants, or as they are given.
        shape: (m, n, k).
        lda, ldc: distances of rows of `a` and of `c`, in elements; as n and k multiples of 8.
        bias: one number a column, or None.
        gaps: whether it goes by the rows of images, which may be slices.
        across: how b lies.
    """

    c: Tensor
    a: Tensor | Scratch
    b: Packed | Tensor
    shape: tuple[int, int, int]
    lda: int
    ldc: int
    bias: Tensor | Packed | None = None
    gaps: bool = False
    across: bool = False

    def pitched(self, tail: Tail) -> tuple[Tensor, ...]:
        """Return the operands that may be slices; see `Launch.pitched`."""
        if not self.gaps:
            return ()
        image = (self.a,) if isinstance(self.a, Tensor) else ()
        return (*image, self.c, *tail.along)


def choose_linear(p: Linear, tail: Tail, target: Target) -> tuple[float, LinearTile] | None:
    """Return the expected microseconds and the tile that takes them, if there is one."""
    (m, n, k), along = p.shape, len(tail.along)
    if not target.has_wgmma or along > 1 or any(x % 8 for x in (n, k, p.lda, p.ldc)):
        return None
    traffic = 2 * (m * k + n * k + m * n * (1 + along))
    steps = ceil_div(k, STEP)

    def time_of(tile: LinearTile) -> float:
        waves = ceil_div(prod(tile.tiles(m, n)), target.processors)
        wave = max(tile.wave + steps * tile.step, tile.exchange if along else 0.0)
        return max(tile.begin + waves * wave, traffic / MEMORY)

    # Others multiply nothing for half of their time, which is still less than to turn `b`.
    filled = [tile for tile in LINEAR_TILES if p.across or (tile.bm < 2 * m and tile.bn < 2 * n)]
    return min(((time_of(tile), tile) for tile in filled), key=lambda way: way[0], default=None)


def patch_of(p: Linear, tile: LinearTile, target: Target) -> int:
    """Return the rows of tiles that are done together, column by column.

    It is one where `b` stays in the cache; else tiles done at the same time make about a square.
    """
    _, n, k = p.shape
    return 1 if 2 * n * k <= STAYING else round(sqrt(target.processors * tile.bn / tile.bm))


def linear_product(p: Linear, tail: Tail, tile: LinearTile, target: Target) -> Launch:
    """Return the launch of a product.

    Args:
        p: what is multiplied.
        tail: applied to every result; one operand at most is read along.
        tile: what a block computes.
        target: the GPU.
    """
    (m, n, k), dtype = p.shape, p.c.dtype
    (tiles_m, tiles_n), patch = tile.tiles(m, n), patch_of(p, tile, target)
    rows_of_b = ((k, n), (k,), (STEP, tile.bn))
    if p.across:
        rows_of_b = ((n, k), (n,), (STRIP, STEP))
    results, strip = ((n, m), (p.ldc,)), (STRIP, tile.blocks * ROWS)
    along = tail.along[0] if tail.along else p.c
    return Launch(
        "mma_linear.cu",
        "mma_linear",
        grid=(min(tiles_m * tiles_n, target.processors), 1, 1),
        block=tile.threads,
        args={
            "a": TensorMap(p.a, dtype, (k, m), (p.lda,), (STEP, tile.bm)),
            "b": TensorMap(p.b, dtype, *rows_of_b),
            "c": TensorMap(p.c, dtype, *results, strip),
            "z": TensorMap(along, dtype, *results, strip),
            **{"bias": p.bias, **tail.args, "n": n, "tiles_m": tiles_m, "tiles_n": tiles_n},
            **{"patch": patch, "steps": ceil_div(k, STEP)},
        },
        types=(("T", dtype),),
        constants=(
            *(*tile.constants, ("ACROSS", p.across), ("CONSTANT", isinstance(p.b, Packed))),
            *epilogue_flags(p.bias, tail),
        ),
        code="\n".join((atom_of(dtype).code(tile.bn, across=tile.bn), tail.code)),
        shared=tile.shared,
        early=isinstance(p.b, Packed),  # it is read before the kernel in front has ended
        note=f"{tile.title} {tail.title}".strip(),
        pitched=p.pitched(tail),
    )
