"""GEMM of 16-bit floats with weights of a few bits, which are unpacked in registers (mma.sync).

Mixed-input GEMM with the weights as left operand of each instruction: `mixed_input.cu`. Sliced-K
within a CTA, and split-K across CTAs, as a cluster or by partial sums in the workspace.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...codegen.epilogue import NO_EPILOGUE, Epilogue
from ...recipe.launch import Launch
from ...recipe.operands import Scratch, ceil_div
from ...recipe.targets import Target
from ..atoms import atom_of
from ..packed_weights import STEP, PackedWeights
from ..problem import GemmArguments, Problem
from ..reduce_splits import reduction
from ..tables.mixed_input import MIXED_INPUT
from ..tile import (
    CACHE,
    LAUNCH,
    BlockWork,
    Config,
    CtaTile,
    TimedConfig,
    clusters_of,
    estimate,
    overlapped,
    ranked,
    suited,
    with_splits,
)
from .multistage import CLUSTER_WAIT, SHORT_WAIT, SplitK

#: Elements of `a` per copy.
VECTORS = (8, 4, 2)
#: Bits per weight in the table's measurements.
ESTIMATED = 4
#: Registers per multiprocessor, maximum per thread, and those needed besides accumulators
#: and weights, as reported by ptxas.
REGISTERS, MAX_REGISTERS, OTHER_REGISTERS = 65536, 255, 64


def threads(tile: CtaTile) -> int:
    """Return the threads per block."""
    return 32 * tile.warps[1] * tile.slices


def shared(tile: CtaTile, weights: PackedWeights) -> int:
    """Return the shared memory per block in bytes: for stages, and later for accumulators."""
    factors = ceil_div(tile.slices * tile.bn * weights.factor_bytes, 16) * 16
    stage = 2 * tile.bm * tile.bk + factors + tile.slices * tile.bn * STEP
    return max(tile.stages * stage, tile.slices * tile.bm * (tile.bn + 4) * 4)


def registers_left(tile: CtaTile, bits: int) -> int:
    """Return a thread's registers besides accumulators, words of a step, and unpacked words."""
    own = min(REGISTERS // (threads(tile) * tile.resident), MAX_REGISTERS)
    return own - tile.bm - 4 * (4 + 16 // bits)


def fitted(tile: CtaTile, weights: PackedWeights, target: Target) -> CtaTile | None:
    """Return a tile of the table with its K size and as many stages as fit.

    Args:
        tile: of the table.
        weights: the weights.
        target: the GPU.

    Returns:
        The tile; None if not even two stages fit in shared memory, or a thread has too
        few registers.
    """
    if registers_left(tile, weights.op.bits) < OTHER_REGISTERS:
        return None
    terms = STEP * 8 // weights.op.bits * tile.slices
    room = (target.shared + 1024) // tile.resident - 1024
    for stages in range(min(tile.stages, max(2, ceil_div(weights.op.K, terms))), 1, -1):
        found = replace(tile, bk=terms, stages=stages)
        if shared(found, weights) <= room:
            return found
    return None


# ── which tile ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class MixedInput:
    """A product with weights of a few bits.

    Attributes:
        gemm: the product; its `b` is `weights.words`.
        weights: the packed weights.
    """

    gemm: GemmArguments
    weights: PackedWeights

    @property
    def problem(self) -> Problem:
        """The problem for which to choose a tile."""
        m, n, k = self.gemm.shape
        return Problem(m, n, k, traffic=2 * (m * k + m * n) + self.weights.nbytes)

    def configs(self, target: Target) -> Iterator[Config]:
        """Yield the tiles that fit on a GPU, with all sensible splits."""
        problem, weights = self.problem, self.weights
        fitting = [found for tile in MIXED_INPUT if (found := fitted(tile, weights, target))]
        if fitting:
            tiles, clusters = suited(fitting, problem), target.has_clusters
            for config in with_splits(tiles, problem, target, clusters=clusters):
                tile, splits = config.tile, config.splits
                if not clusters or splits == 1 or self._start_together(tile, splits, target):
                    yield config

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
        of_stage = 2 * tile.bm * tile.bk + tile.bn * tile.slices * (STEP + weights.factor_bytes)
        cached = blocks * stages * of_stage / CACHE
        share = ESTIMATED / weights.op.bits
        work = BlockWork(
            blocks, stages, tile.resident, target.processors, cached, problem.traffic, share
        )
        joining = tile.cost.split if splits > 1 else 0.0
        if splits > 1 and target.has_clusters:
            joining += CLUSTER_WAIT * (splits - SHORT_WAIT)
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
        return Launch(
            "gemm/mixed_input.cu",
            "mixed_input",
            grid=(tile.count(m, n), config.splits, 1),
            block=threads(tile),
            args={
                **{"a": gemm.a.data, "w": weights.words, "scales": weights.factors, "c": gemm.c},
                **{"bias": gemm.bias, **epilogue.args},
                **{"m": m, "n": n, "tiles_m": ceil_div(m, tile.bm)},
            },
            types=(("T", gemm.dtype), *epilogue.aliases),
            constants=(
                *tile.constants("BM", "BN", "SLICES", "STAGES", "RESIDENT"),
                *weights.constants,
                *(("K", k), ("BYTES", weights.bytes), ("BLOCKS", weights.blocks)),
                *(("EDGE", n % tile.bn != 0), ("VECTOR", gemm.a.vector)),
                *(("SPLIT", int(split)), ("VECTOR_C", gemm.vector_c(8))),
                *epilogue.flags(gemm.bias),
            ),
            code=f"{atom_of(gemm.dtype).code()}\n{epilogue.code}",
            shared=shared(tile, weights),
            cluster=(1, config.splits if split is SplitK.CLUSTER else 1, 1),
            note=f"{config}, {weights.op.bits} bits {epilogue.title}".strip(),
        )
