"""GEMM of 16-bit floats with weights of a few bits, which are unpacked in registers (mma.sync).

Mixed-input GEMM with the weights as left operand of each instruction: `mixed_input.cu`. Sliced-K
within a CTA, and split-K across CTAs, as a cluster or by partial sums in the workspace.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .....runtime.base.record import record
from ...codegen.epilogue import NO_EPILOGUE, Epilogue
from ...recipe.launch import Launch
from ...recipe.operands import Scratch, ceil_div
from ...recipe.targets import REGISTERS, Target
from ..atoms import atom_of
from ..between import Between, Measured
from ..packed_weights import STEP, PackedWeights
from ..problem import GemmArguments, Problem
from ..reduce_splits import reduction
from ..resources import Resources
from ..tables.mixed_input import MIXED_INPUT
from ..tile import (
    LAUNCH,
    MAX_CLUSTER,
    BlockWork,
    Config,
    CtaTile,
    TimedConfig,
    clusters_of,
    estimate,
    inbox,
    overlapped,
    ranked,
    suited,
    with_splits,
)
from .multistage import CLUSTER_WAIT, SplitK

#: Bits of a row of weights per step; bytes of the widest copy.
TERMS, WORD = 8 * STEP, 16
#: Bytes per microsecond of the L2 cache; microseconds to add up the sums of several blocks.
CACHED, JOIN = 5.4e6, 1.0
#: Maximum number of stages.
STAGES = 8
#: Elements of `a` per copy.
VECTORS = (8, 4, 2)
#: Bits per weight in the table's measurements.
ESTIMATED = 4
#: Maximum registers per thread, and those needed besides accumulators and weights, as reported by
#: ptxas.
MAX_REGISTERS, OTHER = 255, 64


def threads(tile: CtaTile) -> int:
    """Return the threads per block."""
    return 32 * tile.warps[1] * tile.slices


def factors_of(weights: PackedWeights, splits: int) -> int:
    """Return the bytes of shared memory for the scales of a row."""
    steps = ceil_div(ceil_div(weights.op.K, TERMS // weights.op.bits), splits)
    most = steps * weights.factor_bytes_of(TERMS // weights.op.bits) + 2 * WORD
    return ceil_div(min(weights.row_factors, most), WORD) * WORD + WORD


def resources(
    tile: CtaTile, weights: PackedWeights, splits: int = 1, cluster: int = 1
) -> Resources:
    """Return what a block takes, through whose stages its accumulators pass at the end.

    Args:
        tile: what it computes.
        weights: the weights.
        splits: blocks that share a tile.
        cluster: how many of them add up their sums as a cluster.
    """
    stage = 2 * tile.bm * tile.bk + tile.slices * tile.bn * STEP
    stages = tile.stages * stage + tile.bn * factors_of(weights, splits)
    sums = tile.slices * tile.bm * (tile.bn + 4) * 4
    return Resources(
        threads=threads(tile),
        ring=ceil_div(max(stages, sums), WORD) * WORD,
        inbox=inbox(tile.bm, tile.bn, cluster),
        resident=tile.resident,
    )


def registers_left(tile: CtaTile, bits: int) -> int:
    """Return a thread's registers besides accumulators, words of a step, and unpacked words."""
    own = min(REGISTERS // (threads(tile) * tile.resident), MAX_REGISTERS)
    eights = tile.bn // tile.warps[1] // 8
    return own - tile.bm * eights // 4 - 4 * eights - 16 // bits * (tile.bm // 8 + 4)


def fitted(
    tile: CtaTile, weights: PackedWeights, target: Target, splits: int = 1
) -> CtaTile | None:
    """Return a tile of the table with its K size and as many slices and stages as fit.

    Args:
        tile: of the table.
        weights: the weights.
        target: the GPU.
        splits: blocks that share a tile.

    Returns:
        The tile; None if not even a slice of two stages fits in shared memory, or a thread has too
        few registers.
    """
    slices = tile.slices
    while slices and registers_left(replace(tile, slices=slices), weights.op.bits) >= OTHER:
        terms = TERMS // weights.op.bits * slices
        steps = ceil_div(ceil_div(weights.op.K, terms), splits)
        for stages in range(min(tile.stages, max(2, steps + 1)), 1, -1):
            found = replace(tile, bk=terms, stages=stages, slices=slices)
            cluster = splits if target.has_clusters else 1
            if resources(found, weights, splits, cluster).fits(target):
                return found
        slices //= 2
    return None


# ── which tile ───────────────────────────────────────────────────────────────────────────────────


@record
class MixedInput:
    """A product with weights of a few bits.

    Attributes:
        gemm: the product; its `b` is `weights.words`.
        weights: the packed weights.
        products: one, or two whose weights take transposes and whose results the epilogue combines:
            `gemm` has the columns of both.
        left: what it leaves of its results for a product behind; None if nothing.
    """

    gemm: GemmArguments
    weights: PackedWeights
    products: int = 1
    left: Measured | None = None

    @property
    def problem(self) -> Problem:
        """The problem for which to choose a tile."""
        m, n, k = self.gemm.shape
        return Problem(m, n, k, traffic=2 * (m * k + m * n) + self.weights.nbytes)

    def configs(self, target: Target) -> Iterator[Config]:
        """Yield the tiles that fit on a GPU, with all sensible splits."""
        problem, weights = self.problem, self.weights
        least = (fitted(tile, weights, target, MAX_CLUSTER) for tile in MIXED_INPUT)
        fitting = [tile for tile in least if tile]
        if fitting:
            tiles, clusters = suited(fitting, problem), target.has_clusters
            for config in with_splits(tiles, problem, target, clusters=clusters):
                splits = config.splits
                tile = fitted(replace(config.tile, stages=STAGES), weights, target, splits)
                if tile is None:
                    continue
                if self.products > 1 and splits > 1 and not clusters:
                    continue  # partial sums are added up by a kernel of one product
                if not clusters or splits == 1 or self._start_together(tile, splits, target):
                    yield Config(tile, splits)

    def _start_together(self, tile: CtaTile, splits: int, target: Target) -> bool:
        """Whether no cluster waits for others to end."""
        clusters = tile.blocks(self.problem)
        return clusters <= clusters_of(splits, target) * tile.resident

    def choose(self, target: Target) -> TimedConfig | None:
        """Return the tile and splits with the lowest estimate; None if nothing fits."""
        found = ranked(self.configs(target), lambda config: self.expected(config, target))
        return found[0] if found else None

    def expected(self, config: Config, target: Target) -> float:
        """Return the estimate for a configuration in microseconds."""
        problem, weights = self.problem, self.weights
        tile, splits = config.tile, config.splits
        stages = ceil_div(ceil_div(problem.k, tile.bk), splits)
        blocks = tile.blocks(problem) * splits
        # L2 reads: all of A for each block's rows of weights, and these rows.
        of_stage = 2 * tile.bm * tile.bk + tile.slices * tile.bn * (STEP + weights.factor_bytes)
        cached = blocks * stages * of_stage / CACHED
        share = ESTIMATED / weights.op.bits
        work = BlockWork(
            blocks, stages, tile.resident, target.processors, cached, problem.traffic, share
        )
        joining = JOIN + CLUSTER_WAIT * splits if splits > 1 else 0.0
        return LAUNCH + overlapped(estimate(tile.cost, work), work, target) + joining

    # ── the recipe ───────────────────────────────────────────────────────────────────────────────

    def launches(self, epilogue: Epilogue, config: Config, target: Target) -> tuple[Launch, ...]:
        """Return the launches of the product, with `epilogue` applied to every result."""
        splits = config.splits
        if splits == 1:
            return (self._launch(self.gemm, epilogue, config, SplitK.WHOLE),)
        if target.has_clusters:
            return (self._launch(self.gemm, epilogue, config, SplitK.CLUSTER),)
        (m, n, _), sums = self.gemm.shape, Scratch(0)
        partial = replace(self.gemm, c=sums, bias=None)
        first = self._launch(partial, NO_EPILOGUE, config, SplitK.PARTIAL)
        needed = 4 * splits * m * n
        return replace(first, scratch=needed), reduction(self.gemm, epilogue, splits, sums)

    def _launch(
        self, gemm: GemmArguments, epilogue: Epilogue, config: Config, split: SplitK
    ) -> Launch:
        weights, tile, (m, n, k) = self.weights, config.tile, gemm.shape
        cluster = config.splits if split is SplitK.CLUSTER else 1
        block = resources(tile, weights, config.splits, cluster)
        pair = f", {self.products} products" if self.products > 1 else ""
        between = Between(left=self.left)
        return Launch(
            "gemm/mixed_input.cu",
            "mixed_input",
            grid=(tile.count(m, n), config.splits, 1),
            block=block.threads,
            args={
                **{"a": gemm.a.data, "w": weights.words, "scales": weights.factors, "c": gemm.c},
                **{"bias": gemm.bias, **epilogue.args},
                **{"m": m, "n": n, "tiles_m": ceil_div(m, tile.bm), **between.left_args},
            },
            types=(("T", gemm.dtype), *epilogue.aliases),
            constants=(
                *tile.constants("BM", "BN", "WARPS_N", "SLICES", "STAGES", "RESIDENT"),
                ("FACTORS_BYTES", factors_of(weights, config.splits)),
                *weights.constants,
                *(("K", k), ("BYTES", weights.bytes), ("BLOCKS", weights.blocks)),
                *(("EDGE", n % tile.bn != 0), ("VECTOR", gemm.a.vector)),
                *(("PRODUCTS", self.products), ("INBOX", block.ring), ("SPLIT", int(split))),
                ("VECTOR_C", gemm.vector_c(8)),
                *(*epilogue.flags(gemm.bias), *between.constants),
            ),
            code=f"{atom_of(gemm.dtype).code()}\n{epilogue.code}",
            shared=block.shared,
            cluster=(1, cluster, 1),
            note=f"{config}{pair}, {weights.op.bits} bits{between.note} {epilogue.title}".strip(),
        )
