"""Flash attention (online softmax): float32, and 16-bit floats on tensor cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, e, log2

from ....runtime.ir.dtypes import bfloat16, bool_, float16, float32, float64
from ..algorithms.registry import Answer, need_dtypes
from ..gemm.atoms import atom_of
from ..recipe.launch import Launch
from ..recipe.layout import ceil_div
from ..recipe.targets import Target
from .flash_parts import FEW, Sharing, group_of, merge, share
from .flash_wgmma import on_hopper
from .heads import AttentionTask

#: The largest heads that registers have room for; and in float32, where queries are not few.
MAX_HEAD, MAX_HEAD_FLOAT32 = 256, 128
#: What differences of scores are multiplied with before they become powers of 2.
LOG2E = log2(e)
#: Keys of 16-bit floats from which tensor cores pay; the row kernel rounds less often.
FEWEST_KEYS = 16


def flash(task: AttentionTask, target: Target) -> Answer:
    """Return the launch that keeps scores out of memory, or why there is none."""
    q, v = task.q.dims, task.v.dims
    dtype = task.q.tensor.dtype
    if task.op.is_wide or dtype == float64:
        return "float64"
    if task.v.tensor.dtype != dtype:
        return f"queries of {dtype.name} and values of {task.v.tensor.dtype.name}"
    refused = need_dtypes((bool_, float32, float16, bfloat16), task.mask or task.q.tensor)
    if refused:
        return f"a mask of {refused}"
    maximum = MAX_HEAD_FLOAT32 if dtype == float32 and q[2] > FEW else MAX_HEAD
    if max(q[3], v[3]) > maximum:
        return f"heads of {max(q[3], v[3])}, more than {maximum}"
    if not task.total or not q[3] or not v[3]:
        return "no keys, or heads without elements"
    if dtype == float32:
        return _single(task, target)
    if task.total < FEWEST_KEYS:
        return f"{task.total} keys, fewer than a tensor core multiplies at once"
    return on_hopper(task, target) or _half(task, target)


def _launch(
    task: AttentionTask,
    entry: str,
    sharing: Sharing,
    shared: int,
    block: int,
    constants: Mapping[str, int | bool],
    code: str = "",
    steepness: float = LOG2E,
) -> tuple[Launch, ...]:
    batch, heads, length, size = task.q.dims
    tiles, split = sharing.tiles(task), sharing.parts > 1
    mask, padded = task.mask, int(constants["SIZE_V"])
    apart = split and not sharing.clustered
    left, beside = sharing.left(task, padded) if apart else (None, None)
    launch = Launch(
        f"attention/{entry}.cu",
        entry,
        grid=(tiles * (heads // sharing.group) * batch, sharing.parts, 1),
        block=block,
        args={
            **{**task.operands, **task.strides, **task.numbers, "tiles": tiles},
            **{"y": None if apart else task.y.tensor, "left": left, "beside": beside},
        },
        types=(("T", task.q.tensor.dtype), ("M", float32 if mask is None else mask.dtype)),
        constants=(*task.constants, *sharing.constants, *constants.items()),
        code=code,
        shared=shared,
        scratch=sharing.scratch(task, padded) if apart else 0,
        cluster=(1, sharing.parts, 1) if sharing.clustered else (1, 1, 1),
        note=f"{sharing.title}, {batch * heads} x {length} x {task.total} x {size}",
        pitched=task.pitched,
    )
    if not apart:
        return (launch,)
    return launch, merge(task, sharing, padded, steepness)


# ── 16 bits ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class WarpShape:
    """How the warps of `attention_mma.cu` share rows and keys.

    Attributes:
        tm: sixteens of rows of a warp.
        warps_m: groups of warps with rows of their own.
        warps_n: groups of warps with keys of their own.
    """

    tm: int
    warps_m: int
    warps_n: int

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return 16 * self.tm * self.warps_m


#: From the most rows of a block to the fewest, and what share of the multiprocessors must have a
#: block: larger blocks read keys and values less often and with more threads. Measured on an H200
#: with 3 to 16 heads of 32 to 128 and 50 to 577 keys, in transformers' blocks.
SHAPES = (
    *((WarpShape(2, 4, 1), 0.9), (WarpShape(1, 8, 1), 0.9), (WarpShape(1, 4, 2), 0.33)),
    *((WarpShape(1, 2, 4), 0.0), (WarpShape(1, 2, 2), 0.0), (WarpShape(1, 4, 1), 0.0)),
)
#: The same for larger heads, of whose keys a thread copies more.
LARGE_SHAPES = (
    *((WarpShape(1, 8, 1), 0.9), (WarpShape(1, 4, 2), 0.9)),
    *((WarpShape(1, 2, 2), 0.0), (WarpShape(1, 4, 1), 0.0)),
)
#: Those for few queries, from the fewest rows to the most.
FEW_SHAPES = (WarpShape(1, 1, 4), WarpShape(1, 2, 2), WarpShape(1, 4, 1), WarpShape(1, 8, 1))
#: The largest heads, key and value together, that are not large: a warp has registers for 32 rows.
MAX_DOUBLE = 128
#: Tiles of few queries in shared memory, at most.
MAX_STAGES = 4


def _half(
    task: AttentionTask, target: Target, shape: WarpShape | None = None
) -> tuple[Launch, ...]:
    size_k, size_v = (ceil_div(x.dims[3], 16) * 16 for x in (task.q, task.v))
    keys, stages = 64 if max(size_k, size_v) <= 128 else 32, 2
    rows = group_of(task) * task.q.dims[2]
    if task.q.dims[2] <= FEW:
        shape = shape or _few_shape(rows, (size_k, size_v), target)
        keys = min(keys, 64 // shape.warps_n)
        stages = _stages(keys * shape.warps_n * (size_k + size_v + 16) * 2, target)
    shape = shape or _shape(task, (size_k, size_v), keys, target)
    shared = _shared(shape, keys, stages, (size_k, size_v))
    tile = keys * shape.warps_n
    sharing = share(task, shape.rows, tile, shared, target, joins=target.has_clusters)
    stages = min(stages, sharing.steps)
    joining = 4 * shape.rows * (size_v + 4) if sharing.clustered else 0
    constants = {
        **{"SIZE_K": size_k, "SIZE_V": size_v, "KEYS": keys, "STAGES": stages},
        **{"TM": shape.tm, "WARPS_M": shape.warps_m, "WARPS_N": shape.warps_n},
        **{"CLUSTER": sharing.parts if sharing.clustered else 0},
        "VECTOR_K": min(task.q.vector(8), task.k.vector(8)),
        **{"VECTOR_V": task.v.vector(8), "VECTOR_Y": 8 if task.y.vector(8) == 8 else 1},
    }
    return _launch(
        task,
        "attention_mma",
        sharing,
        _shared(shape, keys, stages, (size_k, size_v), joining),
        32 * shape.warps_m * shape.warps_n,
        constants,
        atom_of(task.q.tensor.dtype).code(),
        LOG2E * (task.scale if task.is_raw else 1),
    )


def _few_shape(rows: int, sizes: tuple[int, int], target: Target) -> WarpShape:
    """Return the shape with that many rows per block, or with the most that there is room for."""
    fitting = [
        shape
        for shape in FEW_SHAPES
        if _shared(shape, 32 // shape.warps_n, 1, sizes) <= target.shared
    ]
    return next((shape for shape in fitting if rows <= shape.rows), fitting[-1])


def _stages(tile: int, target: Target) -> int:
    """Return how many tiles of that many bytes are in shared memory: of two blocks, if two fit."""
    of_two = (target.shared - 1024) // 2 // tile
    return min(MAX_STAGES, of_two if of_two >= 2 else max(1, target.shared // tile))


def _shared(
    shape: WarpShape, keys: int, stages: int, sizes: tuple[int, int], joining: int = 0
) -> int:
    """Return the bytes of shared memory of a block.

    Args:
        shape: of its warps.
        keys: of a warp's step.
        stages: whose keys and values are there at one time.
        sizes: of a key and of a value.
        joining: bytes that a cluster puts together.
    """
    buffers = stages * keys * shape.warps_n * (sum(sizes) + 16) * 2
    return max(buffers, shape.warps_n * shape.rows * (sizes[1] + 6) * 4 + joining)


def _shape(task: AttentionTask, sizes: tuple[int, int], keys: int, target: Target) -> WarpShape:
    """Return the shape with most rows a block that keeps the multiprocessors busy."""
    batch, heads, length, _ = task.q.dims
    tiles = max(1, ceil_div(task.total, keys))
    for shape, minimum in SHAPES if sum(sizes) <= MAX_DOUBLE else LARGE_SHAPES:
        if shape.warps_n > tiles or _shared(shape, keys, 2, sizes) > target.shared:
            continue
        blocks = ceil_div(length, shape.rows) * heads * batch
        busy = blocks >= minimum * target.processors and length > shape.rows // 2
        if busy or (minimum < 0.9 and 1 < shape.warps_n == tiles):  # all keys in one step
            return shape
    return WarpShape(1, 1, 1)


# ── float32 ──────────────────────────────────────────────────────────────────────────────────────

DOWN, ACROSS, TILE = 8, 16, 64
#: How long a thread of `attention_tiles.cu` takes for that many rows, measured on an H200; and the
#: time that a block takes besides, in the same unit.
HEIGHTS = {8: 8.0, 7: 7.1, 6: 6.1, 5: 5.15, 4: 4.17, 3: 3.45, 2: 2.6}
LATENCY = 5.3
#: Rows of a thread, at most, for few queries; and where heads are larger than `MAX_HEAD_FLOAT32`.
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
    block = ACROSS * DOWN
    return _launch(task, "attention_tiles", sharing, shared(height), block, constants)
