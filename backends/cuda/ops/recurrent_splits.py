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
#: Microseconds of a step as measured on an H200: without tensor cores, and more per sequence; on
#: tensor cores, and more per eight sequences; with a separate product, and more per byte of
#: weights, per operation, and per unit of a sequence, of which sums are stored and read.
UNTILED, OF_ROW = 0.8, 0.3
TILED, OF_TILE = 1.2, 1.6
MULTIPLIED, OF_BYTE, OF_OPERATION, OF_UNIT = 5.5, 1 / 5.5e6, 1 / 3e8, 2e-5


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
        microseconds: of a step, estimated.
    """

    blocks: int
    units: int
    rows: int
    slices: int
    chunks: int
    threads: int
    microseconds: float

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
    waves = _waves(ceil_div(batch, rows) * directions, blocks, target)
    chunks = ceil_div(hidden, slices * 4)
    time = waves * (UNTILED + OF_ROW * rows)
    return SequenceSplit(blocks, units, rows, slices, chunks, threads, time)


@record
class TiledSplit:
    """How blocks and warps share a layer on tensor cores.

    Attributes:
        blocks: of a cluster, which share the units of the state.
        units: per block, eight per warp.
        rows: sequences of a cluster, a multiple of eight.
        steps: of sixteen terms.
        shared: bytes of shared memory.
        microseconds: of a step, estimated.
    """

    blocks: int
    units: int
    rows: int
    steps: int
    shared: int
    microseconds: float


def tiled_split(
    hidden: int, directions: int, batch: int, terms: int, target: Target
) -> TiledSplit | None:
    """Return the split with the fewest blocks, or None if the weights do not fit.

    Args:
        hidden: units of the state.
        directions: that run side by side.
        batch: sequences.
        terms: 16-bit numbers that a weight is the sum of.
        target: the GPU.
    """
    steps, blocks = ceil_div(hidden, 16), 1
    registers = OTHER_REGISTERS + 8 * steps * terms
    while True:
        warps = ceil_div(ceil_div(hidden, 8), blocks)
        if registers <= min(MAX_REGISTERS, REGISTERS // (32 * warps)):
            break
        blocks *= 2
        if blocks > MAX_BLOCKS or not target.has_clusters:
            return None
    # Blocks beside each other wait for one another's results less than one with more rows.
    beside = REGISTERS // (32 * warps * registers)
    row = 2 * (16 * steps + 8) * 4 + warps * 32 + 4
    rows = ceil_div(_rows(batch, blocks, directions, target, beside), 8) * 8
    rows = min(rows, MAX_TILED_ROWS, (target.shared - 16) // (8 * row) * 8)
    waves = _waves(ceil_div(batch, rows) * directions, blocks, target, beside)
    time = waves * (TILED + OF_TILE * rows / 8)
    return TiledSplit(blocks, 8 * warps, rows, steps, 16 + rows * row, time)


def multiplied(hidden: int, width: int, directions: int, batch: int, size: int) -> float:
    """Return the microseconds of a step whose states are multiplied by another kernel, estimated.

    Args:
        hidden: units of the state.
        width: rows of weights of a direction.
        directions: that run side by side.
        batch: sequences.
        size: bytes of a weight; of four bytes, three products are added up.
    """
    weights = directions * width * hidden
    operations = 2 * weights * batch * (3 if size == 4 else 1)
    stored = OF_UNIT * directions * batch * hidden
    return MULTIPLIED + OF_BYTE * weights * size + OF_OPERATION * operations + stored


def _resident(blocks: int, target: Target, beside: int = 1) -> int:
    """Return how many blocks of such clusters run at once, of which `beside` share a processor."""
    return int(beside * target.processors * (CLUSTERED if blocks > 1 else 1))


def _rows(batch: int, blocks: int, directions: int, target: Target, beside: int = 1) -> int:
    """Return the sequences of a cluster of so many blocks if all clusters run at once."""
    return ceil_div(batch, max(1, _resident(blocks, target, beside) // (blocks * directions)))


def _waves(clusters: int, blocks: int, target: Target, beside: int = 1) -> float:
    """Return how often as many clusters run as fit at once."""
    return max(1.0, clusters * blocks / _resident(blocks, target, beside))
