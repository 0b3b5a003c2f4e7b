"""Cumulative sums and products along an axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import isqrt, prod

from ....runtime.ir.dtypes import int32, int64
from ....runtime.ops.reduce import CumProd, CumSum, Cumulative
from ....runtime.ops.shapes import normalize_axis
from ..algorithms.registry import Answer, kernel, need_dtypes
from ..codegen.elementwise import NUMBERS
from ..codegen.scan_kernel import plain_scan, suits
from ..recipe.launch import THREADS, Launch
from ..recipe.operands import Ints, Scratch, Tensor, ceil_div
from ..recipe.source import C_TYPES, arithmetic

#: Elements per step of a block of `accumulate_rows`.
TILE = 2048

#: Target numbers of blocks and threads: lines are split into chunks until they are reached.
BLOCKS, ENOUGH = 1024, 1 << 18


@kernel(CumSum, CumProd)
def cumulative(op: Cumulative, y: Tensor, x: Tensor, axis: Tensor) -> Answer:
    """Scan every line, or chunks of few long ones after computing the total of each chunk."""
    refused = need_dtypes(NUMBERS, x) or need_dtypes((int32, int64), axis)
    if refused or not x.rank:
        return refused or "a scalar has no axis"
    compute = arithmetic(x.dtype)
    kind, sums = C_TYPES[compute], isinstance(op, CumSum)
    make = partial(
        Launch,
        "reduce/cumulative.cu",
        block=THREADS,
        types=(("T", x.dtype), ("I", axis.dtype), ("A", compute)),
        constants=(
            *(("WARPS", THREADS // 32), ("RANK", x.rank)),
            *(("REVERSE", bool(op.reverse)), ("EXCLUSIVE", bool(op.exclusive))),
        ),
        code=(
            f"constexpr {kind} START = {int(not sums)};\n"
            f"__device__ __forceinline__ {kind} combine({kind} a, {kind} b)"
            f" {{ return a {'+' if sums else '*'} b; }}"
        ),
    )
    if axis.known is None:
        lines = x.size // max(1, min(x.dims))
        args = {"x": x, "axis": axis, "y": y, "size": x.size, "sizes": x.dims}
        return make("accumulate", grid=(ceil_div(lines, THREADS), 1, 1), args=args)
    along = normalize_axis(axis.ints[0], x.rank)
    if suits(x.dims, along):
        return plain_scan(op, y, x, along)
    return _along(make, y, x, (prod(x.dims[:along]), x.dims[along], prod(x.dims[along + 1 :])))


def _along(make: Callable[..., Launch], y: Tensor, x: Tensor, sizes: Ints) -> Answer:
    """Return the launches for lines [outer][size][inner].

    Args:
        make: makes a launch of an entry of `cumulative.cu`.
        y: the totals.
        x: the elements.
        sizes: outer, size and inner.
    """
    outer, size, inner = sizes
    if inner == 1:
        tiles = ceil_div(size, TILE)
        chunk = TILE * ceil_div(tiles, max(1, min(tiles, BLOCKS // max(1, outer))))
        name, counted = "rows", {}
        blocks = threads = outer * ceil_div(size, chunk)
    else:
        maximum = min(ceil_div(ENOUGH, max(1, outer * inner)), isqrt(size))
        chunk = ceil_div(size, max(1, maximum))
        name, threads = "columns", outer * inner * ceil_div(size, max(1, chunk))
        blocks, counted = ceil_div(threads, THREADS), {"count": threads}
    chunks = ceil_div(size, max(1, chunk))
    lines = {"size": size, "inner": inner, "chunk": chunk, "chunks": chunks}
    args, grid = {"x": x, "totals": Scratch(0), **counted, "l": lines}, (blocks, 1, 1)
    note = f"{size} by {chunk}" if chunks > 1 else f"{size}"
    last = make(f"accumulate_{name}", grid=grid, args={**args, "y": y}, note=note)
    nbytes = threads * arithmetic(x.dtype).itemsize
    if chunks == 1:
        return replace(last, args={**last.args, "totals": None})
    first = make(f"total_{name}", grid=grid, args=args)
    return replace(first, scratch=nbytes), replace(last, scratch=nbytes)
