"""The largest elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import prod

from ....runtime.base.record import record
from ....runtime.ops.search import TopK
from ....runtime.ops.shapes import normalize_axis
from ..algorithms.registry import Answer, kernel, need_dtypes
from ..codegen.elementwise import NUMBERS
from ..recipe.launch import THREADS, Launch
from ..recipe.operands import Scratch, Tensor, ceil_div
from ..recipe.source import arithmetic

#: Elements of a tile that is sorted, where more are wanted than are found otherwise.
TILE = 512
#: Bytes of sort keys that a lane has in registers, where a warp has a line and where a block has;
#: threads of the smallest and of the greatest such block; bytes of sort keys of those found.
WARP_KEYS, BLOCK_KEYS, SMALLEST, GREATEST, FOUND_KEYS = 128, 64, 256, 1024, 8192
#: Maximum number of elements that a warp finds; number of them per warp for which one element of
#: each lane gives a close bound, and maximum number of elements of a lane for that.
WARP_FOUND, PER_DEPTH, DEEPEST = 64, 24, 4
#: Maximum elements of a line that a warp sorts, and instructions of a lane for each step of one of
#: its elements, for each comparison of candidates, and otherwise for finding elements.
SORTED, EXCHANGED, COMPARED, SELECTED = 128, 7, 4, 200
#: Candidates of a block that are compared with each other instead of sorted, at most; number of
#: blocks that occupy a GPU; minimum elements of a chunk per element wanted.
RANKED, BLOCKS, SHARE = 512, 264, 4


@kernel(TopK, outputs=2)
def top_k(
    op: TopK, y: Tensor | None, x: Tensor, k: Tensor, *, more: tuple[Tensor | None, ...] = ()
) -> Answer:
    """Find the first elements by bounds, in registers, and sort only these.

    A warp sorts a short line of which much is wanted. Where very many elements are wanted, or many
    and more than half of a line, tiles are sorted and merged.
    """
    refused = need_dtypes(NUMBERS, x)
    if refused:
        return refused
    places = more[0] if more else None
    result = y or places
    if result is None:
        return "none of its outputs is read"
    axis = normalize_axis(op.axis, x.rank)
    size, kept, inner = x.dims[axis], result.dims[axis], prod(x.dims[axis + 1 :])
    count = x.size // max(size, 1) if kept else 0
    lines = _Lines(x, y, places, bool(op.largest), count, size if kept else 1, inner, kept)
    if _sorts(size, kept):
        return lines.sorted()
    if kept * lines.key <= FOUND_KEYS and not (kept > RANKED and 2 * kept > size):
        return tuple(lines.selected())
    return tuple(lines.merged())


@record
class _Lines:
    """Lines of which the first elements in an order are wanted.

    Attributes:
        x: the elements.
        y: the k first of each line, if they are read.
        places: where they were, if that is read.
        largest: whether the greatest are the first.
        count: the number of lines.
        size: the number of elements of each.
        inner: how far two neighbours of a line are from each other, in elements.
        kept: k.
    """

    x: Tensor
    y: Tensor | None
    places: Tensor | None
    largest: bool
    count: int
    size: int
    inner: int
    kept: int

    @property
    def make(self) -> Callable[..., Launch]:
        """What makes a launch."""
        return partial(
            Launch,
            types=(("T", self.x.dtype), ("A", arithmetic(self.x.dtype))),
            note=f"{self.kept} of {self.size}",
        )

    def constants(self, threads: int) -> tuple[tuple[str, int | bool], ...]:
        """Return what all kernels are compiled for, and the number of warps of a block."""
        return ("LARGEST", self.largest), ("WARPS", threads // 32)

    def sorted(self) -> Launch:
        """Return the launch where a warp has a line in registers and sorts it."""
        return self.make(
            "reduce/sort_lines.cu",
            "sort_lines",
            grid=(ceil_div(self.count * 32, THREADS), 1, 1),
            block=THREADS,
            args={
                **{"x": self.x, "values": self.y, "places": self.places, "lines": self.count},
                **{"size": self.size, "k": self.kept, "inner": self.inner},
            },
            constants=(
                *self.constants(THREADS),
                ("PER", 1 << (ceil_div(self.size, 32) - 1).bit_length()),
            ),
        )

    def selected(self) -> Iterator[Launch]:
        """Yield the launches where a line, or a chunk of it, is in registers."""
        longest, size, nbytes = GREATEST * BLOCK_KEYS // self.key, self.size, 0
        source: tuple[Scratch, Scratch] | None = None
        rounds = list[tuple[int, int]]()
        while size > longest:
            chunks = ceil_div(size, longest)
            if not rounds:
                even = min(
                    BLOCKS // max(1, self.count), size // (SHARE * self.kept), size // SMALLEST
                )
                chunks = max(chunks, min(even, longest // self.kept))
            rounds.append((chunks, size))
            size = chunks * self.kept
        count, itemsize = self.count * self.kept, self.x.dtype.itemsize
        total = sum(_aligned(count * n * itemsize) + _aligned(8 * count * n) for n, _ in rounds)
        for chunks, whole in rounds:
            places = nbytes + _aligned(count * chunks * itemsize)
            left = Scratch(nbytes), Scratch(places)
            yield replace(self._select(chunks, whole, of=source, to=left), scratch=total)
            source, nbytes = left, places + _aligned(8 * count * chunks)
        yield replace(self._select(1, size, of=source), scratch=total)

    @property
    def key(self) -> int:
        """Bytes of a sort key."""
        return 8 if arithmetic(self.x.dtype).itemsize == 8 else 4

    def _select(
        self,
        chunks: int,
        size: int,
        of: tuple[Scratch, Scratch] | None = None,
        to: tuple[Scratch, Scratch] | None = None,
    ) -> Launch:
        """Return the launch that finds the first elements of each chunk.

        Args:
            chunks: the number of chunks of a line.
            size: the number of elements of a line.
            of: the elements, and where they were; None for `x`.
            to: where those found go, and where they were; None for the results.
        """
        part, room = ceil_div(size, chunks), _room(self.kept)
        by_warps = self.kept <= WARP_FOUND and part * self.key <= 32 * WARP_KEYS
        threads = THREADS if by_warps else SMALLEST
        while not by_warps and part * self.key > threads * BLOCK_KEYS:
            threads *= 2
        warps = 1 if by_warps else threads // 32
        per = ceil_div(part, 32 * warps)
        close = ceil_div(self.kept, PER_DEPTH * warps)
        x, origins = of or (self.x, None)
        values, places = to or (self.y, self.places)
        return self.make(
            "reduce/topk_lines.cu",
            "top_k_lines",
            grid=(ceil_div(self.count * chunks * 32 * warps, threads), 1, 1),
            block=threads,
            args={
                **{"x": x, "origins": origins, "values": values, "places": places},
                **{"lines": self.count, "whole": size, "k": self.kept, "stride": self.inner},
            },
            constants=(
                *(*self.constants(threads), ("STRIDED", self.inner > 1)),
                *(("LINE", warps), ("PER", per), ("ROOM", room), ("RANKED", RANKED)),
                ("CHUNKS", chunks),
                ("DEPTH", max(1, ceil_div(self.kept, 32 * warps), min(close, DEEPEST, per))),
            ),
        )

    def merged(self) -> Iterator[Launch]:
        """Yield the launches that sort tiles and merge them."""
        x, size, inner, kept = self.x, self.size, self.inner, self.kept
        spans = [TILE << i for i in range(ceil_div(size, TILE).bit_length() + 1)]
        room = self.count * max(ceil_div(size, span) * min(kept, span) for span in spans)
        runs, span, width = ceil_div(size, TILE), TILE, min(kept, TILE)
        buffers = [_aligned(room * nbytes) for nbytes in (self.key, 4)]
        starts = (0, buffers[0], sum(buffers), sum(buffers) + buffers[0])
        keys, origins, more_keys, more_origins = map(Scratch, starts)
        make = partial(self.make, "reduce/topk_merge.cu", block=TILE, scratch=2 * sum(buffers))
        constants = self.constants(TILE)
        yield make(
            "sort_tiles",
            grid=(self.count * runs, 1, 1),
            args={
                **{"x": x, "keys": keys, "places": origins},
                **{"size": size, "inner": inner, "tiles": runs, "width": width},
            },
            constants=(*constants, ("LAST", False)),
        )
        while runs > 1:
            both, count = min(kept, 2 * span), self.count * runs * width
            is_last = runs == 2
            yield make(
                "merge_runs",
                grid=(ceil_div(count, TILE), 1, 1),
                args={
                    **{"x": x, "keys": keys, "places": origins},
                    "merged_keys": None if is_last else more_keys,
                    "merged_places": None if is_last else more_origins,
                    "values": self.y if is_last else None,
                    "indices": self.places if is_last else None,
                    "count": count,
                    "r": {
                        **{"size": size, "inner": inner, "runs": runs},
                        **{"span": span, "width": width, "kept": both},
                    },
                },
                constants=(*constants, ("LAST", is_last)),
            )
            keys, origins, more_keys, more_origins = more_keys, more_origins, keys, origins
            runs, span, width = ceil_div(runs, 2), 2 * span, both


def _sorts(size: int, kept: int) -> bool:
    """Whether a warp sorts a line in less time than it finds this many elements."""
    if size > SORTED or not kept:
        return False
    digits = max(5, (size - 1).bit_length())
    per = 1 << digits - 5
    likely = min(size, kept + kept // 2)
    finding = SELECTED + ceil_div(likely, 32) * likely * COMPARED
    return digits * (digits + 1) // 2 * per * EXCHANGED < finding


def _room(kept: int) -> int:
    """Return for how many elements there is room that may be among the first."""
    room = 32 * max(1, ceil_div(kept + kept // 4, 32))
    return room if room <= RANKED else 1 << (room - 1).bit_length()


def _aligned(nbytes: int) -> int:
    return ceil_div(nbytes, 256) * 256
