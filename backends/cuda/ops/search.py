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

#: Lines of more elements than that are thinned out before they are ranked, by blocks of that many
#: threads; or they are sorted in tiles, which are merged, where there are fewer lines than that and
#: more elements wanted than the greatest number of candidates allows for, or more than half of all.
TILE, SELECTING, FEW = 512, 1024, 64
#: Maximum elements of a line that a warp has in registers, maximum number of them that it finds one
#: by one, and minimum number of comparisons that this saves. On an H200 the 20 greatest of each of
#: 512 lines of 512 took 176 µs by comparisons.
SHORT, FOUND, COMPARED = 1024, 64, 2**22
#: Maximum elements of a line that a warp sorts, and instructions of a lane for each step of one of
#: its elements, and for each element that it finds.
SORTED, EXCHANGED, SEARCHED = 128, 7, 12
#: Number of blocks of `SELECTING` threads that occupy a GPU; maximum number of candidates of a
#: line; minimum elements of a chunk per element wanted.
BLOCKS, CANDIDATES, SHARE = 264, 2048, 4


@kernel(TopK, outputs=2)
def top_k(
    op: TopK, y: Tensor | None, x: Tensor, k: Tensor, *, more: tuple[Tensor | None, ...] = ()
) -> Answer:
    """Rank each element by comparison with all others of its line, or all left after filtering.

    Of many short lines, a warp finds the first elements one by one, or sorts them all.
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
    lines = _Lines(x, y, places, bool(op.largest), x.size // max(size, 1), size, inner, kept)
    if short := lines.by_warps():
        return short
    if size <= TILE or not kept:
        return lines.ranked(x, None, x.size, size)
    chunks = min(ceil_div(BLOCKS, max(1, lines.count)), CANDIDATES // kept, size // (SHARE * kept))
    if chunks < 2 and (lines.count < FEW or 2 * kept > size):
        return tuple(lines.merged())
    return lines.thinned_out((chunks, 1) if chunks > 1 else (1,))


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

    def by_warps(self) -> Launch | None:
        """Return the launch where a warp has a line in registers, if it suits."""
        sorts = _sorts(self.size, self.kept)
        many = self.count * self.size**2 >= COMPARED
        if not sorts and not (many and self.size <= SHORT and 0 < self.kept <= FOUND):
            return None
        if not sorts and arithmetic(self.x.dtype).itemsize != 4:
            return None
        kernel = (
            ("reduce/sort_lines.cu", "sort_lines")
            if sorts
            else ("reduce/topk_lines.cu", "top_k_lines")
        )
        per = ceil_div(self.size, 32)
        return self.make(
            *kernel,
            grid=(ceil_div(self.count * 32, THREADS), 1, 1),
            block=THREADS,
            args={
                **{"x": self.x, "values": self.y, "places": self.places, "lines": self.count},
                **{"size": self.size, "k": self.kept, "inner": self.inner},
            },
            constants=(
                *self.constants(THREADS),
                ("PER", 1 << (per - 1).bit_length() if sorts else per),
            ),
        )

    def ranked(
        self, source: Tensor | Scratch, origins: Scratch | None, count: int, size: int
    ) -> Launch:
        """Return the launch that compares each element with all others of its line.

        Args:
            source: the elements, or what is left of them.
            origins: where these were; None for all.
            count: how many there are.
            size: how many of a line.
        """
        return self.make(
            "reduce/topk.cu",
            "top_k",
            grid=(ceil_div(count, THREADS) if self.kept else 0, 1, 1),
            block=THREADS,
            args={
                **{"x": source, "origins": origins, "values": self.y, "places": self.places},
                **{"count": count, "size": size, "k": self.kept, "inner": self.inner},
            },
            constants=self.constants(THREADS),
        )

    def thinned_out(self, rounds: tuple[int, ...]) -> tuple[Launch, ...]:
        """Return the launches that leave the k first of each chunk, and rank what is left.

        Args:
            rounds: the number of chunks of a line, for each launch.
        """
        source: Tensor | Scratch = self.x
        sources: Scratch | None = None
        whole, nbytes, launches = self.size, 0, list[Launch]()
        results = self.count * self.kept
        for parts in rounds:
            count = parts * results
            values = Scratch(nbytes)
            origins = Scratch(values.offset + _aligned(count * self.x.dtype.itemsize))
            nbytes = origins.offset + _aligned(4 * count)
            launch = self.make(
                "reduce/topk.cu",
                "thin_out",
                grid=(self.count * parts, 1, 1),
                block=SELECTING,
                args={
                    **{"x": source, "sources": sources, "values": values, "origins": origins},
                    **{"whole": whole, "k": self.kept, "inner": self.inner, "chunks": parts},
                },
                constants=self.constants(SELECTING),
            )
            launches.append(launch)
            source, sources, whole = values, origins, parts * self.kept
        launches.append(self.ranked(source, sources, results, whole))
        return tuple(replace(launch, scratch=nbytes) for launch in launches)

    def merged(self) -> Iterator[Launch]:
        """Yield the launches that sort tiles and merge them."""
        x, size, inner, kept = self.x, self.size, self.inner, self.kept
        spans = [TILE << i for i in range(ceil_div(size, TILE).bit_length() + 1)]
        room = self.count * max(ceil_div(size, span) * min(kept, span) for span in spans)
        runs, span, width = ceil_div(size, TILE), TILE, min(kept, TILE)
        key = 8 if arithmetic(x.dtype).itemsize == 8 else 4
        buffers = [_aligned(room * nbytes) for nbytes in (key, 4)]
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
    """Whether a warp sorts a line in less time than it finds this many elements one by one."""
    if size > SORTED:
        return False
    digits = max(5, (size - 1).bit_length())
    per = 1 << digits - 5
    return digits * (digits + 1) // 2 * per * EXCHANGED < kept * (SEARCHED + 4 * per)


def _aligned(nbytes: int) -> int:
    return ceil_div(nbytes, 256) * 256
