"""GEMM of few rows of 16-bit floats on Hopper, constant weights as left operand: `swap_ab.cu`.

Weights, of 16 bits or of a few, are in registers, and a block has as many rows of A as there are,
up to `MAX_ROWS`. Warp-specialized, with sliced-K, and split-K across the CTAs of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil

from .....runtime.ir.dtypes import uint8
from ...codegen.epilogue import Epilogue
from ...recipe.launch import Launch
from ...recipe.operands import TensorMap, ceil_div
from ...recipe.targets import Target
from ..atoms import atom_of
from ..packed_weights import PackedWeights
from ..problem import GemmArguments
from ..tile import (
    LAUNCH,
    MAX_CLUSTER,
    Config,
    Cost,
    CtaTile,
    TimedConfig,
    clusters_of,
    ranked,
)
from .multistage import SplitK

#: Maximum rows of A per block; elements of A per copy, and of a row of A in shared memory.
MAX_ROWS, VECTOR, SLAB = 128, 8, 64
#: Rows of weights of a warp, and bytes of a row in a quarter of 64.
ROWS_OF_WARP, QUARTER_BYTES = 16, 16
#: Maximum number of consumer warpgroups with rows of weights of their own, and of all; numbers of
#: slices for weights of 16 bits, which are as fast as four.
MAX_GROUPS, MAX_CONSUMERS, SLICES = 4, 7, (2, 3)
#: Maximum number of stages; bytes of a row of weights per step.
STAGES, WIDTH = 12, 128
#: Registers per multiprocessor, maximum per thread, and those of consumers besides sums and
#: unpacked weights.
REGISTERS, MAX_REGISTERS, OTHER = 65536, 240, 36
#: Registers of threads that permute A, at least, and those for pieces of A.
PERMUTING, MOVED = 56, 16
#: Bytes per microsecond of memory; of weights per multiprocessor, and of A, which are in the cache.
MEMORY, PROCESSOR_MEMORY, CACHED = 3.6e6, 42e3, 100e3
#: Packed weights: microseconds in which a multiprocessor unpacks and multiplies what a warp has of
#: a quarter of 64 bytes per row, at least, or at first and per row of A.
QUARTER, QUARTER_START, QUARTER_ROW = 0.0196, 0.0135, 0.00019
#: Microseconds until the first products, after the last ones, and to combine a cluster's sums.
BEGIN, END, JOIN = 1.6, 0.8, 1.2
#: Share of the clusters that would fit which start together: other blocks are in their way.
STARTING = 0.9


@dataclass(frozen=True, slots=True)
class Weights:
    """What the schedule has to know of weights.

    Attributes:
        bits: per weight.
        nbytes: total bytes, with scales.
        row: bytes of a row.
        packed: how they are packed; None for 16-bit floats.
    """

    bits: int
    nbytes: int
    row: int
    packed: PackedWeights | None = None

    @staticmethod
    def of(gemm: GemmArguments, packed: PackedWeights | None) -> Weights:
        """Return those of a product, packed or in rows of `ldb` elements."""
        if packed is not None:
            return Weights(packed.op.bits, packed.nbytes, packed.bytes, packed)
        row = gemm.ldb * gemm.dtype.itemsize
        return Weights(16, gemm.shape[1] * row, row)

    @property
    def width(self) -> int:
        """Bytes of a row per step."""
        return WIDTH

    @property
    def terms(self) -> int:
        """Terms per step."""
        return self.width * 8 // self.bits

    @property
    def factor_bytes(self) -> int:
        """Bytes of scales and zero points per row and step."""
        return self.packed.factor_bytes_of(self.terms) if self.packed else 0


def threads(tile: CtaTile) -> int:
    """Return the threads per block, including a warpgroup that permutes A."""
    return 128 * (tile.groups * tile.slices + 1)


def shared(tile: CtaTile, weights: Weights) -> int:
    """Return the shared memory per block in bytes: for stages, and later for sums; for barriers."""
    of_row = weights.width + weights.factor_bytes
    stages = tile.stages * (2 * tile.bm * tile.bk + tile.bn * of_row)
    sums = tile.slices * tile.bm * (tile.bn + 4) * 4
    return ceil_div(max(stages, sums), 16) * 16 + 24 * tile.stages


@dataclass(frozen=True, slots=True)
class Registers:
    """How threads use their registers.

    Attributes:
        consumer, other: registers per thread.
        batch: pieces of A that a thread permutes at once, for packed weights.
    """

    consumer: int
    other: int
    batch: int

    @staticmethod
    def of(tile: CtaTile, weights: Weights) -> Registers | None:
        """Return how threads use their registers; None if there are too few."""
        equal = min(REGISTERS // threads(tile) // 8 * 8, MAX_REGISTERS)
        piece = 32 // weights.bits if weights.packed else 0  # terms that match a word of weights
        consumer = max(ceil_div(tile.bm // 2 + 2 * piece + OTHER, 8) * 8, equal)
        other = equal - tile.groups * tile.slices * (consumer - equal)
        if other < PERMUTING or consumer > MAX_REGISTERS:
            return None
        most = max(1, 2 * MOVED // max(1, piece))
        batch = max(n for n in range(1, most + 1) if tile.bm // 8 % n == 0)
        return Registers(consumer, other, batch)


@dataclass(frozen=True, slots=True)
class SwapAb:
    """A product with constant weights.

    Attributes:
        gemm: the product; its `b` is `packed.words` or [n][ldb].
        packed: the packed weights; None for 16-bit floats.
        products: one, or two whose weights take turns and whose results the epilogue combines:
            `gemm` has the columns of both.
    """

    gemm: GemmArguments
    packed: PackedWeights | None = None
    products: int = 1

    @property
    def weights(self) -> Weights:
        """The weights."""
        return Weights.of(self.gemm, self.packed)

    def tiles(self, target: Target) -> Iterator[CtaTile]:
        """Yield the tiles that fit on a GPU: with all rows, or an equal part of them."""
        (m, _, k), weights = self.gemm.shape, self.weights
        if not target.has_wgmma or self.gemm.a.vector < VECTOR:
            return
        rows = ceil_div(ceil_div(m, ceil_div(m, MAX_ROWS)), 8) * 8
        steps = ceil_div(k, weights.terms)
        for groups, slices in sorted(self._shapes(steps)):
            for stages in range(min(STAGES, max(2, steps)), 1, -1):
                warps, cost = (4, groups), Cost(0, 0, 0)
                tile = CtaTile(
                    *(rows, 64 * groups, weights.terms, stages, warps, "wgmma", 1, cost),
                    slices=slices,
                )
                if shared(tile, weights) <= target.shared and Registers.of(tile, weights):
                    yield tile
                    break

    def _shapes(self, steps: int) -> set[tuple[int, int]]:
        """Return how many warpgroups have rows of their own, and in how many slices of K.

        A single one waits for memory most of the time. Weights of 16 bits are bound by memory,
        for which small tiles suffice.
        """
        if self.packed is None:
            return {(1, min(slices, steps)) for slices in SLICES}
        most = min(MAX_CONSUMERS, steps)
        pairs = product(range(1, MAX_GROUPS + 1), range(1, most + 1))
        return {(g, s) for g, s in pairs if min(2, most) <= g * s <= MAX_CONSUMERS}

    def configs(self, target: Target) -> Iterator[Config]:
        """Yield tiles with splits such that all blocks run at once, or without splits."""
        m, n, k = self.gemm.shape
        for tile in self.tiles(target):
            blocks, steps = tile.count(m, n), ceil_div(k, tile.bk)
            yield Config(tile)
            for splits in range(2, min(MAX_CLUSTER, steps // tile.slices) + 1):
                together = clusters_of(splits, target)
                if blocks <= (together if splits == 2 else STARTING * together):
                    yield Config(tile, splits)

    def choose(self, target: Target) -> TimedConfig | None:
        """Return the tile and splits with the lowest estimate; None if nothing fits."""
        found = ranked(self.configs(target), lambda config: self.expected(config, target))
        return found[0] if found else None

    def expected(self, config: Config, target: Target) -> float:
        """Return the estimate for a configuration in microseconds."""
        (m, n, k), tile, splits, weights = self.gemm.shape, config.tile, config.splits, self.weights
        blocks = tile.count(m, n) * splits
        steps = ceil_div(ceil_div(k, tile.bk), splits)
        of_step = tile.bn * (weights.width + weights.factor_bytes) / PROCESSOR_MEMORY
        reading = steps * (of_step + 2 * tile.bm * tile.bk / CACHED)
        if weights.packed:
            quarters = steps * tile.bn // ROWS_OF_WARP * weights.width // QUARTER_BYTES
            reading = max(reading, quarters * max(QUARTER, QUARTER_START + QUARTER_ROW * tile.bm))
        waves = ceil(blocks / target.processors)
        traffic = weights.nbytes + 2 * m * (n + k)
        time = ((waves * (BEGIN + reading + END)) ** 4 + (traffic / MEMORY) ** 4) ** 0.25
        return LAUNCH + time + (JOIN if splits > 1 else 0.0)

    def launch(self, epilogue: Epilogue, config: Config) -> Launch:
        """Return the launch of the product, with `epilogue` applied to every result."""
        gemm, weights, tile = self.gemm, self.weights, config.tile
        (m, n, k), packed = gemm.shape, weights.packed
        own = Registers.of(tile, weights)
        assert own is not None
        pair = f", {self.products} products" if self.products > 1 else ""
        split = SplitK.CLUSTER if config.splits > 1 else SplitK.WHOLE
        of_packed = (("BATCH", own.batch), *packed.constants) if packed else ()
        elements = (uint8, weights.row, weights.width) if packed else (gemm.dtype, k, SLAB)
        dtype, of_row, width = elements
        return Launch(
            "gemm/swap_ab.cu",
            "swap_ab",
            grid=(tile.count(m, n), config.splits, 1),
            block=threads(tile),
            args={
                "a": TensorMap(gemm.a.data, gemm.dtype, (k, m), (gemm.a.row,), (SLAB, tile.bm)),
                "w": TensorMap(
                    gemm.b, dtype, (of_row, n), (weights.row // dtype.itemsize,), (width, tile.bn)
                ),
                "factors": packed.factors_of_steps(weights.terms) if packed else None,
                **{"c": gemm.c, "bias": gemm.bias, **epilogue.args},
                **{"m": m, "n": n, "tiles_m": ceil_div(m, tile.bm)},
            },
            types=(("T", gemm.dtype), *epilogue.aliases),
            constants=(
                *tile.constants("BM", "GROUPS", "SLICES", "STAGES"),
                *(("REGISTERS", own.consumer), ("OTHER_REGISTERS", own.other)),
                *(("WIDTH", weights.width), ("K", k), *of_packed, ("SPLIT", int(split))),
                ("PRODUCTS", self.products),
                *(("VECTOR_C", gemm.vector_c(8)), *epilogue.flags(gemm.bias)),
            ),
            code="\n".join(
                (
                    f"#define PACKED {int(packed is not None)}",
                    atom_of(gemm.dtype).code(tile.bm, a_in_registers=packed is not None),
                    epilogue.code,
                )
            ),
            shared=shared(tile, weights),
            cluster=(1, config.splits, 1),
            note=f"{config}{pair}, {weights.bits} bits {epilogue.title}".strip(),
        )
