"""Packing of constants into the orders that kernels need, once, on the host."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from ....runtime.base.parallel import share
from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType
from ....runtime.ir.types import Array
from ..recipe.operands import Ints, ceil_div
from .atoms import HALVES

#: The mantissa bits of float32 that tf32 lacks.
LACKING = 13
#: Terms per step in the order of `in_parts`.
STEP = 32
#: Rows and columns that are copied at a time where a matrix is transposed, and parts of such work.
SQUARE, PARTS = 128, 16


# ── rows: a column of B, or a filter, of all its terms ───────────────────────────────────────────


def rows_of(b: Array, alpha: float, transposed: bool) -> Array:
    """Return alpha * b, [..., k, n] or [k], or [..., n, k] if transposed, as [..., n, k]."""
    if b.ndim == 1:
        b = b[:, None]
    rows = b if transposed else b.swapaxes(-1, -2)
    return rows if alpha == 1 else (rows * np.float32(alpha)).astype(b.dtype)


def filters_of(w: Array, groups: int, channels: int) -> Array:
    """Return weights [m, c, *kernel] as [group, m / group, kernel * channels].

    Args:
        w: the weights.
        groups: number of groups.
        channels: c or more; zero-padded.
    """
    filters, taps = w.shape[0] // groups, prod(w.shape[2:])
    packed = np.zeros((groups * filters, taps, channels), w.dtype)
    packed[..., : w.shape[1]] = w.reshape(w.shape[0], w.shape[1], taps).transpose(0, 2, 1)
    return packed.reshape(groups, filters, taps * channels)


def padded(rows: Array, multiple: int) -> Array:
    """Return rows zero-padded to a multiple of this many elements; themselves if they are so."""
    *outer, count = rows.shape
    if count % multiple == 0 and rows.flags.c_contiguous:
        return rows
    found = np.zeros((*outer, ceil_div(count, multiple) * multiple), rows.dtype)
    copy_rows(found[..., :count], rows)
    return found


@record
class InWords:
    """The order of `padded` with words of this many elements."""

    elements: int

    def __call__(self, rows: Array) -> Array:
        """Return rows in this order."""
        return padded(rows, self.elements)


EIGHTS, FOURS = InWords(8), InWords(4)


def in_words(dtype: DType) -> tuple[str, InWords]:
    """Return the order of rows in words of 16 bytes, with its name for the layouts of constants.

    Of 16-bit floats it is also what tensor cores read, so that products by both share constants.
    """
    return ("in eights", EIGHTS) if dtype in HALVES else ("in fours", FOURS)


def copy_rows(to: Array, rows: Array) -> None:
    """Copy rows, [..., n, k], on several threads if they are many.

    If they are columns in memory, squares of them are copied, which stay in the cache.
    """
    if rows.ndim < 2:
        to[...] = rows
        return
    length, count = rows.shape[-2:]
    width = SQUARE if rows.strides[-1] > rows.strides[-2] else max(count, 1)
    starts = product(range(0, length, SQUARE), range(0, count, width))
    squares = [(..., slice(i, i + SQUARE), slice(j, j + width)) for i, j in starts]

    def copy(first: int) -> None:
        for square in squares[first::PARTS]:
            to[square] = rows[square]

    share(copy, range(PARTS), rows.size)


@record
class InParts:
    """The order of `in_parts` with this many parts."""

    parts: int

    def __call__(self, rows: Array) -> Array:
        """Return rows in this order."""
        return in_parts(rows, self.parts)


def in_parts(rows: Array, parts: int) -> Array:
    """Return float32 [..., n, k] as tf32 numbers: [batch, step, part, n, 32 terms].

    The rows of a step are in the swizzled order of `cp_async.cuh`: chunk c of row r, of four terms,
    is at c ^ (r % 8). Rows and terms are zero-padded.
    """
    rows = rows.reshape(-1, *rows.shape[-2:])
    count, n, k = rows.shape
    eights, steps = ceil_div(n, 8), ceil_div(k, STEP)
    filled = np.zeros((count, 8 * eights, STEP * steps), np.float32)
    filled[:, :n, :k] = rows
    packed = np.empty((count, steps, parts, eights, 8, 8, 4), np.float32)
    for part, numbers in enumerate(cut(filled)[:parts]):
        chunks = numbers.reshape(count, eights, 8, steps, 8, 4).transpose(0, 3, 1, 2, 4, 5)
        swizzle(chunks, packed[:, :, part])
    return packed.reshape(count, steps, parts, 8 * eights, STEP)


def rows_of_part(n: int) -> int:
    """Return the rows per part of a step in the order of `in_parts`, for n rows."""
    return ceil_div(n, 8) * 8


def size_in_parts(n: int, k: int, words: int) -> int:
    """Return the number of four-byte words of a matrix [n, k] in parts."""
    return ceil_div(k, STEP) * words * rows_of_part(n) * STEP


def swizzle(chunks: Array, to: Array) -> None:
    """Copy chunk c of row r to c ^ r, of [..., 8 rows, 8 chunks, element]."""
    *outer, count = chunks.shape
    chunks, to = (x.reshape(*outer[:-1], 2, 2, 2, count) for x in (chunks, to))
    for row in range(8):
        flipped = (slice(None, None, -1 if row & bit else 1) for bit in (4, 2, 1))
        to[..., row, :, :, :, :] = chunks[(..., row, *flipped, slice(None))]


def cut(numbers: Array) -> tuple[Array, Array]:
    """Return tf32 numbers, high and low, that sum to float32 numbers except for their last bits."""
    bits = numbers.view(np.uint32)
    mask, half = np.uint32(2**32 - 2**LACKING), np.uint32(2 ** (LACKING - 1))
    high = ((bits + half) & mask).view(np.float32)
    odd = ~np.isfinite(high) | ~np.isfinite(numbers)
    if odd.any():  # infinities, NaNs, and values that would round to infinity
        high[odd] = np.where(np.isnan(numbers), np.float32(np.nan), (bits & mask).view(np.float32))[
            odd
        ]
    with np.errstate(invalid="ignore"):
        low = numbers - high
    low[~np.isfinite(low)] = 0
    return high, ((low.view(np.uint32) + half) & mask).view(np.float32)


def joined_groups(w: Array, groups: int, joined: int) -> Array:
    """Return weights [m, c, *kernel] as [m, joined * c, *kernel], zero for other groups' channels.

    Args:
        w: the weights of ``groups * joined`` groups.
        groups: number of remaining groups.
        joined: how many groups become one.
    """
    m, c, *kernel = w.shape
    if joined == 1:
        return w
    found = np.zeros((groups, joined, m // (groups * joined), joined, c, *kernel), w.dtype)
    each = np.arange(joined)
    found[:, each, :, each] = w.reshape(groups, joined, -1, c, *kernel).swapaxes(0, 1)
    return found.reshape(m, joined * c, *kernel)


# ── columns: without tensor cores ────────────────────────────────────────────────────────────────


def pack_columns(b: Array, alpha: float, transposed: bool) -> Array:
    """Return alpha * b as [k, n], with columns zero-padded to a multiple of four."""
    columns = b.T if transposed else b.reshape(b.shape[0], -1)
    k, n = columns.shape
    found = np.zeros((k, ceil_div(n, 4) * 4), b.dtype)
    np.multiply(columns, np.float32(alpha), out=found[:, :n])
    return found


def pack_windows(w: Array, groups: int) -> Array:
    """Return weights [m, c, *kernel] as [group, kernel * c, m / group], padded to fours."""
    return padded(filters_of(w, groups, w.shape[1]).transpose(0, 2, 1), 4)


def pack_bias(c: Array, n: int, beta: float) -> Array:
    """Return beta * c as [n]."""
    return np.broadcast_to(c.ravel() * np.float32(beta), (n,)).astype(c.dtype)


# ── where the elements of windows lie ────────────────────────────────────────────────────────────


def pack_table(
    channels: int,
    kernel: Ints,
    dilations: Ints,
    moves: Ints,
    vector: int,
    axes: int = 2,
) -> Array:
    """Return (offset, place) of every `vector`-th window element, int32; see `operand_a.cuh`.

    Args:
        channels: channels per group.
        kernel: the window.
        dilations: of the window.
        moves: strides of the input: channel, then spatial axes.
        vector: adjacent channels per copy.
        axes: numbers in a place.
    """
    places = np.indices(kernel).reshape(len(kernel), -1) * np.array(dilations)[:, None]
    steps = np.array(moves[1:])[:, None]
    offsets = (places * steps).sum(0)[:, None] + np.arange(0, channels, vector) * moves[0]
    if axes == 3:
        planes, rows, columns = places
        corner = rows | columns << 11 | planes << 22
    else:
        rows, columns = places if len(kernel) == 2 else (np.zeros_like(places[0]), places[0])
        corner = columns if axes == 1 else rows | columns << 16
    corner = np.broadcast_to(corner[:, None], offsets.shape)
    return np.stack([offsets, corner], axis=-1).astype(np.int32).reshape(-1, 2)
