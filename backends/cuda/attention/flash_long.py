"""Flash attention of many queries in 16-bit floats on Hopper, as FlashAttention-3 computes it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32
from ..gemm.atoms import atom_of
from ..recipe.launch import Launch
from ..recipe.operands import ceil_div
from ..recipe.targets import Target
from .heads import AttentionTask

#: Query rows per group of warps.
GROUP = 64
#: Head sizes, and the largest one of which three groups' results fit in the registers.
SMALLEST, LARGEST, NARROW = 17, 256, 64
#: Keys of heads of NARROW elements from which this is not slower than `attention_wgmma.cu`: without
#: a mask that TMA brings, and with one of up to 16 bits, the same for all rows or not, as blocks
#: have room for wide boxes. And keys of larger heads up to which blocks may be few, as for more of
#: them `attention_mma.cu` splits keys.
LONG, LONG_OF_KEYS, LONG_OF_ROWS, SHORT = 2048, 1024, 512, 512
#: Maximum keys per step.
MAX_KEYS = 176
#: Registers of a thread of the producer, and of the others, by the number of their groups; and how
#: many of these are not for scores, weights and results.
REGISTERS = {2: (24, 240), 3: (32, 160)}
OTHER = 32
#: And how many more are not if the terms of a mask are in shared memory; and the factor of time
#: if steps do not begin with rows of keys.
OF_TERMS, WITHIN = 16, 1.15
#: Time of a step by groups, measured on an H100 with heads of 64 elements; larger ones have two.
STEP_OF = {2: 0.76, 3: 1.0}
#: Costs in keys: of a step, of a tile of rows, and of one whose queries come late for want of room.
OF_STEP, OF_TILE, LATE = 27, 150, 128
#: Factor by the width of the boxes that a mask comes in, 0 for none. Measured on an H100 with 128
#: heads of 1,024 queries and keys, and with 96 of 512.
NARROW_BOXES = {0: 1.0, 128: 1.0, 64: 1.07, 32: 1.15}
#: Heads whose keys and values are read at the same time: bytes that stay in the cache; a number
#: that memory can feed, as so many blocks share them; and tiles above which any order will do.
CACHED, FED, MANY_TILES = 24 << 20, 40, 50_000


def suits_long(task: AttentionTask, target: Target) -> bool:
    """Return whether `attention_long.cu` supports these heads, and is not the slower kernel.

    `attention_mma.cu` takes 1.05 to 3.7 times as long; measured on an H100 with 8 to 1024 blocks,
    heads of 32 to 256 elements, and 80 to 4096 keys. With few blocks of narrow heads it takes 0.75
    to 0.9 of the time.
    """
    batch, heads, length, size = task.q.dims
    sizes = (size, task.v.dims[3])
    if min(sizes) < SMALLEST or max(sizes) > LARGEST or length <= GROUP:
        return False
    share = ceil_div(length, GROUP * min(REGISTERS)) * heads * batch / target.processors
    if sizes == (NARROW, NARROW):
        return task.seen >= _longest(task) and share >= 0.9
    if max(sizes) < NARROW:
        return share >= 0.36
    return task.seen <= SHORT or share >= 0.45


def _longest(task: AttentionTask) -> int:
    """Return the keys of heads of NARROW elements from which blocks process many rows."""
    if task.mask is None or task.mask.dtype.itemsize > 2 or not task.mask_width(MAX_KEYS):
        return LONG
    return LONG_OF_ROWS if task.mask_steps[2] else LONG_OF_KEYS


@record
class LongShape:
    """How a block of `attention_long.cu` divides its work.

    Attributes:
        groups: of warps.
        places: of a group's queries in shared memory.
        keys: of a step.
        stages: steps whose keys and values are in shared memory.
        tiles: whether an aligned mask is there, too, or the terms of one; else threads read it.
    """

    groups: int
    places: int
    keys: int
    stages: int
    tiles: bool = True

    @property
    def rows(self) -> int:
        """Queries of a block at a time."""
        return self.groups * GROUP

    def width(self, task: AttentionTask) -> int:
        """Return the width of the boxes of an attention's mask, 0 if threads read it."""
        return task.mask_width(self.keys) if self.tiles else 0

    def of_mask(self, task: AttentionTask) -> int:
        """Return the bytes of a step of an attention's mask in shared memory."""
        return task.mask_bytes(self.keys, self.width(task), self.rows)

    def of_terms(self, task: AttentionTask) -> int:
        """Return the bytes of the terms of an attention's mask in shared memory."""
        return task.term_bytes(self.rows) if self.tiles else 0

    def shared(self, size: int, size_v: int, of_mask: int = 0, of_terms: int = 0) -> int:
        """Return the bytes of shared memory for heads of these sizes.

        Args:
            size: of a head of keys.
            size_v: of a head of values.
            of_mask: bytes of a step of the mask.
            of_terms: bytes of its terms.
        """
        slabs_k, slabs_v = ceil_div(size, 64), ceil_div(size_v, 64)
        queries = self.places * max(slabs_k, slabs_v) * self.rows * 128
        tiles = self.stages * ((slabs_k + slabs_v) * self.keys * 128 + of_mask)
        barriers = 2 * self.groups * self.places + 4 * self.stages + self.groups
        return queries + tiles + 8 * barriers + of_terms

    def fits(
        self, size: int, size_v: int, target: Target, of_mask: int = 0, of_terms: int = 0
    ) -> bool:
        """Return whether registers and shared memory suffice; see `shared`."""
        other = OTHER + (OF_TERMS if of_terms else 0)
        registers = ceil_div(size_v, 64) * 32 + self.keys * 3 // 4 + other
        enough = registers <= REGISTERS[self.groups][1]
        return enough and self.shared(size, size_v, of_mask, of_terms) <= target.shared

    def steps(self, task: AttentionTask) -> list[int]:
        """Return the steps of keys of each tile of rows."""
        length, total = task.q.dims[2], task.total
        tiles = range(ceil_div(length, self.rows))
        if not task.op.is_causal or length != total:
            return [ceil_div(total, self.keys) for _ in tiles]
        return [ceil_div(min((tile + 1) * self.rows, total), self.keys) for tile in tiles]

    def cost(self, task: AttentionTask, target: Target) -> float:
        """Return the time that a block takes, in units that only other shapes share."""
        steps, pairs = self.steps(task), task.q.dims[0] * task.q.dims[1]
        of_tile = OF_TILE + (2 - self.places) * LATE
        costs = [one * (self.keys + OF_STEP) + of_tile for one in steps]
        if min(steps) == max(steps):
            most = ceil_div(len(steps) * pairs, target.processors) * costs[0]
        else:
            most = max(max(costs), sum(costs) * pairs / target.processors)
        inner = 1 if task.terms is None or not self.tiles else task.terms.inner[1]
        within = WITHIN if self.keys % inner else 1.0
        return most * STEP_OF[self.groups] * NARROW_BOXES[self.width(task)] * within


def _shape(task: AttentionTask, target: Target) -> LongShape:
    sizes = (task.q.dims[3], task.v.dims[3])
    shapes = (
        LongShape(groups, places, keys, min(2, ceil_div(task.total, keys)), tiles)
        for tiles in (True, False)
        for groups in REGISTERS
        for keys in range(64, MAX_KEYS + 1, 16)
        for places in (1, 2)
        if groups == min(REGISTERS) or max(sizes) <= NARROW
    )
    fitting = (
        shape
        for shape in shapes
        if shape.fits(*sizes, target, shape.of_mask(task), shape.of_terms(task))
    )
    return min(fitting, key=lambda shape: (not shape.tiles, shape.cost(task, target)))


def _patch(task: AttentionTask, steps: Sequence[int], keys: int, target: Target) -> int:
    """Return of how many heads blocks process the rows at a time; see `Work` of the kernel."""
    batch, heads, _, size = task.q.dims
    pairs = batch * heads
    if min(steps) == max(steps):
        return 1
    cached = min(max(1, CACHED // (2 * task.total * (size + task.v.dims[3]))), pairs)
    if len(steps) * pairs > MANY_TILES:
        return cached
    maximum = max(cached, min(FED, pairs))
    return most_even(tuple(steps), OF_TILE / keys, pairs, maximum, target.processors)


@lru_cache(maxsize=64)
def most_even(steps: tuple[int, ...], of_tile: float, pairs: int, maximum: int, blocks: int) -> int:
    """Return the number of heads with which the block that gets most gets least.

    Args:
        steps: of each tile of rows.
        of_tile: what a tile costs besides, in steps.
        pairs: heads of all samples.
        maximum: of the result.
        blocks: that share the tiles of all heads.
    """
    tiles = len(steps)
    costs = np.array(steps[::-1]) + of_tile
    numbers = np.arange(tiles * pairs)
    rounds, places = np.divmod(numbers, blocks)
    block = np.where(rounds % 2, blocks - 1 - places, places)

    def most(patch: int) -> float:
        first = numbers // (tiles * patch) * patch
        rest = numbers - first * tiles
        of_item = costs[rest // np.minimum(patch, pairs - first)]
        return float(np.bincount(block, of_item).max())

    return min(range(1, maximum + 1), key=most)


def long(task: AttentionTask, target: Target) -> Launch:
    """Return the launch of `attention_long.cu`, which `suits_long`."""
    batch, heads, length, size = task.q.dims
    size_v, dtype, mask = task.v.dims[3], task.q.tensor.dtype, task.mask
    shape = _shape(task, target)
    groups, keys, pairs, width = shape.groups, shape.keys, batch * heads, shape.width(task)
    steps = shape.steps(task)
    few, many = REGISTERS[groups]
    return Launch(
        "attention/attention_long.cu",
        "attention_long",
        grid=(min(len(steps) * pairs, target.processors), 1, 1),
        block=128 * groups + 128,
        args={
            **{"q": task.q.map(GROUP), "k": task.k.map(keys), "v": task.v.map(keys)},
            **{"y": task.y.map(16), "mask_tiles": task.mask_map(width, shape.rows)},
            **{**task.masks, "lengths": task.lengths, **task.numbers},
            "work": {
                "tiles": len(steps),
                "pairs": pairs,
                "patch": _patch(task, steps, keys, target),
            },
        },
        types=(("T", dtype), ("M", float32 if mask is None else mask.dtype)),
        constants=(
            *(*task.constants, ("SIZE_K", size), ("SIZE_V", size_v)),
            *(("GROUPS", groups), ("PLACES", shape.places), ("KEYS", keys)),
            *(("STAGES", shape.stages), ("FEW", few), ("MANY", many)),
            *(("MASK_WIDTH", width), ("MASK_HEIGHT", task.mask_height(shape.rows))),
            ("OUTER_KEYS", task.outer_keys if shape.tiles else 0),
        ),
        code=atom_of(dtype).code(keys, across=64, a_in_registers=True, begins=True),
        shared=shape.shared(size, size_v, shape.of_mask(task), shape.of_terms(task)),
        note=f"{shape.rows} rows, {keys} keys, {pairs} x {length} x {task.total} x {size}",
        pitched=task.pitched,
    )
