"""Split-K of flash attention: how CTAs share heads with the same keys, and parts of long keys."""

from __future__ import annotations

from dataclasses import dataclass

from ..recipe.launch import Launch
from ..recipe.layout import ceil_div
from ..recipe.operands import Scratch
from ..recipe.targets import Target
from .heads import AttentionTask

#: Queries, at most, whose heads with the same keys have blocks in common.
FEW = 16
#: Steps of a block in the time of the kernel that puts parts together: an assumption.
MERGING = 4
#: The same of a cluster, whose blocks put their parts together themselves.
JOINING = 1
#: Blocks of a multiprocessor that parts are made for, at most; and of a cluster.
RESIDENT, MAX_CLUSTER = 2, 8


@dataclass(frozen=True, slots=True)
class Sharing:
    """What blocks have in common; see `attention_parts.cuh`.

    Attributes:
        rows: of queries that a block has.
        group: heads of queries of a block.
        parts: of the keys, each of which has blocks of its own.
        steps: of a block, at most.
        clustered: whether the blocks of the parts are a cluster, which puts them together.
    """

    rows: int
    group: int
    parts: int
    steps: int
    clustered: bool = False

    @property
    def constants(self) -> tuple[tuple[str, int | bool], ...]:
        """What `attention_parts.cuh` is compiled with."""
        return ("GROUP", self.group), ("SPLIT", self.parts > 1)

    def tiles(self, task: AttentionTask) -> int:
        """Return how many blocks the rows of a group take."""
        return ceil_div(self.group * task.q.dims[2], self.rows)

    def left(self, task: AttentionTask, size: int) -> tuple[Scratch, Scratch]:
        """Return where blocks leave sums of `size` elements a row, and what stands beside them."""
        rows = self.parts * _rows(task)
        return Scratch(0), Scratch(rows * size * 4)

    def scratch(self, task: AttentionTask, size: int) -> int:
        """Return the bytes of what blocks leave."""
        return self.parts * _rows(task) * (size + 2) * 4

    @property
    def title(self) -> str:
        """In short: ``16 rows of 4 heads, 32 parts``."""
        text = f"{self.rows} rows" + (f" of {self.group} heads" if self.group > 1 else "")
        where = " in a cluster" if self.clustered else ""
        return f"{text}, {self.parts} parts{where}" if self.parts > 1 else text


def _rows(task: AttentionTask) -> int:
    batch, heads, length, _ = task.q.dims
    return batch * heads * length


def group_of(task: AttentionTask) -> int:
    """Return how many heads of queries blocks have: all of a head of keys, if queries are few."""
    return task.sharing if task.q.dims[2] <= FEW else 1


def share(
    task: AttentionTask, rows: int, tile: int, shared: int, target: Target, *, joins: bool = False
) -> Sharing:
    """Return the sharing that an estimate takes to be quickest.

    A multiprocessor has up to `RESIDENT` blocks at one time. Each takes as long as one step to
    begin with, the steps of its part, and writing and reading what it leaves; the kernel that puts
    parts together takes `MERGING` steps. Blocks of many queries are all there at one time.

    Args:
        task: the attention.
        rows: of a block.
        tile: keys of a step.
        shared: bytes of shared memory of a block.
        target: the GPU.
        joins: whether the kernel can put parts together in a cluster.
    """
    group = group_of(task)
    batch, heads, length, size = task.q.dims
    of_group = group * length
    blocks = batch * (heads // group) * ceil_div(of_group, rows)
    # A cache that tells its length in a run is half full, as far as anybody knows.
    steps = ceil_div(task.seen if task.lengths is None else max(1, task.seen // 2), tile)
    slots = min(RESIDENT, (target.shared + 1024) // (shared + 1024)) * target.processors
    read = tile * (size + task.v.dims[3]) * task.q.tensor.dtype.itemsize
    leaving = 2 * 4 * min(of_group, rows) * task.v.dims[3] / read

    def estimate(parts: int) -> float:
        waves = ceil_div(blocks * parts, slots)
        if parts == 1:
            return waves * (1 + steps)
        return waves * (1 + ceil_div(steps, parts) + leaving) + MERGING

    def joined(parts: int) -> float:
        return ceil_div(blocks * parts, slots) * (1 + ceil_div(steps, parts)) + JOINING

    maximum = slots if length <= FEW else slots // max(1, blocks)
    parts = min(range(1, max(1, min(steps, maximum)) + 1), key=estimate)
    sizes = [n for n in (2, 4, MAX_CLUSTER) if n <= steps]
    if joins and sizes and length <= FEW:
        together = min(sizes, key=joined)
        if joined(together) < estimate(parts):
            return Sharing(rows, group, together, ceil_div(steps, together), clustered=True)
    return Sharing(rows, group, parts, max(1, ceil_div(steps, parts)))


def merge(task: AttentionTask, sharing: Sharing, size: int, steepness: float) -> Launch:
    """Return the launch that puts parts together.

    Args:
        task: the attention.
        sharing: how its keys were cut.
        size: elements from one part's sums to the next.
        steepness: what differences of scores are multiplied with before they become powers of 2.
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
