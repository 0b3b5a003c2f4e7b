"""Flash attention of float32 in two kernels: keys and values are cut into halves once per head."""

from __future__ import annotations

from ....runtime.ir.dtypes import float32
from ..codegen.epilogue import in_halves_code
from ..gemm.atoms import F16X3
from ..recipe.launch import Launch
from ..recipe.operands import Scratch, ceil_div
from ..recipe.targets import Target
from .heads import AttentionTask

#: Keys per step; rows of queries of a warp group; and columns of heads, padded to a multiple.
KEYS, ROWS, SLAB = 64, 64, 64
#: Warp groups per block, and blocks per multiprocessor, by slabs of a head. On an H100, two warp
#: groups per block, or 32 keys, take 9 to 21 % longer with heads of 64.
SHAPES = {1: (1, 2), 2: (2, 1)}
#: Maximum number of tiles of keys in shared memory.
MAX_STAGES = 4
#: Minimum number of warp groups that read the same keys. Unless every block cuts keys itself,
#: attention of 300 to 1500 queries takes 12 to 44 % less time on an H100, of 197 queries 11 % more.
MIN_READERS = 5


def suits(task: AttentionTask) -> bool:
    """Whether keys are read so often that a kernel of their own should cut them."""
    return ceil_div(task.q.dims[2], ROWS) * task.sharing >= MIN_READERS


def on_cut_keys(task: AttentionTask, target: Target) -> tuple[Launch, Launch]:
    """Return the launches of an attention with heads of up to two slabs on Hopper."""
    batch, heads, length, size = task.q.dims
    mask, kv_heads = task.mask, task.k.dims[1]
    slabs = [ceil_div(x, SLAB) for x in (size, task.v.dims[3])]
    size_k, size_v = (n * SLAB for n in slabs)
    groups, resident = SHAPES[max(slabs)]
    rows, producers = groups * ROWS, 32 if groups == 1 else 128
    tile = 4 * KEYS * (size_k + size_v + 2)  # keys, values, and the inverses of their scales
    tiles, tiles_of_keys = ceil_div(length, rows), ceil_div(task.total, KEYS)
    args = {**task.operands, **task.strides, **task.numbers, "cut": Scratch(0)}
    types = (("T", float32), ("M", float32 if mask is None else mask.dtype))
    constants = task.constants_with(MASK_PAIRS=task.is_sum_of_pairs)
    sizes = (("SIZE_K", size_k), ("SIZE_V", size_v), ("KEYS", KEYS))
    room = target.room(resident)
    stages, shared = _staged(task, tile, 4 * rows * (size_k + 1), room)
    note = f"{batch * heads} x {length} x {task.total} x {size}"
    cutting = Launch(
        "attention/cut_keys.cu",
        "cut_keys",
        grid=(tiles_of_keys, batch * kv_heads, 2),
        block=128,
        args={
            name: args[name]
            for name in ("k", "v", "past_k", "past_v", "lengths", "cut", "s", "of_k", "of_v")
        },
        types=types,
        constants=(*constants, *sizes, ("VECTOR", min(task.k.vector(4), task.v.vector(4)))),
        code=F16X3.code(),
        shared=4 * KEYS * (max(size_k, size_v) + 1),
        scratch=batch * kv_heads * tiles_of_keys * tile,
        note=f"{batch * kv_heads} x {task.total} x {size}",
        pitched=(task.k.tensor, task.v.tensor),
    )
    attention = Launch(
        "attention/attention_cut.cu",
        "attention_cut",
        grid=(tiles * heads * batch, 1, 1),
        block=128 * groups + producers,
        args={
            **{name: args[name] for name in ("q", "cut", "lengths", "s", "of_q", "of_y")},
            **{name: args[name] for name in ("mask", "second_mask", "of_mask")},
            **{name: args[name] for name in ("scale", "softcap")},
            **{"tiles": tiles, "tiles_of_keys": tiles_of_keys, **task.storage},
        },
        types=types,
        constants=(
            *(*constants, *sizes, ("GROUPS", groups), ("STAGES", stages)),
            *(("RESIDENT", resident), ("PRODUCERS", producers)),
            *(("VECTOR", task.q.vector(4)), ("VECTOR_Y", task.y.vector(2))),
        ),
        code="\n".join(
            (
                F16X3.code(across=SLAB, a_in_registers=True),
                F16X3.wgmma(KEYS, a_in_registers=True),
                in_halves_code(task.halves, plain=task.plain),
            )
        ),
        shared=shared,
        note=f"{rows} rows, {KEYS} keys, {note}",
        pitched=(task.q.tensor, task.y.tensor),
    )
    return cutting, attention


def _staged(task: AttentionTask, tile: int, queries: int, room: int) -> tuple[int, int]:
    """Return the number of tiles in shared memory, and the bytes per block.

    Args:
        task: the attention.
        tile: bytes of a tile of keys and values.
        queries: bytes of the queries of a block.
        room: bytes that a block may have.
    """
    biases = 4 * KEYS if task.mask is not None and not task.is_mask_of_rows else 0
    stage = ceil_div(tile + biases, 1024) * 1024
    stages = min(MAX_STAGES, (room - queries) // (stage + 16))
    return stages, queries + stages * (stage + 16)
