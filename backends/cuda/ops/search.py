"""The largest elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import prod

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
    make = partial(
        Launch,
        types=(("T", x.dtype), ("A", arithmetic(x.dtype))),
        note=f"{kept} of {size}",
    )

    def rank(source: Tensor | Scratch, origins: Scratch | None, count: int, size: int) -> Launch:
        return make(
            "reduce/topk.cu",
            "top_k",
            grid=(ceil_div(count, THREADS) if kept else 0, 1, 1),
            block=THREADS,
            args={
                **{"x": source, "origins": origins, "values": y, "places": places},
                **{"count": count, "size": size, "k": kept, "inner": inner},
            },
            constants=(("LARGEST", bool(op.largest)), ("WARPS", THREADS // 32)),
        )

    lines = x.size // max(size, 1)
    sorts = _sorts(size, kept)
    many = size <= SHORT and 0 < kept <= FOUND and lines * size**2 >= COMPARED
    if sorts or (many and arithmetic(x.dtype).itemsize == 4):
        file, entry = (
            ("reduce/sort_lines.cu", "sort_lines")
            if sorts
            else ("reduce/topk_lines.cu", "top_k_lines")
        )
        per = ceil_div(size, 32)
        return make(
            file,
            entry,
            grid=(ceil_div(lines * 32, THREADS), 1, 1),
            block=THREADS,
            args={
                **{"x": x, "values": y, "places": places},
                **{"lines": lines, "size": size, "k": kept, "inner": inner},
            },
            constants=(
                *(("LARGEST", bool(op.largest)), ("WARPS", THREADS // 32)),
                ("PER", 1 << (per - 1).bit_length() if sorts else per),
            ),
        )
    if size <= TILE or not kept:
        return rank(x, None, x.size, size)
    chunks = min(ceil_div(BLOCKS, max(1, lines)), CANDIDATES // kept, size // (SHARE * kept))
    if chunks < 2 and (lines < FEW or 2 * kept > size):
        return tuple(_merged(make, op, x, y, places, (lines, size, inner, kept)))

    source: Tensor | Scratch = x
    sources: Scratch | None = None
    whole, nbytes, launches = size, 0, list[Launch]()
    for parts in (chunks, 1) if chunks > 1 else (1,):
        count = parts * result.size
        values = Scratch(nbytes)
        origins = Scratch(values.offset + _aligned(count * x.dtype.itemsize))
        nbytes = origins.offset + _aligned(4 * count)
        launch = make(
            "reduce/topk.cu",
            "thin_out",
            grid=(lines * parts, 1, 1),
            block=SELECTING,
            args={
                **{"x": source, "sources": sources, "values": values, "origins": origins},
                **{"whole": whole, "k": kept, "inner": inner, "chunks": parts},
            },
            constants=(("LARGEST", bool(op.largest)), ("WARPS", SELECTING // 32)),
        )
        launches.append(launch)
        source, sources, whole = values, origins, parts * kept
    launches.append(rank(source, sources, result.size, whole))
    return tuple(replace(launch, scratch=nbytes) for launch in launches)


def _sorts(size: int, kept: int) -> bool:
    """Whether a warp sorts a line in less time than it finds this many elements one by one."""
    if size > SORTED:
        return False
    digits = max(5, (size - 1).bit_length())
    per = 1 << digits - 5
    return digits * (digits + 1) // 2 * per * EXCHANGED < kept * (SEARCHED + 4 * per)


def _merged(
    make: Callable[..., Launch],
    op: TopK,
    x: Tensor,
    y: Tensor | None,
    places: Tensor | None,
    sizes: tuple[int, int, int, int],
) -> Iterator[Launch]:
    """Yield the launches that sort tiles and merge them.

    Args:
        make: makes a launch.
        op: the operator.
        x: the elements.
        y: the k greatest, if they are read.
        places: where they were, if that is read.
        sizes: number of lines, of the elements of each, of those between two of these, and k.
    """
    lines, size, inner, kept = sizes
    spans = [TILE << i for i in range(ceil_div(size, TILE).bit_length() + 1)]
    room = lines * max(ceil_div(size, span) * min(kept, span) for span in spans)
    runs, span, width = ceil_div(size, TILE), TILE, min(kept, TILE)
    key = 8 if arithmetic(x.dtype).itemsize == 8 else 4
    buffers = [_aligned(room * nbytes) for nbytes in (key, 4)]
    starts = (0, buffers[0], sum(buffers), sum(buffers) + buffers[0])
    keys, origins, more_keys, more_origins = map(Scratch, starts)
    make = partial(make, "reduce/topk_merge.cu", block=TILE, scratch=2 * sum(buffers))
    constants = (("LARGEST", bool(op.largest)), ("WARPS", TILE // 32))
    yield make(
        "sort_tiles",
        grid=(lines * runs, 1, 1),
        args={
            **{"x": x, "keys": keys, "places": origins},
            **{"size": size, "inner": inner, "tiles": runs, "width": width},
        },
        constants=(*constants, ("LAST", False)),
    )
    while runs > 1:
        both, count = min(kept, 2 * span), lines * runs * width
        is_last = runs == 2
        yield make(
            "merge_runs",
            grid=(ceil_div(count, TILE), 1, 1),
            args={
                **{"x": x, "keys": keys, "places": origins},
                "merged_keys": None if is_last else more_keys,
                "merged_places": None if is_last else more_origins,
                "values": y if is_last else None,
                "indices": places if is_last else None,
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


def _aligned(nbytes: int) -> int:
    return ceil_div(nbytes, 256) * 256
