"""Split-K for flash attention: CTAs that share heads with common keys, and split long keys."""

from __future__ import annotations

from collections.abc import Mapping
from math import e, log2

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, float32
from ..gemm.tile import clusters_of
from ..recipe.launch import Launch
from ..recipe.operands import Arguments, Scratch, Tensor, ceil_div
from ..recipe.targets import Target
from .heads import AttentionTask

#: Factor of score differences before exp2.
LOG2E = log2(e)
#: Maximum number of queries for which grouped heads share blocks.
FEW = 16
#: Cost of the merge kernel in steps of a block: 3 us on an H200.
MERGING = 6
#: Cost of merging within a cluster, in the same unit.
JOINING = 1
#: The share of multiprocessors that have a block from which on few queries are bound by memory, so
#: that splits only cost: on an H200, a decoding step of 16 sequences at position 512 takes, at
#: Llama-3.2-1B's size, 4 % less time without.
BUSY = 0.9
#: Maximum number of blocks per multiprocessor to split for; and per cluster.
RESIDENT, MAX_CLUSTER = 2, 8
#: Sizes of clusters whose blocks may share multiprocessors; others fill what is left of a GPC with
#: one block for each, if one of these is chosen over a merge kernel. On an H200 a step of Gemma 2
#: 2B, with heads of 256, takes 7 % less time with 8 sequences and three blocks instead of two, 1 %
#: with 4 and six instead of four.
WHOLE_CLUSTERS = (2, 4, 8)


@record
class Sharing:
    """How blocks share heads and keys; see `attention_parts.cuh`.

    Attributes:
        rows: query rows per block.
        group: query heads per block.
        parts: number of key splits, with separate blocks each.
        steps: maximum number of steps per block.
        clustered: whether the blocks of the splits form a cluster, which merges them.
    """

    rows: int
    group: int
    parts: int
    steps: int
    clustered: bool = False

    @property
    def constants(self) -> tuple[tuple[str, int | bool], ...]:
        """The compile-time constants of `attention_parts.cuh`."""
        return ("GROUP", self.group), ("SPLIT", self.parts > 1)

    def tiles(self, task: AttentionTask) -> int:
        """Return the number of blocks for the rows of a group."""
        return ceil_div(self.group * task.q.dims[2], self.rows)

    def blocks(self, task: AttentionTask) -> int:
        """Return the number of blocks, all splits included."""
        batch, heads, _, _ = task.q.dims
        return self.tiles(task) * (heads // self.group) * batch * self.parts

    def apart(self, nbytes: int, task: AttentionTask, target: Target) -> int:
        """Return the shared memory of a block that needs `nbytes`; see `Target.alone`."""
        clustered = self.clustered
        places = clusters_of(self.parts, target) * self.parts if clustered else target.processors
        return target.alone(nbytes) if self.blocks(task) <= places else nbytes

    def left(self, task: AttentionTask, size: int) -> tuple[Scratch, Scratch]:
        """Return the workspace layout of partial sums of `size` elements per row."""
        rows = self.parts * _rows(task)
        return Scratch(0), Scratch(rows * size * 4)

    def scratch(self, task: AttentionTask, size: int) -> int:
        """Return the workspace in bytes."""
        return self.parts * _rows(task) * (size + 2) * 4

    @property
    def title(self) -> str:
        """A short description: ``16 rows of 4 heads, 32 parts``."""
        text = f"{self.rows} rows" + (f" of {self.group} heads" if self.group > 1 else "")
        where = " in a cluster" if self.clustered else ""
        return f"{text}, {self.parts} parts{where}" if self.parts > 1 else text


def _rows(task: AttentionTask) -> int:
    batch, heads, length, _ = task.q.dims
    return batch * heads * length


def group_of(task: AttentionTask) -> int:
    """Return the query heads per block: all with common keys, if queries are few."""
    return task.sharing if task.q.dims[2] <= FEW else 1


def share(
    task: AttentionTask, rows: int, tile: int, shared: int, target: Target, *, joins: bool = False
) -> Sharing:
    """Return the sharing with the lowest estimate.

    A multiprocessor has up to `RESIDENT` blocks at a time. Each costs one step to start, the steps
    of its split, and writing and reading its partial sums; the merge kernel costs `MERGING` steps.

    Args:
        task: the attention.
        rows: query rows per block.
        tile: keys per step.
        shared: shared memory per block in bytes.
        target: the GPU.
        joins: whether the kernel can merge splits in a cluster.
    """
    group = group_of(task)
    batch, heads, length, size = task.q.dims
    of_group = group * length
    blocks = batch * (heads // group) * ceil_div(of_group, rows)
    # A cache whose length is known only at run time is assumed to be half full.
    steps = ceil_div(task.seen if task.lengths is None else max(1, task.seen // 2), tile)
    resident = min(RESIDENT, target.resident(shared))
    slots = resident * target.processors
    read = tile * (size + task.v.dims[3]) * task.q.tensor.dtype.itemsize
    leaving = 2 * 4 * min(of_group, rows) * task.v.dims[3] / read

    def estimate(parts: int) -> float:
        waves = ceil_div(blocks * parts, slots)
        if parts == 1:
            return waves * (1 + steps)
        return waves * (1 + ceil_div(steps, parts) + leaving) + MERGING

    def joined(parts: int) -> float:
        return ceil_div(blocks * parts, slots) * (1 + ceil_div(steps, parts)) + JOINING

    if length <= FEW and blocks >= BUSY * target.processors:
        return Sharing(rows, group, 1, steps)
    maximum = slots if length <= FEW else slots // max(1, blocks)
    parts = min(range(1, max(1, min(steps, maximum)) + 1), key=estimate)
    # No cluster waits for another to end, which would take twice the time.
    sizes = [
        n
        for n in range(2, min(steps, MAX_CLUSTER) + 1)
        if blocks <= clusters_of(n, target) * resident
        and (n in WHOLE_CLUSTERS or blocks * n <= target.processors)
    ]
    whole = [n for n in sizes if n in WHOLE_CLUSTERS]
    if joins and whole and length <= FEW:
        together = min(sizes, key=joined)
        if joined(min(whole, key=joined)) < estimate(parts):
            return Sharing(rows, group, together, ceil_div(steps, together), clustered=True)
    return Sharing(rows, group, parts, max(1, ceil_div(steps, parts)))


def merge(task: AttentionTask, sharing: Sharing, size: int, steepness: float) -> Launch:
    """Return the launch that merges the key splits.

    Args:
        task: the attention.
        sharing: how the keys are split.
        size: elements from one split's sums to the next.
        steepness: factor of score differences before exp2.
    """
    _, heads, length, _ = task.q.dims
    sums, beside = sharing.left(task, size)
    warps = next(w for w in (2, 4, 8, 16) if w == 16 or 4 * w >= sharing.parts)
    return Launch(
        "attention/attention_merge.cu",
        "attention_merge",
        grid=(_rows(task), 1, 1),
        block=32 * warps,
        args={
            **{"sums": sums, "beside": beside, "y": task.y.tensor, "of_y": task.y.struct},
            **{"parts": sharing.parts, "heads": heads, "rows": length, "size": task.v.dims[3]},
            "steepness": steepness,
        },
        types=(("T", task.y.tensor.dtype),),
        constants=(("SIZE", size), ("WARPS", warps)),
        scratch=sharing.scratch(task, size),
        note=f"{sharing.parts} parts",
        pitched=(task.y.tensor,),
    )


@record
class FlashKernel:
    """A kernel of flash attention, compiled for an attention.

    Attributes:
        entry: its name; also the name of its file.
        shared: shared memory per block in bytes.
        block: threads per block.
        constants: compile-time constants, besides those of the attention and of its sharing.
        code: generated functions.
        types: element types, besides those of queries and mask.
    """

    entry: str
    shared: int
    block: int
    constants: Mapping[str, int | bool]
    code: str = ""
    types: tuple[tuple[str, DType], ...] = ()


def launched(
    task: AttentionTask,
    kernel: FlashKernel,
    sharing: Sharing,
    steepness: float = LOG2E,
    operands: Arguments | None = None,
    pitched: tuple[Tensor, ...] = (),
) -> tuple[Launch, ...]:
    """Return the launches of a split attention kernel and of the merge.

    Args:
        task: the attention.
        kernel: the kernel.
        sharing: how blocks share heads and keys.
        steepness: see `merge`.
        operands: its operands, if not those of a plain attention.
        pitched: operands that may have gaps, if not those of a plain attention.
    """
    batch, heads, length, size = task.q.dims
    tiles, split = sharing.tiles(task), sharing.parts > 1
    mask, padded = task.mask, int(kernel.constants["SIZE_V"])
    apart = split and not sharing.clustered
    left, beside = sharing.left(task, padded) if apart else (None, None)
    launch = Launch(
        f"attention/{kernel.entry}.cu",
        kernel.entry,
        grid=(sharing.blocks(task) // sharing.parts, sharing.parts, 1),
        block=kernel.block,
        args={
            **(operands or {**task.operands, **task.strides}),
            **{**task.numbers, "tiles": tiles},
            **{"y": None if apart or not task.plain else task.y.tensor},
            **{"left": left, "beside": beside},
        },
        types=(
            *(("T", task.q.tensor.dtype), ("M", float32 if mask is None else mask.dtype)),
            *kernel.types,
        ),
        constants=(*task.constants, *sharing.constants, *kernel.constants.items()),
        code=kernel.code,
        shared=kernel.shared,
        scratch=sharing.scratch(task, padded) if apart else 0,
        cluster=(1, sharing.parts, 1) if sharing.clustered else (1, 1, 1),
        note=f"{sharing.title}, {batch * heads} x {length} x {task.total} x {size}",
        pitched=pitched or task.pitched,
    )
    if not apart:
        return (launch,)
    return launch, merge(task, sharing, padded, steepness)
