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
from ..recipe.launch import THREADS, Launch
from ..recipe.operands import Ints, Scratch, Tensor, ceil_div
from ..recipe.source import C_TYPES, arithmetic

#: Elements per step of a block of `accumulate_rows`, and minimum line length for it.
TILE, LONG = 2048, 256
#: Minimum length of a line for which it gets a warp.
SHORT = 8

#: Warps of a block that adds up 32 lines side by side, and their maximum length.
TOGETHER = {8: 256, 32: 2048}

#: Target numbers of blocks and threads: lines are split into chunks until they are reached.
BLOCKS, ENOUGH = 1024, 1 << 18


@kernel(CumSum, CumProd)
def cumulative(op: Cumulative, y: Tensor, x: Tensor, axis: Tensor) -> Answer:
    """Scan every line, or chunks of it after computing the total of each chunk."""
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
    if inner == 1 and SHORT <= size <= LONG:
        args = {"x": x, "y": y, "count": outer, "l": dict(size=size, inner=1, chunk=size, chunks=1)}
        grid = (ceil_div(outer, THREADS // 32), 1, 1)
        return make("accumulate_short", grid=grid, args=args, note=f"{size}")
    if 1 < size <= max(TOGETHER.values()) and inner > 1 and outer * inner < ENOUGH:
        return _together(make, y, x, sizes)
    if inner == 1 and size > LONG:
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


def _together(make: Callable[..., Launch], y: Tensor, x: Tensor, sizes: Ints) -> Launch:
    """Return the launch in which each block has 32 lines side by side; see `_along`."""
    outer, size, inner = sizes
    warps = next(n for n, most in TOGETHER.items() if size <= most)
    chunk = ceil_div(size, warps)
    lines = {"size": size, "inner": inner, "chunk": chunk, "chunks": ceil_div(size, chunk)}
    launch = make(
        "accumulate_together",
        grid=(ceil_div(outer * inner, 32), 1, 1),
        args={"x": x, "y": y, "count": outer * inner, "l": lines},
        note=f"{size} by {chunk}",
    )
    constants = tuple((k, warps if k == "WARPS" else n) for k, n in launch.constants)
    return replace(launch, block=32 * warps, constants=constants)
