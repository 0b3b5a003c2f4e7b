"""Flash attention of 16-bit floats on Hopper (TMA loads, wgmma): blocks of a few rows."""

from __future__ import annotations

from dataclasses import replace

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32
from ..gemm.atoms import atom_of
from ..recipe.launch import Launch
from ..recipe.operands import ceil_div
from ..recipe.targets import Target
from .flash_long import GROUP, NARROW_BOXES, long, suits_long
from .heads import AttentionTask

#: Head size of `attention_wgmma.cu`, each block of which processes one group of rows; and the
#: minimum of those that are padded to it with zeros.
SIZE, MIN_SIZE = 64, 24
#: Maximum keys per tile, limited by registers for scores.
MAX_KEYS = 208
#: Fixed cost of a step, in keys; and where several blocks of a multiprocessor hide it.
OF_STEP, HIDDEN_STEP = 24, 4
#: Blocks per multiprocessor that hide steps if as many run at a time, and the factor if fewer do.
MANY, APART = 3, 1.14
#: The share of places for blocks that must be taken where blocks process several tiles of rows. On
#: an H200, 384 heads of 197 queries take 20 % less time with four tiles per block, 192 such heads
#: with two 17 %, 512 causal heads of 128 queries 10 % (97 % of the places); but 192 heads of 197
#: with four 11 % more (48 %), and 512 with four 7 % (two waves).
TAKEN = 0.9
#: Warpgroups that share the keys of a block, at most, where there is at most one block for each
#: multiprocessor; keys of each, at least; and bytes of shared memory in which one leaves results.
#: Two are faster than three with 128 keys on an H200. Of 197 to 240 keys three take 0.7 to 3 % off
#: transformers 384 to 1024 columns wide, of 192 columns (three heads) they take 2 % more.
MOST_GROUPS, KEYS_OF_GROUP, JOINED = 3, 64, 128 * 36 * 4
KEYS_OF_THREE = range(3 * KEYS_OF_GROUP, 257)
#: Maximum number of keys for few blocks; and for blocks of which more than half the rows are idle,
#: and their minimum number of queries.
MAX_SEEN, MAX_SEEN_IDLE, MIN_ROWS = 512, 256, 9


def on_hopper(task: AttentionTask, target: Target) -> Launch | None:
    """Return the launch with wgmma, or None if it does not apply."""
    operands = (task.q, task.k, task.v, task.y)
    able = (
        target.has_wgmma and all(x.vector(8) == 8 for x in operands) and task.past == (None, None)
    )
    if able and _sees_all_at_once(task, target):
        return _grouped(task, target)
    if able and suits_long(task, target):
        return long(task, target)
    if able and task.lengths is None and _suits_groups(task, target):
        return _grouped(task, target)
    return None


def _sees_all_at_once(task: AttentionTask, target: Target) -> bool:
    """Whether blocks of padded heads see all keys in one step, and several tiles of rows in turn.

    Nothing hides a key. On an H200 384 heads of 32 elements with 196 queries and keys take 15 us
    then, with `attention_long.cu` 21.5, with `attention_mma.cu` 24.
    """
    batch, heads, length, size = task.q.dims
    sizes = size, task.v.dims[3]
    if max(sizes) >= SIZE or min(sizes) < MIN_SIZE or task.total > MAX_KEYS or length <= GROUP:
        return False
    hides = task.op.is_causal or max(task.op.left_window_size, task.op.right_window_size) >= 0
    if hides or task.mask is not None or task.lengths is not None:
        return False
    if ceil_div(length, GROUP) * heads * batch < MANY * target.processors:
        return False
    return _blocks(task, _keys_of_step(task, target), target).rounds > 1


def _suits_groups(task: AttentionTask, target: Target) -> bool:
    """Whether `attention_wgmma.cu` supports these heads, and is not the slower kernel.

    With few blocks it takes 0.5 to 0.8 of the time of `attention_mma.cu`; but it reads masks of
    rows late, and cannot split keys. Measured on an H200 with 12 to 96 blocks and 49 to 512 keys;
    and with 4 to 1536 blocks of 9 to 32 queries: 0.3 to 0.98 of the time with 12 to 256 keys, but
    1.3 to 1.5 times with 512 keys and up to 16 queries.
    """
    batch, heads, length, size = task.q.dims
    sizes = size, task.v.dims[3]
    if max(sizes) > SIZE or min(sizes) < MIN_SIZE or length < MIN_ROWS:
        return False
    blocks, is_idle = ceil_div(length, GROUP) * heads * batch, length <= GROUP // 2
    few_suit = not task.is_mask_of_rows and task.seen <= (MAX_SEEN_IDLE if is_idle else MAX_SEEN)
    few_suit |= blocks <= target.processors and _groups(task) > 1
    if min(sizes) < SIZE:
        return few_suit and blocks <= target.processors
    return few_suit or (not is_idle and blocks >= 0.9 * target.processors)


@record
class Blocks:
    """What a block of `attention_wgmma.cu` processes.

    Attributes:
        keys: of a step.
        stages: steps whose keys are in shared memory.
        groups: warpgroups; of several, each has the keys of one step.
        tiles: tiles of `GROUP` rows of a head.
        rounds: of these a block has so many, at most.
    """

    keys: int
    stages: int
    tiles: int
    groups: int = 1
    rounds: int = 1

    @property
    def of_head(self) -> int:
        """Blocks that a head has."""
        return ceil_div(self.tiles, self.rounds)

    def shared(self, task: AttentionTask) -> int:
        """Return the bytes of shared memory of a block."""
        of_mask = task.mask_bytes(self.keys, _mask_width(task, self.keys), GROUP)
        of_queries = GROUP * SIZE * 2 if self.rounds == 1 else 2 * (GROUP * SIZE * 2 + 8)
        of_step = self.keys * SIZE * 4 + of_mask + 16
        beside = max(self.groups * self.keys * 4, task.term_bytes(GROUP))
        shared = of_queries + self.stages * of_step + beside
        return max(shared, GROUP * SIZE * 2 + (self.groups - 1) * JOINED)

    def resident(self, task: AttentionTask, target: Target) -> int:
        """Return how many fit on a multiprocessor."""
        if self.groups > 1:
            return 1
        fitting = target.resident(self.shared(task))
        return min(fitting, _blocks_with_registers(task, self.keys))


def _grouped(task: AttentionTask, target: Target) -> Launch:
    batch, heads, length, size = task.q.dims
    blocks = _blocks(task, _keys_of_step(task, target), target)
    mask, dtype, width = task.mask, task.q.tensor.dtype, _mask_width(task, blocks.keys)
    # What flags add takes the FMA that scales a score; only those that are tested leave it out.
    raw = task.is_raw and (mask is None or width > 0)
    in_place = task.is_mask_of_rows and width == 0
    return Launch(
        "attention/attention_wgmma.cu",
        "attention_wgmma",
        grid=(blocks.of_head * heads * batch, 1, 1),
        block=128 * blocks.groups,
        args={
            **{"q": task.q.map(GROUP), "k": task.k.map(blocks.keys)},
            **{"v": task.v.map(blocks.keys), "y": task.y.map(GROUP)},
            "mask_tiles": task.mask_map(width, GROUP),
            **{**task.masks, **task.numbers, "tiles": blocks.tiles},
        },
        types=(("T", dtype), ("M", float32 if mask is None else mask.dtype)),
        constants=(
            *task.constants_with(RAW=raw, MASK_PAIRS=task.is_mask_of_pairs and in_place),
            *(("KEYS", blocks.keys), ("STAGES", blocks.stages), ("GROUPS", blocks.groups)),
            *(("ROUNDS", blocks.rounds), ("RESIDENT", blocks.resident(task, target))),
            *(("MASK_WIDTH", width), ("MASK_HEIGHT", task.mask_height(GROUP))),
            ("OUTER_KEYS", task.outer_keys),
        ),
        code=atom_of(dtype).code(blocks.keys, across=SIZE, a_in_registers=True, begins=True),
        shared=blocks.shared(task),
        note=f"{blocks.keys} keys, {batch * heads} x {length} x {task.total} x {size}",
        pitched=task.pitched,
    )


def _keys_of_step(task: AttentionTask, target: Target) -> int:
    """Return how many keys blocks of `attention_wgmma.cu` process at a time.

    Few blocks wait for each step, so that large steps are best. Of many blocks others go on; what
    counts is how many keys are processed, those behind the last one too, and that at least three
    blocks run at a time. Measured on an H100 with 240 to 1920 blocks, and 50 to 577 keys.
    """
    batch, heads, length, _ = task.q.dims
    tiles = ceil_div(length, GROUP)
    blocks, is_masked = tiles * heads * batch, _mask_width(task, MAX_KEYS) > 0
    is_many = blocks > MANY * target.processors
    triangle = is_many and task.op.is_causal and length == task.total

    def cost(keys: int) -> tuple[float, int]:
        narrow = NARROW_BOXES[_mask_width(task, keys)]
        fitting = _blocks_of(task, keys).resident(task, target)
        ends = (min((i + 1) * GROUP, task.total) for i in range(tiles))
        steps = sum(ceil_div(end, keys) for end in ends) / tiles
        steps = steps if triangle else ceil_div(task.total, keys)
        if not is_many:
            rounds = ceil_div(blocks, target.processors * fitting) if is_masked else 1
            return rounds * steps * (keys + OF_STEP) * narrow, -keys
        apart = APART if fitting < MANY else 1.0
        return steps * (keys + HIDDEN_STEP) * apart * narrow, -keys

    return min(range(64, MAX_KEYS + 1, 16), key=cost)


def _blocks_of(task: AttentionTask, keys: int) -> Blocks:
    """Return blocks of one tile of rows each."""
    length, stages = task.q.dims[2], min(2, ceil_div(task.total, keys))
    return Blocks(keys, stages, ceil_div(length, GROUP))


def _blocks(task: AttentionTask, keys: int, target: Target) -> Blocks:
    """Return what blocks of `attention_wgmma.cu` process, many of them in steps of so many keys.

    If all keys fit in shared memory, beside those of as many blocks, a block may process several
    tiles of rows of a head. Keys are loaded less often and fewer blocks begin, but all must run at
    once, and take nearly all places.
    """
    batch, heads, _, _ = task.q.dims
    simple = _blocks_of(task, keys)
    has_window = max(task.op.left_window_size, task.op.right_window_size) >= 0
    if has_window or _mask_width(task, keys):
        return simple
    if simple.tiles * heads * batch <= target.processors:
        return _sharing_keys(task, simple)
    fitting = simple.resident(task, target)
    if simple.stages * keys < task.total:
        return simple
    if replace(simple, rounds=2).resident(task, target) < fitting:
        return simple
    places = fitting * target.processors

    def is_full(blocks: Blocks) -> bool:
        return TAKEN * places <= blocks.of_head * heads * batch <= places

    ways = (ceil_div(simple.tiles, of_head) for of_head in range(1, simple.tiles))
    return next(filter(is_full, (replace(simple, rounds=rounds) for rounds in ways)), simple)


def _groups(task: AttentionTask) -> int:
    """Return how many warpgroups share the keys of few blocks."""
    op, fewest = task.op, 3 if task.total in KEYS_OF_THREE else 2
    groups = max(fewest, ceil_div(task.total, MAX_KEYS))
    hides = op.is_causal or max(op.left_window_size, op.right_window_size) >= 0
    if hides or task.is_mask_of_rows or task.q.dims[2] <= GROUP // 2:
        return 1
    enough = groups <= MOST_GROUPS and task.total >= groups * KEYS_OF_GROUP
    return groups if enough else 1


def _sharing_keys(task: AttentionTask, blocks: Blocks) -> Blocks:
    """Return few blocks, whose warpgroups share the keys of all rows if that pays."""
    groups = _groups(task)
    if groups == 1:
        return blocks
    keys = ceil_div(ceil_div(task.total, groups), 16) * 16
    return Blocks(keys, groups, blocks.tiles, groups)


def _mask_width(task: AttentionTask, keys: int) -> int:
    """Return the width of boxes of a mask of rows; any other one is staged by threads."""
    return task.mask_width(keys) if task.mask_steps[2] else 0


def _blocks_with_registers(task: AttentionTask, keys: int) -> int:
    """Return how many blocks of `attention_wgmma.cu` fit in a multiprocessor's registers."""
    if keys <= 128:
        return 4
    hides = task.op.is_causal or max(task.op.left_window_size, task.op.right_window_size) >= 0
    more = hides or task.mask_steps[2] != 0 or task.op.softcap > 0
    return 2 if more and keys > 160 else 3
