"""Division of groups of elements among blocks: `norm_parts.cuh`."""

from __future__ import annotations

from ....runtime.base.record import record
from ..recipe.operands import ceil_div
from ..recipe.targets import Target

#: Bytes per load, bytes in flight per thread, and maximum words in flight.
WORD, UNDER_WAY, MAX_BATCH = 16, 64, 16
#: For blocks that each have one group: bytes per warp, the same with fewer groups than
#: multiprocessors, and the maximum number of warps.
WARP_BYTES, FEW_BYTES, MAX_WARPS = 8192, 1024, 32
#: For blocks that share a group: warps per block, minimum bytes per block, blocks per
#: multiprocessor.
PART_WARPS, PART_BYTES, PART_BLOCKS = 8, 16384, 4
#: Maximum bytes of groups that are not worth a second launch.
ALONE = 65536


@record
class Cut:
    """How the work on groups of elements is divided.

    Attributes:
        groups: number of groups.
        parts: blocks per group.
        chunk: elements of each part but the last.
        warps: warps per block.
        vector: elements per load.
        batch: loads in flight per thread.
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
        """Total number of blocks."""
        return self.groups * self.parts

    @property
    def struct(self) -> dict[str, int]:
        """Struct `Parts` of norm_parts.cuh."""
        return {"count": self.parts, "chunk": self.chunk}

    @property
    def constants(self) -> tuple[tuple[str, int | bool], ...]:
        """The compile-time constants of norm_parts.cuh, and whether groups are SHARED."""
        sizes = (("WARPS", self.warps), ("VECTOR", self.vector), ("BATCH", self.batch))
        return (*sizes, ("SHARED", self.is_shared))


def cut(groups: int, count: int, itemsize: int, vector: int, target: Target) -> Cut:
    """Return how the work on groups of `count` elements is divided.

    A block has a group to itself if groups are small, or if that keeps three quarters of the
    multiprocessors busy: elements are then read again from the cache. Otherwise enough blocks share
    a group for every multiprocessor to have some.

    Args:
        groups: number of groups.
        count: elements per group.
        itemsize: bytes of an element.
        vector: elements per load.
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
