"""Operators with data-dependent output sizes: kernels fill upper bounds, and count."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from ....runtime.ir.dtypes import (
    FLOATS,
    DType,
    bool_,
    float32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ....runtime.ops.counted import (
    CountedCompress,
    CountedNonMaxSuppression,
    CountedNonZero,
    CountedUnique,
)
from ....runtime.ops.gather import Compress
from ....runtime.ops.search import NonZero
from ....runtime.ops.shapes import normalize_axis
from ..algorithms.registry import Answer, kernel, need_dtypes
from ..codegen.elementwise import NUMBERS
from ..recipe.launch import THREADS, Launch
from ..recipe.operands import Operand, Scratch, Tensor, ceil_div
from ..recipe.source import arithmetic

#: Minimum elements per chunk, and maximum number of chunks; one block per chunk.
CHUNK, CHUNKS = 2048, 1024
#: Threads per class in the search for the best box.
SUPPRESSING = 512
#: Word types for copies, by size in bytes.
_MOVED: dict[int, DType] = {1: uint8, 2: uint16, 4: uint32, 8: uint64}


def _found(
    x: Tensor, total: Tensor | None, moved: DType, finish: Callable[..., Launch]
) -> tuple[Launch, ...]:
    """Return the launches that list the indices of non-zero elements of `x`, and a final one.

    Args:
        x: the elements.
        total: receives their number, if it is read.
        moved: the element type that the final launch copies.
        finish: returns the final launch, from a function that makes launches, the list and the
            number.
    """
    chunk = CHUNK * ceil_div(ceil_div(x.size, CHUNK), CHUNKS) or CHUNK
    chunks = max(1, ceil_div(x.size, chunk))
    listed = Scratch(ceil_div(8 * (chunks + 1), 256) * 256)
    number = total or Scratch(8 * chunks)
    make = partial(
        Launch,
        "reduce/nonzero.cu",
        block=THREADS,
        types=(("T", x.dtype), ("A", arithmetic(x.dtype)), ("M", moved)),
        constants=(("WARPS", THREADS // 32), ("RANK", max(1, x.rank))),
        scratch=listed.offset + 8 * x.size,
    )
    args = {"x": x, "counts": Scratch(0), "size": x.size, "chunk": chunk}
    return (
        make("count_found", grid=(chunks, 1, 1), args=args),
        make("list_found", grid=(chunks, 1, 1), args={**args, "list": listed, "total": number}),
        finish(make, listed, number),
    )


@kernel(NonZero, CountedNonZero, outputs=2)
def non_zero(
    op: NonZero | CountedNonZero,
    y: Tensor | None,
    x: Tensor,
    *,
    more: tuple[Tensor | None, ...] = (),
) -> Answer:
    """List the indices, then convert them to coordinates."""
    if refused := need_dtypes(NUMBERS | {bool_}, x):
        return refused
    if y is None:
        return "its result is unused"
    pitch, sizes = y.dims[1], x.dims or (1,)

    def finish(make: Callable[..., Launch], listed: Scratch, number: Operand) -> Launch:
        grid = (ceil_div(pitch, THREADS) if x.rank else 0, 1, 1)
        args = {"list": listed, "total": number, "y": y, "pitch": pitch, "sizes": sizes}
        return make("coordinates", grid=grid, args=args)

    return _found(x, (*more, None)[0], uint8, finish)


@kernel(Compress, CountedCompress, outputs=2)
def compress(
    op: Compress | CountedCompress,
    y: Tensor | None,
    x: Tensor,
    condition: Tensor,
    *,
    more: tuple[Tensor | None, ...] = (),
) -> Answer:
    """List the indices where the condition is true, then gather."""
    if y is None:
        return "its result is unused"
    if x.dtype.itemsize not in _MOVED:
        return f"elements of {x.dtype.itemsize} bytes"
    dims = (x.size,) if op.axis is None else x.dims
    axis = normalize_axis(op.axis or 0, len(dims))
    pitch = y.size and y.dims[0 if op.axis is None else axis]
    inner = prod(dims[axis + 1 :])

    def finish(make: Callable[..., Launch], listed: Scratch, number: Operand) -> Launch:
        grid = (ceil_div(y.size, THREADS), 1, 1)
        args = {
            **{"x": x, "list": listed, "total": number, "y": y},
            **{"count": y.size, "size": dims[axis], "pitch": pitch, "inner": inner},
        }
        return make("keep", grid=grid, args=args)

    return _found(condition, (*more, None)[0], _MOVED[x.dtype.itemsize], finish)


@kernel(CountedNonMaxSuppression, outputs=2)
def non_max_suppression(
    op: CountedNonMaxSuppression,
    y: Tensor | None,
    boxes: Tensor,
    scores: Tensor,
    maximum: Tensor | None = None,
    overlap: Tensor | None = None,
    minimum: Tensor | None = None,
    *,
    more: tuple[Tensor | None, ...] = (),
) -> Answer:
    """Greedy selection of the best remaining box, one block per class."""
    refused = need_dtypes(FLOATS, boxes) or need_dtypes((boxes.dtype,), scores)
    refused = refused or need_dtypes((int64,), maximum) or need_dtypes((float32,), overlap, minimum)
    if refused:
        return refused
    total = (*more, None)[0]
    if y is None or total is None:
        return "its results are unused"
    images, classes, count = scores.dims
    lists = images * classes
    room = y.dims[0] // max(1, lists)
    kept = Scratch(ceil_div(lists * count, 256) * 256)
    counts = Scratch(kept.offset + ceil_div(4 * lists * room, 256) * 256)
    make = partial(
        Launch,
        "reduce/nms.cu",
        grid=(lists, 1, 1),
        types=(("T", boxes.dtype), ("A", arithmetic(boxes.dtype))),
        scratch=counts.offset + 4 * lists,
    )
    choose = make(
        "suppress",
        block=SUPPRESSING,
        args={
            **{
                "boxes": boxes,
                "scores": scores,
                "most": maximum,
                "limit": overlap,
                "least": minimum,
            },
            **{"dropped": Scratch(0), "kept": kept, "counts": counts},
            **{"classes": classes, "count": count, "room": room},
        },
        constants=(("WARPS", SUPPRESSING // 32), ("CENTRED", bool(op.center_point_box))),
        note=f"{count} boxes",
    )
    write = make(
        "list_kept",
        block=THREADS,
        args={
            **{"kept": kept, "counts": counts, "y": y, "total": total},
            **{"classes": classes, "room": room},
        },
        constants=(("WARPS", THREADS // 32), ("CENTRED", bool(op.center_point_box))),
    )
    return choose, write


@kernel(CountedUnique, outputs=5)
def unique(
    op: CountedUnique, y: Tensor | None, x: Tensor, *, more: tuple[Tensor | None, ...] = ()
) -> Answer:
    """Compare every slice with all others, to find first occurrences and ranks."""
    if refused := need_dtypes(NUMBERS | {bool_}, x):
        return refused
    results = (y, *more)
    if None in results:
        return "some of its results are unused"
    dims = (x.size,) if op.axis is None else x.dims
    axis = normalize_axis(op.axis or 0, len(dims))
    size = dims[axis]
    slices = {"outer": prod(dims[:axis]), "size": size, "inner": prod(dims[axis + 1 :])}
    room = ceil_div(8 * size, 256) * 256
    first, ranks, numbers = (Scratch(i * room) for i in range(3))
    make = partial(
        Launch,
        "reduce/unique.cu",
        grid=(ceil_div(size, THREADS), 1, 1),
        block=THREADS,
        types=(("T", x.dtype), ("A", arithmetic(x.dtype))),
        constants=(("WARPS", THREADS // 32), ("SORTED", bool(op.sorted))),
        scratch=3 * room,
    )
    found = {"x": x, "first": first, "s": slices}
    ranked = {**found, "ranks": ranks, "numbers": numbers}
    names = ("y", "indices", "inverse", "counts", "total")
    return (
        make("find_first", args=found),
        make("rank_first", args=ranked),
        make("put_first", args={**ranked, **dict(zip(names, results, strict=True))}),
    )
