"""Operators that move elements and compute nothing, and changes of format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ...runtime.backend import Format, View
from ...runtime.dtypes import DType, uint8, uint16, uint32, uint64
from ...runtime.ops.elementwise import BitCast
from ...runtime.ops.movement import (
    Concat,
    DepthToSpace,
    Expand,
    Slice,
    SpaceToDepth,
    Split,
    Tile,
    Transpose,
    bounds_of_slice,
)
from ...runtime.ops.shape import ConstantOfShape
from ...runtime.ops.shapes import normalize_axes, normalize_axis
from ...runtime.types import Array
from .launch import Launch
from .layout import Ints, broadcast_strides, ceil_div, merge, order
from .operands import Given, Packed, Tensor, index_type
from .registry import Answer, kernel, need_known

THREADS = 256
SIDE = 32
MOST_CONCATENATED = 64
_WORDS: dict[int, DType] = {1: uint8, 2: uint16, 4: uint32, 8: uint64}


def words_of(dtype: DType) -> DType:
    """Return the unsigned integer as large as an element: moving needs no other type."""
    return _WORDS[dtype.itemsize]


# ── formats ──────────────────────────────────────────────────────────────────────────────────────


def reformat(dst: View, src: View) -> Launch:
    """Return the launch that changes the order of elements; its addresses `x` and `y` are null.

    Args:
        dst: where to; either may be a slice of an image with more channels.
        src: where from, of the same type.
    """
    dims = src.type.dims
    images, channels, pixels = dims[0], dims[1], prod(dims[2:])
    word = words_of(src.type.dtype)
    source, target = src.format.physical(dims)[-1], dst.format.physical(dims)[-1]
    of_source, of_target = src.pitch or source, dst.pitch or target
    if Format.PLAIN not in (src.format, dst.format):
        count = images * pixels * target
        return Launch(
            "transpose.cu",
            "repitch",
            grid=(ceil_div(count, THREADS), 1, 1),
            block=THREADS,
            args={
                **{"x": None, "y": None, "count": count, "columns": channels, "width": target},
                **{"pitch_x": of_source, "pitch_y": of_target},
            },
            types=(("T", word),),
        )
    if src.format is Format.PLAIN:
        return transposition(images, channels, pixels, (pixels, of_target), word, target)
    return transposition(images, pixels, channels, (of_source, pixels), word, pixels)


def transposition(
    batch: int, rows: int, columns: int, pitches: Ints, word: DType, width: int
) -> Launch:
    """Return the transposition of matrices, into rows of `width` elements, zeros behind `rows`."""
    pitch_x, pitch_y = pitches
    tiles = ceil_div(columns, SIDE)
    return Launch(
        "transpose.cu",
        "transpose",
        grid=(tiles * ceil_div(width, SIDE), batch, 1),
        block=THREADS,
        args={
            **{"x": None, "y": None, "rows": rows, "columns": columns, "width": width},
            **{"pitch_x": pitch_x, "pitch_y": pitch_y, "tiles": tiles},
            **{"batch_x": rows * pitch_x, "batch_y": columns * pitch_y},
        },
        types=(("T", word),),
        note=f"{batch} x {rows} x {columns}",
    )


# ── operators ────────────────────────────────────────────────────────────────────────────────────


@kernel(Transpose)
def transpose(op: Transpose, y: Tensor, x: Tensor) -> Answer:
    """Permute axes: by tiles where two of them change places, else element by element."""
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
    return copy_strided(y, x, moves)


@kernel(Expand)
def expand(op: Expand, y: Tensor, x: Tensor, shape: Tensor) -> Answer:
    """Repeat elements along new axes and along those of size 1."""
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
    """Copy what windows of constant bounds leave over."""
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


def copy_strided(y: Tensor, x: Tensor, moves: Ints, offset: int = 0) -> Launch:
    """Return the launch that fills `y` with elements of `x`.

    Args:
        y: the result, in any format; it may be a slice.
        x: where from.
        moves: distance in `x` of neighbours along each axis of `y`; may be 0 or negative.
        offset: where in `x` the first element lies.
    """
    axes = order(y.rank, y.format)
    places = tuple(y.strides[axis] for axis in axes) if y.pitch else None
    ordered = tuple(moves[axis] for axis in axes)
    return _copied(y, x, tuple(y.dims[axis] for axis in axes), ordered, offset, places)


def _copied(
    y: Tensor, x: Tensor, dims: Ints, moves: Ints, offset: int = 0, places: Ints | None = None
) -> Launch:
    """Return `copy_strided` with all axes as they lie in the result: `dims`, some perhaps cut.

    Args:
        y: the result.
        x: where from.
        dims: sizes of the axes, outermost first.
        moves: strides of x along them.
        offset: where in `x` the first element lies.
        places: strides of y, where it is a slice.
    """
    sizes, walks = merge(dims, (moves, places) if places else (moves,))
    walk, word = walks[0], words_of(x.dtype)
    index = index_type(x.extent, y.extent)
    vector = 1
    if all(steps[-1] == 1 for steps in walks):
        outer = (step for steps in walks for step in steps[:-1])
        needed = (sizes[-1], offset, *outer)
        vector = next(
            v
            for v in (16 // word.itemsize, 8 // word.itemsize, 4 // word.itemsize, 1)
            if v >= 1 and all(n % v == 0 for n in needed)
        )
    return Launch(
        "shape.cu",
        "copy_strided",
        grid=(ceil_div(y.size, THREADS * vector), 1, 1),
        block=THREADS,
        args={
            **{"x": x, "y": y, "count": y.size, "offset": offset},
            **{"sizes": sizes, "strides": walk, "places": walks[-1]},
        },
        types=(("Index", index), ("T", word)),
        constants=(("RANK", len(sizes)), ("VECTOR", vector), ("GAPS", places is not None)),
        note=f"{len(sizes)} axes",
    )


@kernel(ConstantOfShape)
def constant_of_shape(op: ConstantOfShape, y: Tensor, shape: Tensor) -> Answer:
    """Repeat one element."""
    return fill(y, op.fill)


def fill(y: Tensor, element: Array) -> Launch:
    """Return what fills a tensor with one element of its dtype."""
    return replace(_given(y, element.reshape(1), (0,) * y.rank), note="fill")


def given(y: Tensor, data: Array) -> Launch:
    """Return what writes elements that are known on the host, of the shape and dtype of `y`."""
    return _given(y, data, y.strides)


def _given(y: Tensor, data: Array, moves: Ints) -> Launch:
    source = Packed((), ("given", y.dtype.name, data.tobytes()), lambda: data)
    launch = copy_strided(y, y, moves)
    return replace(launch, args={**launch.args, "x": source})


@kernel(BitCast)
def bit_cast(op: BitCast, y: Tensor, x: Tensor) -> Answer:
    """Copy the bytes."""
    return copy_strided(y, x, x.strides)


@kernel(Tile)
def tile(op: Tile, y: Tensor, x: Tensor, repeats: Tensor) -> Answer:
    """Repeat the whole along each axis."""
    sizes: list[int] = []
    moves: list[int] = []
    for result, size, stride in zip(y.dims, x.dims, x.strides, strict=True):
        sizes += [result // size if size else 0, size]
        moves += [0, stride]
    return _copied(y, x, tuple(sizes), tuple(moves))


@kernel(DepthToSpace, follows=True)
def depth_to_space(op: DepthToSpace, y: Tensor, x: Tensor) -> Answer:
    """Make blocks of pixels of channels."""
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
    """Make channels of blocks of pixels."""
    (n, c, h, w), b = x.dims, op.blocksize
    batch, step, row, pixel = x.strides
    blocks = ((b, row), (b, pixel))
    channels = ((c, step),)
    made = blocks + channels if op.mode == "DCR" else channels + blocks
    axes = (((n, batch),), made, ((h // b, b * row),), ((w // b, b * pixel),))
    return _cut_and_joined(y, x, axes)


def _cut_and_joined(y: Tensor, x: Tensor, axes: Sequence[tuple[Ints, ...]]) -> Launch:
    """Return `copy_strided` where axes of `y` are several of x: pairs of size and stride."""
    parts = [part for axis in order(y.rank, y.format) for part in axes[axis]]
    return _copied(y, x, tuple(size for size, _ in parts), tuple(step for _, step in parts))


@kernel(Concat, follows=True)
def concat(op: Concat, y: Tensor, *inputs: Tensor) -> Answer:
    """Copy all inputs in one launch."""
    rank = y.rank
    axis = normalize_axis(op.axis, rank)
    axes = order(rank, y.format)
    place = axes.index(axis)
    rows = prod(y.dims[a] for a in axes[:place])
    inner = prod(y.dims[a] for a in axes[place + 1 :])
    present = [x for x in inputs if x.size]
    if len(present) > MOST_CONCATENATED:
        return f"{len(present)} inputs"
    widths = [x.dims[axis] * inner for x in present]
    starts = [sum(widths[:i]) for i in range(len(widths))]
    word = words_of(y.dtype)
    vector = next(
        v
        for v in (16 // word.itemsize, 8 // word.itemsize, 4 // word.itemsize, 1)
        if v >= 1 and all(width % v == 0 for width in widths)
    )
    index = index_type(y.extent)
    args: dict[str, Given] = {"y": y, "rows": rows, "pitch": y.pitch or sum(widths)}
    for i, (x, width, start) in enumerate(zip(present, widths, starts, strict=True)):
        args |= {f"x{i}": x, f"width{i}": width, f"pitch{i}": x.pitch or width, f"start{i}": start}
    blocks = ceil_div(rows * max(widths, default=0), THREADS * vector)
    numbers = " ".join(f"X({i})" for i in range(len(present)))
    return Launch(
        "concat.cu",
        "concat",
        grid=(blocks, len(present), 1),
        block=THREADS,
        args=args,
        types=(("Index", index), ("T", word)),
        constants=(("VECTOR", vector),),
        code=f"#define INPUTS(X) {numbers}",
        note=f"{len(present)} inputs",
        pitched=(y, *present) if place == len(axes) - 1 else (),
    )
