"""Flash attention (online softmax): which kernel; and that of float32 without tensor cores."""

from __future__ import annotations

from math import ceil

from ....runtime.ir.dtypes import bfloat16, bool_, float16, float32, float64
from ..algorithms.registry import Answer, need_dtypes
from ..recipe.operands import ceil_div
from ..recipe.targets import Target
from .flash_f16x3 import choose, on_halves
from .flash_mma import FEWEST_KEYS, MAX_HEAD, on_tensor_cores
from .flash_parts import FEW, FlashKernel, group_of, launched, share
from .flash_short import short, suits_short
from .flash_wgmma import on_hopper
from .flash_windows import suits_windows, windows
from .heads import AttentionTask

#: Maximum head size in float32 that fits in registers, unless queries are few.
MAX_HEAD_FLOAT32 = 128
#: Maximum keys in float32 of which all scores of a row are registers, where other kernels do it:
#: on an H200 2352 heads with 8 queries and keys take 12 us instead of 19, with 16 of both 35
#: instead of 25. Minimum keys of windows, tiles of which are half empty then.
FEW_KEYS, FEWEST_OF_WINDOWS = 8, 8


def flash(task: AttentionTask, target: Target) -> Answer:
    """Return the launch of flash attention, or why it does not apply."""
    q, v = task.q.dims, task.v.dims
    dtype = task.q.tensor.dtype
    if task.op.is_wide or dtype == float64:
        return "float64"
    if task.v.tensor.dtype != dtype:
        return f"queries of {dtype.name} and values of {task.v.tensor.dtype.name}"
    refused = need_dtypes((bool_, float32, float16, bfloat16), task.mask or task.q.tensor)
    if refused:
        return f"a mask of {refused}"
    shape = choose(task, target) if dtype == float32 else None
    single = dtype == float32 and shape is None
    if not task.total or not q[3] or not v[3]:
        return "no keys, or heads without elements"
    maximum = MAX_HEAD_FLOAT32 if single and q[2] > FEW else MAX_HEAD
    fits = max(q[3], v[3]) <= maximum
    if dtype != float32 and task.total >= FEWEST_OF_WINDOWS and suits_windows(task, target):
        return windows(task, target)
    few = task.total < FEWEST_KEYS if dtype != float32 else single and task.total <= FEW_KEYS
    if (few or (single and not fits)) and suits_short(task):
        return short(task)
    if not fits:
        return f"heads of {max(q[3], v[3])}, more than {maximum}"
    if shape is not None:
        return on_halves(task, target, shape)
    if single:
        return _single(task, target)
    if task.total < FEWEST_KEYS:
        return f"{task.total} keys, fewer than a tensor core multiplies at once"
    return on_hopper(task, target) or on_tensor_cores(task, target)


# ── float32 without tensor cores ─────────────────────────────────────────────────────────────────

DOWN, ACROSS, TILE = 8, 16, 64
#: Time of a thread of `attention_tiles.cu` by its number of rows, measured on an H200; and the
#: fixed cost of a block, in the same unit.
HEIGHTS = {8: 8.0, 7: 7.1, 6: 6.1, 5: 5.15, 4: 4.17, 3: 3.45, 2: 2.6}
LATENCY = 5.3
#: Maximum rows per thread for few queries, and for heads larger than `MAX_HEAD_FLOAT32`.
LOW, LOW_OF_LARGE = 8, 4


def _single(task: AttentionTask, target: Target, height: int | None = None) -> Answer:
    batch, heads, length, size = task.q.dims
    size_k, size_v = ceil_div(size, 8) * 8, ceil_div(task.v.dims[3], 32) * 32

    def estimate(height: int) -> float:
        waves = ceil_div(length, height * DOWN) * heads * batch / target.processors
        return (ceil(waves) if waves < 4 else waves) * HEIGHTS[height] + LATENCY

    def shared(height: int) -> int:
        rows = height * DOWN
        return 4 * ((rows + TILE) * (size_k + 4) + TILE * size_v + rows * (TILE + 4))

    if length <= FEW:
        maximum = LOW if max(size_k, size_v) <= MAX_HEAD_FLOAT32 else LOW_OF_LARGE
        fitting = [one for one in range(1, maximum + 1) if shared(one) <= target.shared]
        if not fitting:
            return f"heads of {max(size, task.v.dims[3])}, too large for shared memory"
        height = height or min(ceil_div(group_of(task) * length, DOWN), fitting[-1])
    height = height or min(HEIGHTS, key=estimate)
    sharing = share(task, height * DOWN, TILE, shared(height), target)
    constants = {
        **{"SIZE_K": size_k, "SIZE_V": size_v, "TM": height},
        "VECTOR_K": min(task.q.vector(4), task.k.vector(4)),
        **{"VECTOR_V": task.v.vector(4), "VECTOR_Y": task.y.vector(4)},
    }
    kernel = FlashKernel("attention_tiles", shared(height), ACROSS * DOWN, constants)
    return launched(task, kernel, sharing)
