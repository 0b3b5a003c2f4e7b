"""Groups of elements that one block has to itself, or several share: `norm_parts.cuh`."""

from __future__ import annotations

from dataclasses import dataclass

from ..recipe.layout import ceil_div
from ..recipe.targets import Target

#: Bytes that are read at once, bytes that a thread has under way, and words that these are at most.
WORD, UNDER_WAY, MAX_BATCH = 16, 64, 16
#: A block that has a group to itself: a warp for that many bytes, for fewer of them where there are
#: fewer groups than multiprocessors; and the most warps.
WARP_BYTES, FEW_BYTES, MAX_WARPS = 8192, 1024, 32
#: Blocks that share a group: their warps, the least bytes of each, how many a multiprocessor gets.
PART_WARPS, PART_BYTES, PART_BLOCKS = 8, 16384, 4
#: Groups of that many bytes are not worth a second launch.
ALONE = 65536


@dataclass(frozen=True, slots=True)
class Cut:
    """How the work on groups of elements is divided.

    Attributes:
        groups: how many there are.
        parts: the blocks that share one.
        chunk: elements of each part but the last.
        warps: of a block.
        vector: elements that a thread reads at once.
        batch: such words that it reads before it uses the first.
    """

    groups: int
    parts: int
    chunk: int
    warps: int
    vector: int
    batch: int

    @property
    def is_shared(self) -> bool:
        """Whether several blocks share a group."""
        return self.parts > 1

    @property
    def blocks(self) -> int:
        """How many there are in all."""
        return self.groups * self.parts

    @property
    def struct(self) -> dict[str, int]:
        """Struct `Parts` of norm_parts.cuh."""
        return {"count": self.parts, "chunk": self.chunk}

    @property
    def constants(self) -> tuple[tuple[str, int | bool], ...]:
        """What norm_parts.cuh is compiled with, and whether a group is SHARED."""
        sizes = (("WARPS", self.warps), ("VECTOR", self.vector), ("BATCH", self.batch))
        return (*sizes, ("SHARED", self.is_shared))


def cut(groups: int, count: int, itemsize: int, vector: int, target: Target) -> Cut:
    """Return how the work on groups of `count` elements is divided.

    A block has a group to itself where groups are small, or where they keep three quarters of the
    multiprocessors busy, one each: then it is read again from the cache. Otherwise that many blocks
    share one that every multiprocessor has some.

    Args:
        groups: how many there are.
        count: elements of each.
        itemsize: bytes of an element.
        vector: elements that a thread reads at once.
        target: the GPU.
    """
    nbytes, processors = count * itemsize, target.processors
    places = processors * ceil_div(groups, processors)
    parts, warps = 1, 1
    if nbytes > ALONE and groups < 0.75 * places:
        parts = min(nbytes // PART_BYTES, PART_BLOCKS * processors // groups)
        warps = PART_WARPS
    else:
        of_warp = WARP_BYTES if groups >= processors else FEW_BYTES
        while warps < MAX_WARPS and nbytes > warps * of_warp:
            warps *= 2
    chunk = max(1, ceil_div(count, parts * vector)) * vector
    batch = min(UNDER_WAY // (vector * itemsize), MAX_BATCH, ceil_div(chunk, 32 * warps * vector))
    return Cut(groups, max(1, ceil_div(count, chunk)), chunk, warps, vector, batch)
