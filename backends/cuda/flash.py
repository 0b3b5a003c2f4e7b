"""Attention without a matrix of scores in memory: float32, and 16-bit floats on tensor cores."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from ...runtime.dtypes import bfloat16, bool_, float16, float32, float64
from ...runtime.ops.attention import Attention
from .compile import Target
from .half_words import instructions
from .launch import Ints32, Ints64, Launch, Tensor, TensorMap
from .layout import Ints, broadcast_strides, ceil_div
from .registry import Answer, need_dtypes

#: The largest heads that registers have room for.
MOST_HALF, MOST_SINGLE = 256, 128
#: Keys of 16-bit floats from which tensor cores pay; the row kernel rounds less often.
FEWEST_KEYS = 16
NO_MASK, FLAGS, NUMBERS = range(3)


@dataclass(frozen=True, slots=True)
class Heads:
    """An operand as [batch, heads, length, size].

    Attributes:
        tensor: where it lies, in rows that may have gaps.
        dims: the four sizes.
        steps: distances of samples, heads and positions, in elements.
    """

    tensor: Tensor
    dims: Ints
    steps: Ints

    def vector(self, most: int) -> int:
        """Return how many elements of a head can be read or written at once."""
        numbers = (self.dims[3], *(n for n, d in zip(self.steps, self.dims, strict=False) if d > 1))
        return next(v for v in (8, 4, 2, 1) if v <= most and all(n % v == 0 for n in numbers))


def by_head(x: Tensor, heads: int | None) -> Heads:
    """Return an operand of four axes, or of three with its heads side by side."""
    if x.rank == 4:
        return Heads(x, x.dims, x.strides[:3])
    batch, length, hidden = x.dims
    count = heads or 1
    size = hidden // count
    of_batch, of_row, _ = x.strides
    return Heads(x, (batch, count, length, size), (of_batch, size, of_row))


@dataclass(frozen=True, slots=True)
class Task:
    """An Attention with what it reads besides queries, keys and values.

    Attributes:
        op: the operator.
        q, k, v, y: by head.
        mask: added to scores, or what shows them; None for none.
        past: keys and values before those of `k` and `v`.
        lengths: of every sample.
    """

    op: Attention
    q: Heads
    k: Heads
    v: Heads
    y: Heads
    mask: Tensor | None = None
    past: tuple[Tensor | None, Tensor | None] = (None, None)
    lengths: Tensor | None = None

    @property
    def before(self) -> int:
        """Keys in the past."""
        return 0 if self.past[0] is None else self.past[0].dims[2]

    @property
    def total(self) -> int:
        """Keys, those of the past included."""
        return self.before + self.k.dims[2]

    @property
    def scale(self) -> float:
        """What scores are multiplied with."""
        return self.q.dims[3] ** -0.5 if self.op.scale is None else self.op.scale

    @property
    def mask_steps(self) -> Ints:
        """Distances of samples, heads, rows and keys in the mask."""
        if self.mask is None:
            return (0, 0, 0, 0)
        scores = (*self.q.dims[:3], self.mask.dims[-1])
        return broadcast_strides(self.mask.dims, self.mask.format, scores, self.mask.pitch)

    @property
    def sizes(self) -> Ints32:
        """Struct `Sizes` of heads.cuh."""
        _, heads, rows, size = self.q.dims
        length = 0 if self.mask is None else self.mask.dims[-1]
        bounds = (self.op.left_window_size, self.op.right_window_size)
        of_heads = (heads, self.k.dims[1], rows, self.total, self.before, size, self.v.dims[3])
        return Ints32((*of_heads, length, *bounds))

    @property
    def steps(self) -> tuple[Ints64, ...]:
        """The structs `Steps` of q, k, v and y, and `MaskSteps`."""
        return tuple(
            Ints64(steps)
            for steps in (self.q.steps, self.k.steps, self.v.steps, self.y.steps, self.mask_steps)
        )

    @property
    def constants(self) -> tuple[tuple[str, int | bool], ...]:
        """What heads.cuh is compiled with, and, but for float32, weigh.cuh."""
        op, mask = self.op, self.mask
        raw = mask is None and op.softcap <= 0 and self.scale > 0
        return (
            ("MASK", NO_MASK if mask is None else FLAGS if mask.dtype == bool_ else NUMBERS),
            ("CAUSAL", bool(op.is_causal)),
            ("WINDOW", max(op.left_window_size, op.right_window_size) >= 0),
            *(("LENGTHS", self.lengths is not None), ("SOFTCAP", op.softcap > 0)),
            *(("MASK_ROWS", self.mask_steps[2] != 0), ("RAW", raw)),
        )

    @property
    def pitched(self) -> tuple[Tensor, ...]:
        """The operands that may have gaps."""
        return (self.q.tensor, self.k.tensor, self.v.tensor, self.y.tensor)


def flash(task: Task, target: Target) -> Answer:
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
    most = MOST_SINGLE if dtype == float32 else MOST_HALF
    if max(q[3], v[3]) > most:
        return f"heads of {max(q[3], v[3])}, more than {most}"
    if not task.total or not q[3] or not v[3]:
        return "no keys, or heads without elements"
    if dtype == float32:
        return _single(task, target)
    if task.total < FEWEST_KEYS:
        return f"{task.total} keys, fewer than a tensor core multiplies at once"
    if _suits_groups(task, target):
        return _grouped(task, target)
    return _half(task, target)


def _launch(
    task: Task,
    entry: str,
    rows: int,
    shared: int,
    block: int,
    constants: tuple[tuple[str, int | bool], ...],
    code: str = "",
) -> Launch:
    batch, heads, length, size = task.q.dims
    tiles = ceil_div(length, rows)
    mask = task.mask
    return Launch(
        f"{entry}.cu",
        entry,
        grid=(tiles * heads * batch, 1, 1),
        block=block,
        args=(
            *(task.q.tensor, task.k.tensor, task.v.tensor, mask, *task.past, task.lengths),
            *(task.y.tensor, task.sizes, *task.steps),
            *(np.float32(task.scale), np.float32(task.op.softcap), np.int32(tiles)),
        ),
        types=(("T", task.q.tensor.dtype), ("M", float32 if mask is None else mask.dtype)),
        constants=(*task.constants, *constants),
        code=code,
        shared=shared,
        early=True,
        note=f"{rows} rows, {batch * heads} x {length} x {task.total} x {size}",
        pitched=task.pitched,
    )


# ── 16 bits ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Shape:
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


#: From the fewest blocks to the most; the last one is for few rows. Eleven shapes were measured on
#: an H200: the first of these with a block for nearly every multiprocessor is close to the best.
SHAPES = (Shape(2, 4, 1), Shape(1, 8, 1), Shape(1, 4, 1), Shape(1, 2, 2), Shape(1, 1, 4))
#: The largest heads, key and value together, whose 32 rows a warp has registers for.
MOST_DOUBLE = 128


def _half(task: Task, target: Target, shape: Shape | None = None) -> Launch:
    size_k, size_v = (ceil_div(x.dims[3], 16) * 16 for x in (task.q, task.v))
    keys = 64 if max(size_k, size_v) <= 128 else 32
    shape = shape or _shape(task, (size_k, size_v), keys, target)
    tile = keys * shape.warps_n
    stages = min(2, ceil_div(task.total, tile))
    vector_y = 8 if task.y.vector(8) == 8 else 1
    constants = (
        *(("SIZE_K", size_k), ("SIZE_V", size_v), ("KEYS", keys), ("STAGES", stages)),
        *(("TM", shape.tm), ("WARPS_M", shape.warps_m), ("WARPS_N", shape.warps_n)),
        ("VECTOR_K", min(task.q.vector(8), task.k.vector(8))),
        *(("VECTOR_V", task.v.vector(8)), ("VECTOR_Y", vector_y)),
    )
    return _launch(
        task,
        "attention_mma",
        shape.rows,
        _shared(shape, keys, stages, (size_k, size_v)),
        32 * shape.warps_m * shape.warps_n,
        constants,
        instructions(task.q.tensor.dtype, 0),
    )


def _shared(shape: Shape, keys: int, stages: int, sizes: tuple[int, int]) -> int:
    """Return the bytes of shared memory of a block, `sizes` being that of a key and of a value."""
    buffers = stages * keys * shape.warps_n * (sum(sizes) + 16) * 2
    return max(buffers, shape.warps_n * shape.rows * (sizes[1] + 6) * 4)


def _shape(task: Task, sizes: tuple[int, int], keys: int, target: Target) -> Shape:
    """Return the shape with most rows a block that keeps the multiprocessors busy."""
    batch, heads, length, _ = task.q.dims
    most = max(1, ceil_div(task.total, keys))
    few, several = SHAPES[-1], SHAPES[:-1]
    usable = [
        shape
        for shape in ((few,) if length <= few.rows else several)
        if shape.warps_n <= most and (shape.tm == 1 or sum(sizes) <= MOST_DOUBLE)
        if _shared(shape, keys, 2, sizes) <= target.shared
    ]
    for shape in usable:
        blocks = ceil_div(length, shape.rows) * heads * batch
        if blocks >= 0.9 * target.processors and length > shape.rows // 2:
            return shape
    return usable[-1] if usable else Shape(1, 1, 1)


# ── 16 bits, on Hopper ───────────────────────────────────────────────────────────────────────────

#: Rows of queries of a block of `attention_wgmma.cu`, and the size of heads that it is for.
GROUP, SIZE = 64, 64
#: Keys of a tile, at most: what scores a thread has registers for.
MOST_KEYS = 208
#: Keys that the beginning and the end of a step take as long as.
OF_STEP = 24


def _suits_groups(task: Task, target: Target) -> bool:
    """Whether `attention_wgmma.cu` can do it, and has enough blocks."""
    batch, heads, length, _ = task.q.dims
    operands = (task.q, task.k, task.v, task.y)
    return (
        target.has_wgmma
        and all(x.dims[3] == SIZE and x.vector(8) == 8 for x in operands)
        and task.past == (None, None)
        and task.lengths is None
        and ceil_div(length, GROUP) * heads * batch >= 0.9 * target.processors
        and length > GROUP // 2
    )


def _grouped(task: Task, target: Target, keys: int = 0, resident: int = 0) -> Launch:
    batch, heads, length, size = task.q.dims
    steps_of = range(64, MOST_KEYS + 1, 16)
    keys = keys or min(steps_of, key=lambda k: (ceil_div(task.total, k) * (k + OF_STEP), -k))
    stages = min(2, ceil_div(task.total, keys))
    shared = GROUP * SIZE * 2 + stages * (keys * SIZE * 4 + 16) + keys * 4
    fitting = (target.shared + 1024) // (shared + 1024)
    resident = resident or min(fitting, _blocks_with_registers(task, keys))
    tiles = ceil_div(length, GROUP)
    mask, dtype = task.mask, task.q.tensor.dtype
    return Launch(
        "attention_wgmma.cu",
        "attention_wgmma",
        grid=(tiles * heads * batch, 1, 1),
        block=128,
        args=(
            *(_map(task.q, GROUP), _map(task.k, keys), _map(task.v, keys), _map(task.y, GROUP)),
            *(mask, task.sizes, task.steps[-1]),
            *(np.float32(task.scale), np.float32(task.op.softcap), np.int32(tiles)),
        ),
        types=(("T", dtype), ("M", float32 if mask is None else mask.dtype)),
        constants=(
            *task.constants,
            *(("KEYS", keys), ("STAGES", stages), ("RESIDENT", resident)),
        ),
        code=instructions(dtype, keys, SIZE),
        shared=shared,
        early=True,
        note=f"{keys} keys, {batch * heads} x {length} x {task.total} x {size}",
        pitched=task.pitched,
    )


def _blocks_with_registers(task: Task, keys: int) -> int:
    """Return how many blocks of `attention_wgmma.cu` a multiprocessor has registers for."""
    if keys <= 128:
        return 4
    hides = task.op.is_causal or max(task.op.left_window_size, task.op.right_window_size) >= 0
    more = hides or task.mask_steps[2] != 0 or task.op.softcap > 0
    return 2 if more and keys > 160 else 3


def _map(x: Heads, rows: int) -> TensorMap:
    """Return how so many rows of a head are copied at once."""
    batch, heads, length, size = x.dims
    strides = tuple(s if d > 1 else size for s, d in zip(x.steps, x.dims, strict=False))
    dims = (size, length, heads, batch)
    return TensorMap(x.tensor, x.tensor.dtype, dims, strides[::-1], (size, rows, 1, 1))


# ── float32 ──────────────────────────────────────────────────────────────────────────────────────

DOWN, ACROSS, TILE = 8, 16, 64
#: How long a thread of `attention_tiles.cu` takes for so many rows, measured on an H200; and the
#: time that a block takes besides, in the same unit.
HEIGHTS = {8: 8.0, 7: 7.1, 6: 6.1, 5: 5.15, 4: 4.17, 3: 3.45, 2: 2.6}
LATENCY = 5.3


def _single(task: Task, target: Target, height: int | None = None) -> Launch:
    batch, heads, length, size = task.q.dims
    size_k, size_v = ceil_div(size, 8) * 8, ceil_div(task.v.dims[3], 32) * 32

    def estimate(height: int) -> float:
        waves = ceil_div(length, height * DOWN) * heads * batch / target.processors
        return (ceil(waves) if waves < 4 else waves) * HEIGHTS[height] + LATENCY

    height = height or min(HEIGHTS, key=estimate)
    rows = height * DOWN
    floats = (rows + TILE) * (size_k + 4) + TILE * size_v + rows * (TILE + 4)
    constants = (
        *(("SIZE_K", size_k), ("SIZE_V", size_v), ("TM", height)),
        ("VECTOR_K", min(task.q.vector(4), task.k.vector(4))),
        *(("VECTOR_V", task.v.vector(4)), ("VECTOR_Y", task.y.vector(4))),
    )
    return _launch(task, "attention_tiles", rows, 4 * floats, ACROSS * DOWN, constants)
