"""How blocks and threads share recurrent layers whose steps are all in one launch."""

from __future__ import annotations

from ....runtime.base.record import record
from ..gemm.tile import CLUSTERED
from ..recipe.operands import ceil_div
from ..recipe.targets import Target

#: Blocks that share the weights of the state, and threads of a block.
MAX_BLOCKS, MAX_THREADS = 8, 512
#: Without tensor cores: words of four weights per thread, and sequences of a cluster.
MAX_WORDS, MAX_ROWS = 16, 8
#: On tensor cores: sequences of a cluster, registers of a block, of a thread, and of these those
#: that hold no weights.
MAX_TILED_ROWS, REGISTERS, MAX_REGISTERS, OTHER_REGISTERS = 64, 65536, 255, 72
#: Sequences of a cluster from which on tensor cores are faster.
FEWEST_TILED = 5


@record
class SequenceSplit:
    """How blocks and threads share a layer in the kernel for a whole sequence.

    Attributes:
        blocks: of a cluster, which share the units of the state.
        units: per block.
        rows: sequences of a cluster.
        slices: lanes that share the sums of a unit.
        chunks: words of four weights per lane and gate.
        threads: of a block.
    """

    blocks: int
    units: int
    rows: int
    slices: int
    chunks: int
    threads: int

    @property
    def width(self) -> int:
        """Floats of a state in shared memory."""
        return self.chunks * self.slices * 4


def sequence_split(
    gates: int, hidden: int, directions: int, batch: int, target: Target
) -> SequenceSplit | None:
    """Return the split with the fewest blocks, or None if the weights do not fit."""
    blocks = 1
    while True:
        units = ceil_div(hidden, blocks)
        able = [
            slices
            for slices in (1, 2, 4, 8, 16, 32)
            if slices * units <= MAX_THREADS and gates * ceil_div(hidden, slices * 4) <= MAX_WORDS
        ]
        if able:
            break
        blocks *= 2
        if blocks > MAX_BLOCKS or not target.has_clusters:
            return None
    rows = min(MAX_ROWS, _rows(batch, blocks, directions, target))
    # Few sequences wait for sums, for which more lanes are sooner; many have the lanes busy.
    slices = able[-1] if rows < 4 else able[0]
    threads = ceil_div(units * slices, 32) * 32
    return SequenceSplit(blocks, units, rows, slices, ceil_div(hidden, slices * 4), threads)


@record
class TiledSplit:
    """How blocks and warps share a layer on tensor cores.

    Attributes:
        blocks: of a cluster, which share the units of the state.
        units: per block, eight per warp.
        rows: sequences of a cluster, a multiple of eight.
        steps: of sixteen terms.
        low_shared: whether the second halves of weights are in shared memory.
        shared: bytes of shared memory.
    """

    blocks: int
    units: int
    rows: int
    steps: int
    low_shared: bool
    shared: int


def tiled_split(
    hidden: int, directions: int, batch: int, terms: int, target: Target
) -> TiledSplit | None:
    """Return the split with the fewest blocks, or None if weights do not fit or sequences are few.

    Args:
        hidden: units of the state.
        directions: that run side by side.
        batch: sequences.
        terms: 16-bit numbers that a weight is the sum of.
        target: the GPU.
    """
    steps, blocks = ceil_div(hidden, 16), 1
    while blocks <= (MAX_BLOCKS if target.has_clusters else 1):
        warps = ceil_div(ceil_div(hidden, 8), blocks)
        for low_shared in (False, True)[:terms]:
            registers = OTHER_REGISTERS + 8 * steps * (1 if low_shared else terms)
            low = warps * steps * 2 * 32 * 16 if low_shared else 0
            row = 2 * (16 * steps + 8) * 4 + warps * 32 + 4
            room = (target.shared - 16 - low) // (8 * row) * 8
            if registers > min(MAX_REGISTERS, REGISTERS // (32 * warps)) or room <= 0:
                continue
            if _rows(batch, blocks, directions, target) < FEWEST_TILED:
                return None
            # Blocks beside each other wait for one another's results less than one with more rows.
            beside = REGISTERS // (32 * warps * registers)
            rows = ceil_div(_rows(batch, blocks, directions, target, beside), 8) * 8
            rows = min(rows, MAX_TILED_ROWS, room)
            return TiledSplit(blocks, 8 * warps, rows, steps, low_shared, 16 + low + rows * row)
        blocks *= 2
    return None


def _rows(batch: int, blocks: int, directions: int, target: Target, beside: int = 1) -> int:
    """Return the sequences of a cluster of so many blocks if all clusters run at once.

    Args:
        batch: sequences of a direction.
        blocks: of a cluster.
        directions: that run side by side.
        target: the GPU.
        beside: blocks per multiprocessor.
    """
    resident = int(beside * target.processors * (CLUSTERED if blocks > 1 else 1))
    return ceil_div(batch, max(1, resident // (blocks * directions)))
