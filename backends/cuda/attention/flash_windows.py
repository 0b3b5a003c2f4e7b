"""Flash attention of many samples with few keys in 16-bit floats, such as windows of an image."""

from __future__ import annotations

from ....runtime.ir.dtypes import float32
from ..gemm.atoms import atom_of
from ..recipe.launch import Launch
from ..recipe.operands import ceil_div
from ..recipe.targets import Target
from .heads import AttentionTask

#: Maximum elements of a head by the maximum number of keys, with which registers suffice.
MAX_SIZES = {16: 96, 32: 64, 64: 48}
#: Warps of a block, with 16 rows each, at most; and warps per multiprocessor.
MAX_WARPS, RESIDENT = 8, 16
#: Minimum number of samples of a block.
SAMPLES = 2


def suits_windows(task: AttentionTask, target: Target) -> bool:
    """Return whether `attention_windows.cu` supports these heads, and blocks have enough to do."""
    simple = task.past == (None, None) and task.lengths is None
    size = next((size for keys, size in MAX_SIZES.items() if task.total <= keys), 0)
    small = max(task.q.dims[3], task.v.dims[3]) <= size
    return simple and small and task.q.dims[0] >= SAMPLES * _at_a_time(task, target)


def windows(task: AttentionTask, target: Target) -> Launch:
    """Return the launch of `attention_windows.cu`, which `suits_windows`."""
    batch, heads, length, size = task.q.dims
    size_k, size_v = (ceil_div(each.dims[3], 16) * 16 for each in (task.q, task.v))
    keys, mask, dtype = ceil_div(task.total, 16) * 16, task.mask, task.q.tensor.dtype
    warps = _warps(task)
    tiles, samples = ceil_div(length, 16 * warps), _at_a_time(task, target)
    operands = {name: task.operands[name] for name in ("q", "k", "v", "mask", "second_mask")}
    return Launch(
        "attention/attention_windows.cu",
        "attention_windows",
        grid=(tiles * heads * samples, 1, 1),
        block=32 * warps,
        args={
            **{**operands, **task.strides, **task.numbers},
            **{"sink": task.sink, "y": task.y.tensor, "tiles": tiles, "samples": batch},
        },
        types=(("T", dtype), ("M", float32 if mask is None else mask.dtype)),
        constants=(
            *(*task.constants, ("GROUP", 1), ("SPLIT", False), ("CLUSTER", 0)),
            *(("SIZE_K", size_k), ("SIZE_V", size_v), ("KEYS", keys), ("STAGES", 2)),
            *(("TM", 1), ("WARPS_M", warps), ("WARPS_N", 1), ("ROWS", 16 * warps)),
            ("RESIDENT", RESIDENT // warps),
            *(("VECTOR_K", min(task.q.vector(8), task.k.vector(8))),),
            *(("VECTOR_V", task.v.vector(8)), ("VECTOR_Y", 8 if task.y.vector(8) == 8 else 1)),
        ),
        code=atom_of(dtype).code(),
        shared=2 * keys * (size_k + size_v + 16) * 2,
        note=f"{16 * warps} rows, {batch * heads} x {length} x {task.total} x {size}",
        pitched=task.pitched,
    )


def _warps(task: AttentionTask) -> int:
    """Return the warps of a block, which are as equally busy as possible."""
    sixteens = ceil_div(task.q.dims[2], 16)
    return ceil_div(sixteens, ceil_div(sixteens, MAX_WARPS))


def _at_a_time(task: AttentionTask, target: Target) -> int:
    """Return how many samples the blocks of all heads process at a time."""
    batch, heads, length, _ = task.q.dims
    warps = ceil_div(length, 16 * _warps(task)) * heads * _warps(task)
    return max(1, min(batch, RESIDENT * target.processors // warps))
