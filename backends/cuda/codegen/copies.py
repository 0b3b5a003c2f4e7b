"""Launches that copy elements: strided copies, format changes, fills."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import gcd, prod

from ....runtime.ir.dtypes import DType, float32
from ....runtime.ir.types import Array, TensorType
from ....runtime.plan.backend import View
from ....runtime.plan.format import Format
from ..recipe.launch import Launch, each
from ..recipe.operands import (
    Arguments,
    Ints,
    Packed,
    Tensor,
    as_it_is,
    ceil_div,
    divisors,
    index_type,
    merge,
    order,
    rows_in_halves,
    strides,
    words_of,
)
from ..recipe.source import arithmetic
from .epilogue import order_of_halves
from .tiled_copies import copy_tiles

THREADS = 256
SIDE = 32
#: Maximum elements of a side of a matrix that is transposed by chunks.
MOST_FEW = 16
#: Words that `transpose.cu` loads and stores per element, as `copy_tiles` counts them: its lanes
#: are next to one another on both sides.
TRANSPOSED = 1.6
#: Maximum blocks along y and z.
MOST_BLOCKS = 65535
#: Threads of a block that ranks indices, and how many it compares at most; threads of one that
#: sorts more of them, how many such blocks there are, and the indices that one lists at once.
RANKING, RANKED = 256, 1 << 11
SORTING, MOST_SORTING, SORTED_AT_ONCE = 512, 132, 4096


def reformat(dst: View, src: View) -> Launch:
    """Return the launch that changes the memory format; its addresses `x` and `y` are null.

    Args:
        dst: the target; either may be a slice of an image with more channels.
        src: the source, of the same type.
    """
    if src.format.in_halves or dst.format.in_halves:
        return _changing_halves(dst, src)
    if dst.format is Format.SORTED:
        return sorting(src.type)
    dims = src.type.dims
    images, channels, pixels = dims[0], dims[1], prod(dims[2:])
    word = words_of(src.type.dtype)
    source, target = src.format.physical(dims)[-1], dst.format.physical(dims)[-1]
    of_source, of_target = src.pitch or source, dst.pitch or target
    if Format.CONTIGUOUS not in (src.format, dst.format):
        count = images * pixels * target
        return each(
            "move/transpose.cu",
            "repitch",
            count,
            block=THREADS,
            args={
                **{"x": None, "y": None, "count": count, "columns": channels, "width": target},
                **{"pitch_x": of_source, "pitch_y": of_target},
            },
            types=(("T", word),),
        )
    if src.format is Format.CONTIGUOUS:
        return transposition(images, channels, pixels, (pixels, of_target), word, target)
    return transposition(images, pixels, channels, (of_source, pixels), word, pixels)


def _changing_halves(dst: View, src: View) -> Launch:
    """Return the launch that cuts rows into halves, or adds halves up."""
    halves, plain = (src, dst) if src.format.in_halves else (dst, src)
    return into_halves(src.type, plain.pitch, back=halves is src, format=halves.format)


def into_halves(
    type_: TensorType, pitch: int = 0, *, back: bool = False, format: Format = Format.HALVES
) -> Launch:
    """Return the launch that cuts rows into halves, or adds halves up; see `reformat`.

    Args:
        type_: of the tensor.
        pitch: elements from one row of floats to the next, if there are gaps.
        back: whether halves become floats.
        format: of the halves.
    """
    *outer, terms = format.physical(type_.dims)
    rows = rows_in_halves(type_.dims, format)
    return Launch(
        "gemm/pack_halves.cu",
        "from_halves" if back else "into_halves",
        grid=(ceil_div(rows, 16), ceil_div(terms, 64), 1),
        block=THREADS,
        args={
            **{"x": None, "y": None, "count": prod(outer), "rows": rows, "terms": terms},
            "pitch": pitch or terms,
        },
        types=(("T", float32),),
        code=f'#define KIND "f16"\n{order_of_halves(format)}',
    )


def sorting(type_: TensorType) -> Launch:
    """Return the launch that sorts indices of rows; its addresses `x` and `y` are null."""
    args: Arguments = {"x": None, "y": None, "count": type_.size}
    if type_.size <= RANKED:
        return Launch(
            "move/rank_rows.cu",
            "rank_rows",
            grid=(ceil_div(type_.size, 32), 1, 1),
            block=RANKING,
            args=args,
            constants=(("WARPS", RANKING // 32), ("ROOM", RANKED)),
        )
    return Launch(
        "move/sort_rows.cu",
        "sort_rows",
        grid=(MOST_SORTING, 1, 1),
        block=SORTING,
        args=args,
        constants=(("WARPS", SORTING // 32), ("ROOM", SORTED_AT_ONCE)),
    )


def transposition(
    batch: int, rows: int, columns: int, pitches: Ints, word: DType, width: int
) -> Launch:
    """Return the launch that transposes matrices into rows of `width` elements, zero-padded."""
    pitch_x, pitch_y = pitches
    few, many = sorted((rows, columns))
    chunk, other = (pitch_y, pitch_x) if rows == few else (pitch_x, pitch_y)
    if few <= MOST_FEW < MOST_FEW * 8 <= many and width == rows and chunk == few:
        return _transposition_of_few(batch, (few, many, other), word, is_rows=rows == few)
    if width == rows:
        moves, places = (rows * pitch_x, 1, pitch_x), (columns * pitch_y, pitch_y, 1)
        tiled = copy_tiles((batch, columns, rows), moves, places, word, plain=TRANSPOSED)
        if tiled is not None:
            return tiled
    return _by_squares(batch, rows, columns, pitches, word, width)


def _by_squares(
    batch: int, rows: int, columns: int, pitches: Ints, word: DType, width: int
) -> Launch:
    """Return the launch of `transpose.cu`; see `transposition`."""
    pitch_x, pitch_y = pitches
    tiles = ceil_div(columns, SIDE)
    return Launch(
        "move/transpose.cu",
        "transpose",
        grid=(tiles * ceil_div(width, SIDE), batch, 1),
        block=THREADS,
        args={
            **{"x": None, "y": None, "rows": rows, "columns": columns, "width": width},
            **{"pitch_x": pitch_x, "pitch_y": pitch_y, "tiles": tiles},
            **{"batch_x": rows * pitch_x, "batch_y": columns * pitch_y},
            **{"outer_x": 0, "outer_y": 0},
        },
        types=(("T", word),),
        note=f"{batch} x {rows} x {columns}",
    )


def transposition_apart(batch: Ints, moves: Ints, sizes: Ints, word: DType) -> Launch | None:
    """Return the launch that transposes matrices with any strides; None if it does not apply.

    Args:
        batch: the axes of the matrices, at most two.
        moves: strides of the source along these, and from one row to the next.
        sizes: rows and columns of the source, whose columns are adjacent; the result is dense.
        word: of an element.
    """
    (rows, columns), (*steps, pitch) = sizes, moves
    if len(batch) > 2 or max(batch, default=1) > MOST_BLOCKS or min(sizes) <= MOST_FEW:
        return None
    tiled = copy_tiles(
        (*batch, columns, rows),
        (*steps, 1, pitch),
        strides((*batch, columns, rows), Format.CONTIGUOUS),
        word,
        plain=TRANSPOSED,
    )
    if tiled is not None:
        return tiled
    outer, inner = (1, 1, *batch)[-2:]
    outer_x, batch_x = (0, 0, *steps)[-2:]
    launch = _by_squares(1, rows, columns, (pitch, rows), word, rows)
    dense = rows * columns
    return replace(
        launch,
        grid=(launch.grid[0], inner, outer),
        args={
            **{**launch.args, "batch_x": batch_x, "batch_y": dense},
            **{"outer_x": outer_x, "outer_y": dense * inner},
        },
        note=f"{outer * inner} x {rows} x {columns}",
    )


def _transposition_of_few(batch: int, sizes: Ints, word: DType, *, is_rows: bool) -> Launch:
    """Return the launch that transposes dense matrices with one short side.

    Args:
        batch: their number.
        sizes: of the short and the long side, and elements from one line of the long side to the
            next.
        word: of an element.
        is_rows: whether the result has the short rows.
    """
    few, many, pitch = sizes
    vector = gcd(8 // word.itemsize, many, pitch) if word.itemsize < 8 else 1
    dense, lines = many * few, few * pitch
    return Launch(
        "move/transpose_few.cu",
        "transpose_few",
        grid=(ceil_div(many, THREADS * vector), batch, 1),
        block=THREADS,
        args={
            **{"y": None, "x": None, "many": many, "pitch": pitch},
            **{"batch_x": lines if is_rows else dense, "batch_y": dense if is_rows else lines},
        },
        types=(("T", word),),
        constants=(
            *(("FEW", few), ("V", vector), ("ROWS", is_rows)),
            ("ALIGNED", gcd(16, vector * few * word.itemsize, dense * word.itemsize)),
        ),
        note=f"{batch} x {few} x {many}" if is_rows else f"{batch} x {many} x {few}",
    )


def copy_strided(y: Tensor, x: Tensor, moves: Ints, offset: int = 0) -> Launch:
    """Return the launch that fills `y` with elements of `x`.

    Args:
        y: the result, in any format; may be a slice.
        x: the source.
        moves: stride in `x` along each axis of `y`; may be 0 or negative.
        offset: index in `x` of the first element.
    """
    axes = order(y.rank, y.format)
    places = tuple(y.strides[axis] for axis in axes) if y.pitch else None
    ordered = tuple(moves[axis] for axis in axes)
    return copied(y, x, tuple(y.dims[axis] for axis in axes), ordered, offset, places)


def copied(
    y: Tensor, x: Tensor, dims: Ints, moves: Ints, offset: int = 0, places: Ints | None = None
) -> Launch:
    """Return `copy_strided` over axes in the result's memory order: `dims`, possibly cropped.

    Args:
        y: the result.
        x: the source.
        dims: sizes of the axes, outermost first.
        moves: strides of `x` along them.
        offset: index in `x` of the first element.
        places: strides of `y`, if it is a slice.
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
    to = walks[-1] if places else strides(sizes, Format.CONTIGUOUS)
    tiled = copy_tiles(sizes, walk, to, word, offset=offset, plain=2 / vector)
    if tiled is not None:
        return replace(tiled, args={**tiled.args, "x": x, "y": y})
    return Launch(
        "move/shape.cu",
        "copy_strided",
        grid=(ceil_div(y.size, THREADS * vector), 1, 1),
        block=THREADS,
        args={
            **{"x": x, "y": y, "count": y.size, "offset": offset},
            **{"sizes": sizes, **divisors(sizes), "strides": walk, "places": walks[-1]},
        },
        types=(("Index", index), ("T", word)),
        constants=(("RANK", len(sizes)), ("VECTOR", vector), ("GAPS", places is not None)),
        note=f"{len(sizes)} axes",
    )


def copied_unless_same(y: Tensor, x: Tensor) -> Launch:
    """Return a launch that copies `x` to `y`, or does nothing if they share memory."""
    return replace(copy_strided(y, x, x.strides), moot=("x", "y"))


def fill(y: Tensor, element: Array) -> Launch:
    """Return a launch that fills a tensor with one element of its dtype."""
    return replace(_given(y, element.reshape(1), (0,) * y.rank), note="fill")


def given(y: Tensor, data: Array) -> Launch:
    """Return a launch that writes elements known on the host, with the shape and dtype of `y`."""
    return _given(y, data, y.strides)


def _given(y: Tensor, data: Array, moves: Ints) -> Launch:
    source = Packed((), ("given", y.dtype.name, data.tobytes()), partial(as_it_is, data))
    launch = copy_strided(y, y, moves)
    return replace(launch, args={**launch.args, "x": source})


def place(
    entry: str, y: Tensor, dtype: DType, args: Arguments, per: int = 1, **constants: int | bool
) -> Launch:
    """Return a launch of `pad_trilu.cu`.

    Args:
        entry: its name.
        y: the result.
        dtype: of what a thread moves.
        args: arguments besides y and its size.
        per: elements of y that a thread moves.
        constants: that differ from the default.
    """
    index = index_type(y.extent, *(a.extent for a in args.values() if isinstance(a, Tensor)))
    all_constants = {"RANK": 1, "MODE": 0, "UPPER": False, "TIME_FIRST": False, **constants}
    return each(
        "move/pad_trilu.cu",
        entry,
        y.size // per,
        {"y": y, "count": y.size // per, **args},
        types=(("Index", index), ("T", dtype), ("A", arithmetic(dtype))),
        constants=tuple(all_constants.items()),
    )
