"""Flash attention of float32 on tensor cores, each product as three of float16."""

from __future__ import annotations

from dataclasses import replace

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32
from ..codegen.epilogue import in_halves_code
from ..gemm.atoms import F16X3
from ..recipe.launch import Launch
from ..recipe.operands import Given, Ints, ceil_div
from ..recipe.targets import Target
from .flash_cut import on_cut_keys, suits
from .flash_mma import FEWEST_KEYS, MAX_HEAD, WarpShape, steepness_of
from .flash_parts import FEW, FlashKernel, launched, share
from .heads import AttentionTask

#: Warp shapes, mostly in decreasing order of rows per block, each with the share of multiprocessors
#: that must have a block; see `flash_mma.SHAPES`. Measured on an H200 with 12 to 512 heads of 32 to
#: 256 and 49 to 1024 keys.
SHAPES = (
    *((WarpShape(1, 8, 1, 32), 0.9), (WarpShape(1, 4, 1, 32), 0.9)),
    *((WarpShape(1, 2, 8, 16), 0.5), (WarpShape(1, 2, 4, 32), 0.5), (WarpShape(1, 2, 4, 16), 0.5)),
    (WarpShape(1, 1, 8, 16), 0.0),
    *((WarpShape(1, 1, 4, 32), 0.0), (WarpShape(1, 4, 1, 16), 0.0), (WarpShape(1, 1, 1, 16), 0.0)),
)
#: Maximum size of heads whose keys eight warps share: as measured on an H100, where attention of 12
#: heads of 64 takes 6 % less time then, and BERT-base at batch 1 one to two.
MAX_OF_EIGHT = 64
#: Maximum warps of a block that cuts what it reads.
MAX_CUTTING = 8
#: Maximum keys per step of a warp with heads of more than 128 elements.
KEYS_OF_LARGE = 16
#: Tiles of keys in shared memory: one is multiplied, one cut, one loaded.
STAGES = 3
#: Warps per multiprocessor, if registers and shared memory allow it.
WARPS = 16


@record
class HopperShape:
    """How the warp groups of `attention_f16x3_wgmma.cu` split rows and keys.

    Attributes:
        groups: warp groups, of 64 rows each.
        keys: keys per step.
        resident: blocks per multiprocessor.
    """

    groups: int
    keys: int
    resident: int

    @property
    def rows(self) -> int:
        """Rows per block."""
        return 64 * self.groups


#: Shapes by slabs of 64 elements of a head, for few rows and for more. Measured on an H200.
SLAB = 64
HOPPER_SHAPES = {
    1: (HopperShape(1, 64, 3), HopperShape(2, 64, 2)),
    2: (HopperShape(1, 64, 1), HopperShape(2, 64, 1)),
}
#: The share of multiprocessors that must have a block of these shapes.
HOPPER_MINIMUM = (0.5, 0.6)

Shape = WarpShape | HopperShape


def choose(task: AttentionTask, target: Target) -> Shape | None:
    """Return the shape with most rows per block that keeps the multiprocessors busy.

    It is None if these kernels do not support the heads, or queries are few.
    """
    batch, heads, length, size = task.q.dims
    size = max(size, task.v.dims[3])
    if not target.has_tf32 or length <= FEW or task.total < FEWEST_KEYS:
        return None
    if not 0 < size <= MAX_HEAD:
        return None

    def fills(shape: Shape, minimum: float) -> bool:
        return ceil_div(length, shape.rows) * heads * batch >= minimum * target.processors

    if target.has_wgmma and task.sink is None and size <= max(HOPPER_SHAPES) * SLAB:
        few, more = HOPPER_SHAPES[ceil_div(size, SLAB)]
        of_few, of_more = HOPPER_MINIMUM
        if length > few.rows and fills(more, of_more):
            return more
        if fills(few, of_few):
            return few
    fitting = [
        (shape, minimum)
        for shape, minimum in SHAPES
        if size <= 128 or shape.keys <= KEYS_OF_LARGE
        if size <= MAX_OF_EIGHT or shape.warps_n < 8
        # Warps that need not cut rows have little else to do.
        if task.cut is not None or shape.warps_m * shape.warps_n <= MAX_CUTTING
        # No warp is without keys where half as many per warp are enough.
        if shape.keys == FEWEST_KEYS or task.seen > FEWEST_KEYS * shape.warps_n
        if _shared(shape, _stages(task, shape), _sizes(task, 16)) <= target.shared
    ]
    for shape, minimum in fitting:
        if fills(shape, minimum) and (length > shape.rows // 2 or not minimum):
            return shape
    return None


def on_halves(task: AttentionTask, target: Target, shape: Shape) -> tuple[Launch, ...]:
    """Return the launches of an attention with a shape, see `choose`."""
    if not task.has_blocks:
        task = replace(task, halves=None, plain=True)
    if isinstance(shape, HopperShape):
        return on_cut_keys(task, target) if suits(task) else (_on_hopper(task, target, shape),)
    return _on_warps(task, target, shape)


def _sizes(task: AttentionTask, multiple: int) -> tuple[int, int]:
    """Return the head sizes of key and value, rounded up."""
    sizes = task.q.dims[3], task.v.dims[3]
    return ceil_div(sizes[0], multiple) * multiple, ceil_div(sizes[1], multiple) * multiple


def _vector(task: AttentionTask) -> int:
    """Return the elements per copy of all operands."""
    return min(x.vector(4) for x in (task.q, task.k, task.v))


# ── with mma.sync ────────────────────────────────────────────────────────────────────────────────


def _on_warps(task: AttentionTask, target: Target, shape: WarpShape) -> tuple[Launch, ...]:
    sizes, warps = _sizes(task, 16), shape.warps_m * shape.warps_n
    whole = _shared(shape, _stages(task, shape), sizes)
    sharing = share(task, shape.rows, shape.keys * shape.warps_n, whole, target)
    stages = _stages(task, shape, sharing.parts)
    shared = _shared(shape, stages, sizes)
    constants = {
        **{"SIZE_K": sizes[0], "SIZE_V": sizes[1], "KEYS": shape.keys, "STAGES": stages},
        **{"TM": shape.tm, "WARPS_M": shape.warps_m, "WARPS_N": shape.warps_n},
        **{"ROWS": shape.rows, "CLUSTER": 0},
        "RESIDENT": max(1, min(WARPS // warps, target.resident(shared))),
        **{"VECTOR": _vector(task), "VECTOR_Y": 8 if task.y.vector(8) == 8 else 1},
    }
    shared = sharing.apart(shared, task, target)
    if sharing.parts > 1:
        task = replace(task, halves=None, plain=True)
    cut = f"#define CUT {int(task.cut is not None)}"
    code = "\n".join((F16X3.code(), cut, in_halves_code(task.halves, plain=task.plain)))
    kernel = FlashKernel("attention_f16x3", shared, 32 * warps, constants, code)
    operands = {
        **{**task.operands, **task.strides, "halves": task.halves, "sink": task.sink},
        **_cut_operands(task),
    }
    pitched = () if task.cut is None else (task.y.tensor,)
    return launched(task, kernel, sharing, steepness_of(task), operands, pitched)


def _cut_operands(task: AttentionTask) -> dict[str, Given]:
    """Return the arguments for operands in halves, which replace others."""
    names: tuple[str, ...] = ("q", "k", "v")
    if task.cut is None:
        none: dict[str, int | Ints] = dict.fromkeys(names, (0, 0, 0))
        return {**{f"cut_{name}": None for name in names}, "cuts": none}
    parts = dict(zip(names, task.cut, strict=True))
    return {
        **dict.fromkeys(names),
        **{f"cut_{name}": part.tensor for name, part in parts.items()},
        "cuts": {name: part.numbers for name, part in parts.items()},
    }


def _stages(task: AttentionTask, shape: WarpShape, parts: int = 1) -> int:
    """Return the number of tiles in shared memory of blocks with one of `parts` of the keys."""
    steps = ceil_div(task.seen, shape.keys * shape.warps_n)
    return min(STAGES, max(1, ceil_div(steps, parts)))


def _shared(shape: WarpShape, stages: int, sizes: tuple[int, int]) -> int:
    """Return the bytes for queries, keys and values, or for sums merged between warp groups.

    Args:
        shape: the warp shape.
        stages: number of tiles in shared memory.
        sizes: head sizes of key and value, rounded up.
    """
    size_k, size_v = sizes
    tiles = stages * shape.keys * shape.warps_n * (size_k + size_v + 8)
    return 4 * max(shape.rows * (size_k + 4) + tiles, shape.warps_n * shape.rows * (size_v + 6))


# ── with wgmma ───────────────────────────────────────────────────────────────────────────────────


def _on_hopper(task: AttentionTask, target: Target, shape: HopperShape) -> Launch:
    batch, heads, length, size = task.q.dims
    (size_k, size_v), keys, mask = _sizes(task, SLAB), shape.keys, task.mask
    stages = min(2, max(1, ceil_div(task.seen, keys)))
    tiles, stage = ceil_div(length, shape.rows), 4 * keys * (size_k + size_v)
    rows = max(stages * stage, stage + 4 * shape.rows * size_k)
    shared = rows + 4 * (3 * stages * keys + shape.rows)
    blocks = tiles * heads * batch
    # Each of few blocks has a multiprocessor, and all of its registers.
    alone = blocks <= target.processors
    return Launch(
        "attention/attention_f16x3_wgmma.cu",
        "attention_f16x3_wgmma",
        grid=(blocks, 1, 1),
        block=128 * shape.groups,
        args={**task.operands, **task.strides, **task.numbers, "tiles": tiles, **task.storage},
        types=(("T", float32), ("M", float32 if mask is None else mask.dtype)),
        constants=(
            *task.constants_with(MASK_PAIRS=task.is_sum_of_pairs),
            *(("SIZE_K", size_k), ("SIZE_V", size_v), ("GROUPS", shape.groups)),
            *(("KEYS", keys), ("STAGES", stages)),
            ("RESIDENT", 1 if alone else shape.resident),
            *(("VECTOR", _vector(task)), ("VECTOR_Y", task.y.vector(2))),
        ),
        code="\n".join(
            (
                F16X3.code(across=SLAB, a_in_registers=True),
                F16X3.wgmma(keys, a_in_registers=True),
                in_halves_code(task.halves, plain=task.plain),
            )
        ),
        shared=target.alone(shared) if alone else shared,
        note=f"{shape.rows} rows, {keys} keys, {batch * heads} x {length} x {task.total} x {size}",
        pitched=task.pitched,
    )
