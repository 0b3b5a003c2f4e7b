"""Operators that only move elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import gcd, prod

import numpy as np

from ....runtime.ir.types import Array
from ....runtime.ops.elementwise import BitCast
from ....runtime.ops.movement import (
    CenterCropPad,
    Concat,
    DepthToSpace,
    Expand,
    Pad,
    ReverseSequence,
    Slice,
    SpaceToDepth,
    Split,
    Tile,
    Transpose,
    bounds_of_slice,
)
from ....runtime.ops.shapes import normalize_axes, normalize_axis
from ..algorithms.registry import Answer, kernel, need_known
from ..codegen.copies import (
    THREADS,
    copied,
    copy_strided,
    place,
    transposition,
    transposition_apart,
)
from ..recipe.launch import Launch
from ..recipe.operands import (
    Given,
    Ints,
    Packed,
    Tensor,
    broadcast_strides,
    ceil_div,
    divisors,
    index_type,
    merge,
    order,
    widest_words,
    words_of,
)

#: Maximum number of inputs of a launch: all their addresses are parameters.
MAX_CONCATENATED = 64
#: Blocks of a concatenation that fill a GPU; of more, each copies several words of a thread.
FILLING = 1 << 10


@kernel(Transpose)
def transpose(op: Transpose, y: Tensor, x: Tensor) -> Answer:
    """Permute axes: with tiles if two of them are swapped, else element by element."""
    perm = op.perm if op.perm is not None else tuple(reversed(range(x.rank)))
    moves = tuple(x.strides[axis] for axis in normalize_axes(perm, x.rank))
    sizes, (walk,) = merge(y.dims, (moves,))
    if len(sizes) in (2, 3) and walk[-1] != 1 and walk[-2] == 1:
        batch = sizes[0] if len(sizes) == 3 else 1
        rows, columns = sizes[-1], sizes[-2]
        contiguous = walk[-1] == columns and (batch == 1 or walk[0] == rows * columns)
        if contiguous and batch <= 65535:
            word = words_of(x.dtype)
            launch = transposition(batch, rows, columns, (columns, rows), word, rows)
            return replace(launch, args={**launch.args, "x": x, "y": y})
    if len(sizes) >= 2 and walk[-1] != 1 and walk[-2] == 1:
        matrix = sizes[-1], sizes[-2]
        apart = transposition_apart(sizes[:-2], (*walk[:-2], walk[-1]), matrix, words_of(x.dtype))
        if apart is not None:
            return replace(apart, args={**apart.args, "x": x, "y": y})
    return copy_strided(y, x, moves)


@kernel(Expand)
def expand(op: Expand, y: Tensor, x: Tensor, shape: Tensor) -> Answer:
    """Repeat elements along new axes and axes of size 1."""
    return copy_strided(y, x, broadcast_strides(x.dims, x.format, y.dims))


@kernel(Slice, follows=True)
def slice_(
    op: Slice,
    y: Tensor,
    x: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Answer:
    """Copy slices with constant bounds."""
    refused = need_known(starts=starts, ends=ends, axes=axes, steps=steps)
    if refused:
        return refused
    first, last = _ints(starts), _ints(ends)
    along = normalize_axes(_ints(axes) or range(len(first)), x.rank)
    moves, offset = list(x.strides), 0
    for axis, a, b, step in zip(along, first, last, _ints(steps) or (1,) * len(first), strict=True):
        begin, _ = bounds_of_slice(a, b, step, x.dims[axis])
        offset += begin * x.strides[axis]
        moves[axis] *= step
    return replace(copy_strided(y, x, tuple(moves), offset), pitched=(x, y))


def _ints(operand: Tensor | None) -> Ints:
    return () if operand is None else operand.ints


@kernel(Split, outputs=64, follows=True)
def split(
    op: Split,
    y: Tensor | None,
    x: Tensor,
    sizes: Tensor | None = None,
    *,
    more: tuple[Tensor | None, ...] = (),
) -> Answer:
    """Copy each part."""
    refused = need_known(split=sizes)
    if refused:
        return refused
    axis = normalize_axis(op.axis, x.rank)
    launches: list[Launch] = []
    outputs = (y, *more)
    given = sizes.ints if sizes is not None and sizes.known is not None else ()
    equal = ceil_div(x.dims[axis], len(outputs))
    offset = 0
    for i, part in enumerate(outputs):
        if part is not None:
            launch = copy_strided(part, x, x.strides, offset * x.strides[axis])
            launches.append(replace(launch, pitched=(x, part)))
        offset += given[i] if given else equal if part is None else part.dims[axis]
    return tuple(launches)


@kernel(Tile)
def tile(op: Tile, y: Tensor, x: Tensor, repeats: Tensor) -> Answer:
    """Repeat the whole along each axis."""
    sizes: list[int] = []
    moves: list[int] = []
    for result, size, stride in zip(y.dims, x.dims, x.strides, strict=True):
        sizes += [result // size if size else 0, size]
        moves += [0, stride]
    return copied(y, x, tuple(sizes), tuple(moves))


@kernel(DepthToSpace, follows=True)
def depth_to_space(op: DepthToSpace, y: Tensor, x: Tensor) -> Answer:
    """Rearrange channels to blocks of pixels."""
    (n, c, h, w), b = x.dims, op.blocksize
    step, row, pixel = x.strides[1], x.strides[2], x.strides[3]
    groups = c // (b * b)
    column_first = op.mode == "DCR"
    of_group = step if column_first else step * b * b
    of_row, of_column = (b * groups * step, groups * step) if column_first else (b * step, step)
    axes = (
        ((n, x.strides[0]),),
        ((groups, of_group),),
        ((h, row), (b, of_row)),
        ((w, pixel), (b, of_column)),
    )
    return _cut_and_joined(y, x, axes)


@kernel(SpaceToDepth, follows=True)
def space_to_depth(op: SpaceToDepth, y: Tensor, x: Tensor) -> Answer:
    """Rearrange blocks of pixels to channels."""
    (n, c, h, w), b = x.dims, op.blocksize
    batch, step, row, pixel = x.strides
    blocks = ((b, row), (b, pixel))
    channels = ((c, step),)
    made = blocks + channels if op.mode == "DCR" else channels + blocks
    axes = (((n, batch),), made, ((h // b, b * row),), ((w // b, b * pixel),))
    return _cut_and_joined(y, x, axes)


def _cut_and_joined(y: Tensor, x: Tensor, axes: Sequence[tuple[Ints, ...]]) -> Launch:
    """Return `copy_strided` where axes of `y` combine several of x: pairs of size and stride."""
    parts = [part for axis in order(y.rank, y.format) for part in axes[axis]]
    return copied(y, x, tuple(size for size, _ in parts), tuple(step for _, step in parts))


@kernel(Concat, follows=True)
def concat(op: Concat, y: Tensor, *inputs: Tensor) -> Answer:
    """Copy all inputs, in one launch up to `MAX_CONCATENATED`."""
    rank = y.rank
    axis = normalize_axis(op.axis, rank)
    axes = order(rank, y.format)
    place = axes.index(axis)
    rows = prod(y.dims[a] for a in axes[:place])
    inner = prod(y.dims[a] for a in axes[place + 1 :])
    present = [x for x in inputs if x.size]
    parts = [(x, x.dims[axis] * inner) for x in present]
    columns = y.dims[axes[-1]] if place < len(axes) - 1 else 0
    starts = tuple(accumulate((width for _, width in parts), initial=0))
    word = words_of(y.dtype)
    index = index_type(2 * max(y.extent, *(x.extent for x in inputs)))
    launches: list[Launch] = []
    for first in range(0, max(1, len(parts)), MAX_CONCATENATED):
        some = parts[first : first + MAX_CONCATENATED]
        widths = [width for _, width in some]
        whole = [columns for x, _ in some if x.pitch and columns]
        vector = next(
            v
            for v in (16 // word.itemsize, 8 // word.itemsize, 4 // word.itemsize, 1)
            if v >= 1 and all(n % v == 0 for n in (*widths, *whole, starts[first], starts[-1]))
        )
        blocks = ceil_div(rows * max(widths, default=0), THREADS * vector)
        items = next(n for n in (8, 4, 2, 1) if n == 1 or blocks >= n * FILLING)
        args: dict[str, Given] = {"y": y, "rows": rows, "pitch": y.pitch or starts[-1]}
        for i, (x, width) in enumerate(some):
            line = columns if x.pitch and columns else width
            args |= {f"x{i}": _in_order(x, axes), f"width{i}": width, f"columns{i}": line}
            args |= {f"pitch{i}": x.pitch or line, f"start{i}": starts[first + i]}
        numbers = " ".join(f"X({i})" for i in range(len(some)))
        apart = bool(columns) and any(x.pitch for x, _ in some)
        launches.append(
            Launch(
                "move/concat.cu",
                "concat",
                grid=(ceil_div(blocks, items), len(some), 1),
                block=THREADS,
                args=args,
                types=(("Index", index), ("T", word)),
                constants=(("VECTOR", vector), ("ITEMS", items), ("COLUMNS", apart)),
                code=f"#define INPUTS(X) {numbers}",
                note=f"{len(some)} inputs",
                pitched=(*(x for x, _ in some), *([] if columns else [y])),
            )
        )
    return tuple(launches)


def _in_order(x: Tensor, axes: Sequence[int]) -> Tensor | Packed:
    """Return a constant in another order of axes than its own; other tensors have it already."""
    if x.data is None or tuple(axes) == tuple(range(x.rank)):
        return x
    return Packed((x.value,), ("axes", *axes), partial(_transposed, axes=tuple(axes)))


def _transposed(data: Array, axes: Ints) -> Array:
    return np.ascontiguousarray(data.transpose(axes))


_MODES = ("constant", "edge", "reflect", "wrap")


@kernel(Pad, follows=True)
def pad(
    op: Pad,
    y: Tensor,
    x: Tensor,
    pads: Tensor,
    value: Tensor | None = None,
    axes: Tensor | None = None,
) -> Answer:
    """Add elements before and after, or crop where `pads` is negative."""
    refused = need_known(pads=pads, axes=axes)
    if refused:
        return refused
    along = range(x.rank) if axes is None else normalize_axes(axes.ints, x.rank)
    amounts = pads.ints
    before, after = [0] * x.rank, [0] * x.rank
    for i, axis in enumerate(along):
        before[axis], after[axis] = amounts[i], amounts[i + len(amounts) // 2]
    return _padded(y, x, value, tuple(before), tuple(after), _MODES.index(op.mode))


@kernel(CenterCropPad, follows=True)
def center_crop_pad(op: CenterCropPad, y: Tensor, x: Tensor, wanted: Tensor) -> Answer:
    """Crop the centre, or pad it with zeros."""
    more = [want - have for want, have in zip(y.dims, x.dims, strict=True)]
    before = tuple(n // 2 if n >= 0 else -(-n // 2) for n in more)
    after = tuple(n - first for n, first in zip(more, before, strict=True))
    return _padded(y, x, None, before, after, 0)


def _padded(
    y: Tensor, x: Tensor, value: Tensor | None, before: Ints, after: Ints, mode: int
) -> Answer:
    """Return a launch that pads, after cropping where amounts are negative."""
    if not x.rank:
        return copy_strided(y, x, ())
    sizes = tuple(n + min(a, 0) + min(b, 0) for n, a, b in zip(x.dims, before, after, strict=True))
    if mode and y.size and not all(sizes):
        return f"{x.value.tensor} has no elements to repeat"
    offset = sum(-min(a, 0) * step for a, step in zip(before, x.strides, strict=True))
    grown = tuple(max(a, 0) for a in before)
    left = tuple(max(n, 0) for n in sizes)
    layout = order(x.rank, x.format)
    of_axes = {
        **{"results": y.dims, "before": grown, "sizes": left},
        **{"strides": x.strides, "places": y.strides},
    }
    args: dict[str, Ints] = {
        name: tuple(these[a] for a in layout) for name, these in of_axes.items()
    }
    word = words_of(x.dtype)
    zeros = value is None or (value.data is not None and not any(value.data.tobytes()))
    if zeros and grown[layout[-1]] == 0 and left[layout[-1]] == y.dims[layout[-1]]:
        run = gcd(*args["strides"][:-1], *args["places"][:-1], y.dims[layout[-1]], offset)
        word = widest_words(x.dtype, run)
    per = word.itemsize // x.dtype.itemsize
    if per > 1:  # whole rows of words
        for name in ("results", "sizes"):
            args[name] = (*args[name][:-1], args[name][-1] // per)
        for name in ("strides", "places"):
            args[name] = (*(step // per for step in args[name][:-1]), 1)
    launch = place(
        "pad",
        y,
        word,
        {
            **{"x": x, "value": None if zeros else value, "offset": offset // per},
            **{**args, **divisors(args["results"])},
        },
        per,
        RANK=x.rank,
        MODE=mode,
    )
    return replace(launch, pitched=(x, y))


@kernel(ReverseSequence)
def reverse_sequence(op: ReverseSequence, y: Tensor, x: Tensor, lengths: Tensor) -> Answer:
    """Reverse the beginning of each sequence."""
    args = {"x": x, "lengths": lengths, "second": x.dims[1], "inner": prod(x.dims[2:])}
    first = op.time_axis == 0
    return place("reverse_sequence", y, words_of(x.dtype), args, TIME_FIRST=first)


@kernel(BitCast)
def bit_cast(op: BitCast, y: Tensor, x: Tensor) -> Answer:
    """Copy the bytes."""
    return copy_strided(y, x, x.strides)
