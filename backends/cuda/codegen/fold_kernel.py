"""The kernels of reductions: runs of adjacent axes, one after another, long ones in parts."""

from __future__ import annotations

from dataclasses import replace
from math import gcd, prod

from ....runtime.ir.dtypes import FLOATS, bool_, float32, float64, uint32, uint64
from ....runtime.ops.reduce import ReduceSum
from ..recipe.launch import Launch
from ..recipe.operands import Ints, Scratch, Tensor, ceil_div, order
from ..recipe.source import arithmetic
from .elementwise import NUMBERS
from .folds import FOLDS, ReduceFormula

ROWS, COLUMNS = 8, 32
#: Elements of a row, or rows of a column, per block.
ROW_CHUNK, COLUMN_CHUNK = 4096, 256
#: Pixels per block of those whose sums another kernel adds up.
PIXEL_CHUNK = 256
#: Elements per block of rows that several blocks share, if they have at most as many such parts: in
#: the logits of a token the blocks are few, and each has little more to do than wait for memory.
SHARED_CHUNK = 1024
#: Warps of a block that has all rows of its columns: as many rows per thread, in one launch.
MANY_ROWS = 32
#: Maximum rows of columns of which a thread has several, minimum number of such threads, and bytes
#: that one reads at a time, at most and at least: MobileNetV2 in float16 takes 1.2 % less time at
#: batch 32 on an H200 than with 40,960 threads that read 2 bytes.
FEW_ROWS, FEW_THREADS, WORD, LEAST = 64, 1 << 15, 16, 4
#: Words of a row or of columns that a lane reads before it combines them, unless threads are few;
#: what lanes that are neighbours read together at least.
WORDS, ENOUGH, SECTOR = 4, 1 << 17, 32
#: Maximum number of blocks along the second grid axis; more of them are along the third as well.
MAX_BLOCKS = 65535


def fold(
    how: ReduceFormula, y: Tensor, x: Tensor, axes: Ints, title: str
) -> tuple[Launch, ...] | str:
    """Return the launches of a reduction, one axis (or run of adjacent axes) after another.

    Args:
        how: the reduction.
        y: the result, in the format of x, with or without reduced axes.
        x: the input, in any format.
        axes: of the logical shape.
        title: for reports.
    """
    if x.dtype not in NUMBERS | {bool_}:
        return f"dtype {x.dtype.name}"
    compute = arithmetic(x.dtype)
    if how.floating and compute not in FLOATS:
        compute = float64
    passes = _passes(x, y, axes)
    launches: list[Launch] = []
    source: Tensor | Scratch = x
    used = 0
    total = prod(x.dims[a] for a in axes)
    index = uint32 if total < 2**32 else uint64
    for number, (outer, count, inner) in enumerate(passes):
        while True:
            parts = _parts(outer, count, inner)
            last = parts == 1 and number == len(passes) - 1
            if max(outer * parts, inner) >= 2**31:
                return f"{outer} x {count} x {inner} elements"
            target: Tensor | Scratch = y if last else Scratch(used)
            nbytes = 0 if last else outer * parts * inner * how.nbytes(compute, index)
            used += ceil_div(nbytes, 256) * 256
            ends = (source is x, last)
            launches.append(_pass((source, target), (outer, count, inner), ends, total))
            source, count = target, parts
            if parts == 1:
                break
    types = (("X", x.dtype), ("Y", y.dtype), ("A", compute))
    if how.state == "Place":
        types = (*types, ("Index", index))
    code = how.code(float64 if compute is float64 else x.dtype)
    return tuple(
        replace(launch, types=types, code=code, scratch=used, note=f"{title} {launch.note}")
        for launch in launches
    )


def _parts(outer: int, count: int, inner: int) -> int:
    """Return into how many parts an axis is split."""
    if inner > 1 and count <= COLUMN_CHUNK * MANY_ROWS // ROWS:
        return 1
    return max(1, ceil_div(count, _row_chunk(outer, count) if inner == 1 else COLUMN_CHUNK))


def _row_chunk(outer: int, count: int) -> int:
    """Return the number of elements of a row that a block reduces."""
    return SHARED_CHUNK if count > ROW_CHUNK and outer * count <= SHARED_CHUNK**2 else ROW_CHUNK


def _pass(
    operands: tuple[Tensor | Scratch, Tensor | Scratch],
    shape: Ints,
    ends: tuple[bool, bool],
    total: int,
) -> Launch:
    """Return one pass of a reduction, without types and code.

    Args:
        operands: the input, and where results or partial results go.
        shape: (outer, count, inner).
        ends: whether it reads elements, and whether it computes final results.
        total: number of elements per final result.
    """
    outer, count, inner = shape
    parts, warps, lanes, of_block = _parts(outer, count, inner), 1, COLUMNS, ROWS
    vector = _adjacent(outer, count, inner, operands[0]) if ends[1] else 0
    if vector:
        return _of_few(operands, shape, ends[0], total, vector)
    if inner == 1:
        entry, chunk = "reduce_rows", _row_chunk(outer, count)
        warps = 1 if count <= 256 or outer >= 4096 else ROWS
        most = WORD if warps == 1 else min(chunk, count) // (COLUMNS * warps)
        vector = _word(most, count, operands[0])
        if warps == 1:
            lanes = _lanes(outer * parts, ceil_div(min(chunk, count), vector), operands[0], vector)
        grid = (ceil_div(outer * parts, ROWS * COLUMNS // (lanes * warps)), 1, 1)
        first = {"results": outer * parts}
    else:
        entry, chunk = "reduce_columns", COLUMN_CHUNK
        if parts == 1 and count > chunk:
            of_block, chunk = MANY_ROWS, count
        vector = _word(WORD, inner, operands[0])
        of_block = min(of_block, _warps(min(chunk, count), vector))
        blocks = ceil_div(inner, COLUMNS)
        layers = ceil_div(blocks, MAX_BLOCKS)
        grid = (outer * parts, ceil_div(blocks, layers), layers)
        first = {"inner": inner}
    return Launch(
        "reduce/reduce.cu",
        entry,
        grid=grid,
        block=of_block * COLUMNS,
        args={
            **{"x": operands[0], "y": operands[1], **first, "parts": parts, "chunk": chunk},
            **{"count": count, "total": total},
        },
        constants=(
            *(("ROWS", of_block), ("LANES", lanes)),
            *(("WARPS", warps), ("VECTOR", max(1, vector))),
            *(("FIRST", ends[0]), ("LAST", ends[1])),
        ),
        note=f"of {count}",
    )


def sums_of_pixels(x: Tensor, *, launches: bool) -> tuple[Launch, int]:
    """Return the launch that adds up pixels of images of floats, and in how many parts.

    Sums are float32 at the beginning of the workspace, a row of channels for each part.

    Args:
        x: dense images whose channels are last.
        launches: whether the next kernel starts before this one waits for its predecessor.
    """
    how, pixels, channels = FOLDS[ReduceSum], prod(x.dims[2:]), x.dims[1]
    chunk = ceil_div(pixels, ceil_div(pixels, PIXEL_CHUNK))
    parts = ceil_div(pixels, chunk)
    vector = _word(WORD, channels, x)
    warps, blocks = min(ROWS, _warps(chunk, vector)), ceil_div(channels, COLUMNS)
    launch = Launch(
        "reduce/reduce.cu",
        "reduce_columns",
        grid=(x.dims[0] * parts, blocks, 1),
        block=warps * COLUMNS,
        args={
            **{"x": x, "y": Scratch(0), "inner": channels, "parts": parts, "chunk": chunk},
            **{"count": pixels, "total": pixels},
        },
        types=(("X", x.dtype), ("Y", float32), ("A", float32)),
        constants=(
            *(("ROWS", warps), ("LANES", COLUMNS), ("WARPS", 1), ("VECTOR", vector)),
            *(("FIRST", True), ("LAST", False)),
        ),
        code=f"#define LAUNCHES {int(launches)}\n{how.code(float32)}",
        scratch=4 * x.dims[0] * parts * channels,
        note=f"sums of {pixels}",
    )
    return launch, parts


def _warps(rows: int, vector: int) -> int:
    """Return how many warps of a block read so many rows of columns, at most `WORDS` per thread.

    As many rows as a word has elements are read by one warp.
    """
    return 1 << max(ceil_div(rows, vector * WORDS) - 1, 0).bit_length()


def _lanes(rows: int, words: int, x: Tensor | Scratch, vector: int) -> int:
    """Return how many lanes of a warp share a row of so many words.

    Each reads several words at once: with one, a warp would end before the next one starts.
    """
    size = vector * x.dtype.itemsize if isinstance(x, Tensor) else WORD
    least = min(words, max(ceil_div(words, WORDS), SECTOR // size))
    lanes = 1 << (least - 1).bit_length()
    while lanes < min(words, COLUMNS) and rows * lanes < ENOUGH:
        lanes *= 2
    return min(lanes, COLUMNS)


def _adjacent(outer: int, count: int, inner: int, x: Tensor | Scratch) -> int:
    """Return how many adjacent columns a thread reduces on its own; 0 if blocks should."""
    size = x.dtype.itemsize if isinstance(x, Tensor) else WORD
    least = FEW_THREADS * max(1, LEAST // size)
    if inner == 1 or not 0 < count <= FEW_ROWS or outer * inner < least:
        return 0
    return _word(outer * inner // FEW_THREADS, inner, x)


def _word(most: int, count: int, x: Tensor | Scratch) -> int:
    """Return how many adjacent elements of `count` a thread reads at once: up to `most`, or one."""
    widest = WORD // x.dtype.itemsize if isinstance(x, Tensor) else 1
    return gcd(count, min(widest, 1 << max(1, most).bit_length() - 1))


def _of_few(
    operands: tuple[Tensor | Scratch, Tensor | Scratch],
    shape: Ints,
    first: bool,
    total: int,
    vector: int,
) -> Launch:
    """Return the pass in which a thread reduces `vector` columns of few rows; see `_pass`."""
    outer, count, inner = shape
    words = inner // vector
    return Launch(
        "reduce/reduce.cu",
        "reduce_few",
        grid=(ceil_div(outer * words, ROWS * COLUMNS), 1, 1),
        block=ROWS * COLUMNS,
        args={
            **{"x": operands[0], "y": operands[1], "results": outer * words, "inner": words},
            **{"count": count, "total": total},
        },
        constants=(
            *(("ROWS", ROWS), ("LANES", COLUMNS), ("WARPS", 1), ("VECTOR", vector)),
            *(("FIRST", first), ("LAST", True)),
        ),
        note=f"of {count}",
    )


def _passes(x: Tensor, y: Tensor, axes: Ints) -> list[Ints]:
    """Return (outer, reduced, inner) for each run of reduced axes in memory, innermost first."""
    if not x.size:
        return [(y.size, 0, 1)]
    runs: list[tuple[bool, int]] = []
    for axis in order(x.rank, x.format):
        reduced, size = axis in axes, x.dims[axis]
        if size == 1:
            continue
        if runs and runs[-1][0] == reduced:
            size *= runs.pop()[1]
        runs.append((reduced, size))
    found: list[Ints] = []
    inner = 1
    while runs:
        reduced, size = runs.pop()
        if reduced:
            found.append((prod(size for _, size in runs), size, inner))
        else:
            inner *= size
    return found or [(x.size, 1, 1)]
