"""The largest elements."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from ....runtime.ops.search import TopK
from ....runtime.ops.shapes import normalize_axis
from ..algorithms.registry import Answer, kernel, need_dtypes
from ..codegen.elementwise import NUMBERS
from ..recipe.launch import THREADS, Launch
from ..recipe.layout import ceil_div
from ..recipe.operands import Scratch, Tensor
from ..recipe.source import arithmetic

#: Lines of that many elements are thinned out before they are ranked, by blocks of that many
#: threads.
THINNED, SELECTING = 512, 1024


@kernel(TopK, outputs=2)
def top_k(
    op: TopK, y: Tensor | None, x: Tensor, k: Tensor, *, more: tuple[Tensor | None, ...] = ()
) -> Answer:
    """Rank every element by comparing it with all others, of its line or of what is left of it."""
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
        "reduce/topk.cu",
        types=(("T", x.dtype), ("A", arithmetic(x.dtype))),
        note=f"{kept} of {size}",
    )

    def rank(source: Tensor | Scratch, origins: Scratch | None, count: int, size: int) -> Launch:
        return make(
            "top_k",
            grid=(ceil_div(count, THREADS) if kept else 0, 1, 1),
            block=THREADS,
            args={
                **{"x": source, "origins": origins, "values": y, "places": places},
                **{"count": count, "size": size, "k": kept, "inner": inner},
            },
            constants=(("LARGEST", bool(op.largest)), ("WARPS", THREADS // 32)),
        )

    if size < THINNED or 2 * kept > size or not kept:
        return rank(x, None, x.size, size)
    values, origins = Scratch(0), Scratch(ceil_div(result.size * x.dtype.itemsize, 256) * 256)
    thin = make(
        "thin_out",
        grid=(x.size // size, 1, 1),
        block=SELECTING,
        args={
            **{"x": x, "values": values, "origins": origins},
            **{"size": size, "k": kept, "inner": inner},
        },
        constants=(("LARGEST", bool(op.largest)), ("WARPS", SELECTING // 32)),
    )
    nbytes = origins.offset + 4 * result.size
    last = rank(values, origins, result.size, kept)
    return replace(thin, scratch=nbytes), replace(last, scratch=nbytes)
