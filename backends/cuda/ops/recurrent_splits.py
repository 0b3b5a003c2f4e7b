"""How blocks and threads share recurrent layers whose steps are all in one launch."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from ....runtime.base.record import record
from ..gemm.tile import CLUSTERED
from ..recipe.operands import ceil_div
from ..recipe.targets import Target, resident_with

#: Blocks that share the weights of the state, and threads of a block.
MAX_BLOCKS, MAX_THREADS = 8, 512
#: Without tensor cores: words of four weights per thread, and sequences of a cluster.
MAX_WORDS, MAX_ROWS = 16, 8
#: On tensor cores: sequences of a cluster, registers of a thread, and of these those that hold no
#: weights.
MAX_TILED_ROWS, MAX_REGISTERS, OTHER_REGISTERS = 64, 255, 72
#: Microseconds of a step as measured on an H200: without tensor cores, and more per sequence; on
#: tensor cores, and more per eight sequences; with a separate product, and more per byte of
#: weights, per operation, and per unit of a sequence, of which sums are stored and read.
UNTILED, OF_ROW = 0.8, 0.3
TILED, OF_TILE = 1.2, 1.6
MULTIPLIED, OF_BYTE, OF_OPERATION, OF_UNIT = 5.5, 1 / 5.5e6, 1 / 3e8, 2e-5
#: With weights in shared memory, likewise: of a chunk of sequences; more per byte of shared memory,
#: per byte of a chunk's states, per instruction of the tensor cores, and per cell of a thread.
RESIDENT = 1.0
OF_SHARED, OF_STATE, OF_MMA, OF_CELL = 3.8e-6, 2.8e-5, 0.0055, 0.73
#: States of fewer units are faster in registers, as far as measured (96).
MIN_RESIDENT = 129
#: Numbers of warps there that share slices of states, or rows of weights.
WARPS = (1, 2, 4, 8, 16)


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
        if registers <= MAX_REGISTERS and resident_with(registers, 32 * warps):
            break
        blocks *= 2
        if blocks > MAX_BLOCKS or not target.has_clusters:
            return None
    # Blocks beside each other wait for one another's results less than one with more rows.
    beside = resident_with(registers, 32 * warps)
    row = 2 * (16 * steps + 8) * 4 + warps * 32 + 4
    rows = ceil_div(_rows(batch, blocks, directions, target, beside), 8) * 8
    rows = min(rows, MAX_TILED_ROWS, (target.shared - 16) // (8 * row) * 8)
    waves = _waves(ceil_div(batch, rows) * directions, blocks, target, beside)
    time = waves * (TILED + OF_TILE * rows / 8)
    return TiledSplit(blocks, 8 * warps, rows, steps, 16 + rows * row, time)


@record
class ResidentSplit:
    """How blocks and warps share a layer whose weights lie in shared memory.

    Attributes:
        size: bytes of a weight.
        gates: of a unit.
        blocks: of a group, which share the units of the state.
        units: per block.
        rows: sequences of a chunk, a multiple of eight.
        chunks: of a group, whose steps are computed in turn.
        k_warps: slices of a state that are multiplied side by side.
        m_warps: warps of a slice, which share the rows of weights.
        steps: of 32 bytes of a slice, an even number.
        buffers: of sums: with 2, warps wait for one another once a step.
    """

    size: int
    gates: int
    blocks: int
    units: int
    rows: int
    chunks: int
    k_warps: int
    m_warps: int
    steps: int
    buffers: int = 2

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.k_warps * self.m_warps

    @property
    def width(self) -> int:
        """Elements of a state in memory."""
        return 32 // self.size * self.k_warps * self.steps

    @property
    def tiles(self) -> int:
        """Tiles of sixteen rows of weights."""
        return ceil_div(self.gates * self.units, 16)

    @property
    def multiplied(self) -> int:
        """Tiles of sixteen rows and eight sequences that a warp multiplies at a time."""
        return ceil_div(self.tiles, self.m_warps) * self.rows // 8

    @property
    def cells(self) -> int:
        """Units of sequences that a thread computes at a time."""
        return ceil_div(self.units * self.rows, self.threads)

    @property
    def weights(self) -> int:
        """Bytes of the weights of a block."""
        return 16 * self.tiles * self.width * self.size

    @property
    def state(self) -> int:
        """Bytes of the states of a chunk."""
        return self.rows * (self.width * self.size + 16)

    @property
    def sums(self) -> int:
        """Bytes of the sums of a chunk."""
        columns = (self.rows + 23) // 32 * 32 + 8
        return 4 * self.k_warps * 16 * self.tiles * columns

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return (
            self.weights
            + self.state
            + self.buffers * self.sums
            + 8 * self.chunks * self.cells * self.threads
        )

    @property
    def microseconds(self) -> float:
        """Microseconds of a step, estimated."""
        products = 3.5 if self.size == 4 else 1
        busy = ceil_div(self.k_warps * self.m_warps, 4) * self.multiplied
        return self.chunks * (
            RESIDENT
            + OF_SHARED * (self.weights + self.m_warps * self.state + self.sums)
            + OF_STATE * self.state
            + OF_MMA * products * self.steps * max(5, busy)
            + OF_CELL * self.cells
        )


def resident_split(
    gates: int, hidden: int, directions: int, batch: int, size: int, target: Target
) -> ResidentSplit | None:
    """Return the fastest split whose blocks run all at once, or None if the weights do not fit.

    Args:
        gates: of a unit.
        hidden: units of the state.
        directions: that run side by side.
        batch: sequences.
        size: bytes of a weight.
        target: the GPU.
    """
    found: list[ResidentSplit] = []
    if hidden < MIN_RESIDENT:
        return None
    blocks = 0
    for units in range(4, hidden + 4, 4):
        fewer = ceil_div(hidden, units) != blocks
        blocks = ceil_div(hidden, units)
        groups = target.processors // (blocks * directions)
        if not fewer or groups == 0 or gates * units * hidden * size > target.shared:
            continue
        most = ceil_div(ceil_div(batch, groups), 8)  # tiles of sequences of a group
        for tiles, k_warps, m_warps in product(range(1, min(most, 8) + 1), WARPS, WARPS):
            chunks = ceil_div(most, tiles)
            steps = 2 * ceil_div(hidden * size, 64 * k_warps)
            split = ResidentSplit(
                *(size, gates, blocks, units, 8 * tiles, chunks, k_warps, m_warps, steps)
            )
            if split.shared > target.shared:
                split = replace(split, buffers=1)
            fits = split.threads <= MAX_THREADS and split.multiplied <= (8 if size == 4 else 16)
            if fits and m_warps <= split.tiles and split.shared <= target.shared:
                found.append(split)
    return min(found, key=lambda split: split.microseconds, default=None)


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
