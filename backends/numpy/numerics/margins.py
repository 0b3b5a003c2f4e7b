"""Consistent float32 products on OpenBLAS's AVX2 kernels, which use two orders of summation.

These kernels sum the products of an element in sequence, or even and odd depths separately. Which
order an element gets depends on its position in its block of `BLOCK` columns. Summed separately are
the first and the last whole tile of `TILE` columns, and all but up to `REST` of the rows left over
by whole groups of `GROUP`. So blocks are multiplied as they are, and then their outer tiles once
more, as inner tiles of another matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import pairwise

import numpy as np

from ....runtime.ir.types import Array

#: Columns per kernel tile, and per packed block.
TILE, BLOCK = 8, 320
#: Rows per kernel tile, and how many remaining rows are still summed in one order.
GROUP, REST = 12, 3
#: Maximum number of rows packed together.
PACKED = GROUP * 1024
#: Maximum columns for which a matrix with margins is cheaper than recomputing outer tiles.
NARROW = 64
#: Maximum elements of the left matrix for which zero rows are cheaper than another call.
WHOLE = 1 << 16

#: Target positions of columns in a matrix with margins, and which columns.
Places = Sequence[tuple[slice, slice]]


def recorded(a: Array, b: Array, out: Array, *, is_fixed: bool = False) -> Callable[[], object]:
    """Return the call that computes a @ b consistently into `out`, for (stacked) float32 matrices.

    Args:
        a: matrices of two rows or more.
        b: matrices of two columns or more.
        out: the result.
        is_fixed: whether `b` is constant.
    """
    if b.ndim == 2 < a.ndim and a.flags.c_contiguous and out.flags.c_contiguous:
        a, out = a.reshape(-1, a.shape[-1]), out.reshape(-1, out.shape[-1])
    m, n = out.shape[-2:]
    if m <= REST or n < TILE:
        return partial(np.matmul, a, b, out=out)
    if 10 * _cost(n, m) < 9 * _cost(m, n):
        return _transposed(a, b, out)
    blocks, edges = _cut(n)
    inner = [_between_margins(b, places) if is_fixed else None for places in edges]
    padded = _takes_padding(m, a.shape[-1], min(n, BLOCK))

    def call() -> None:
        rows = _with_whole_groups(a) if padded else a
        for block in blocks:
            _multiply_rows(rows, b[..., block], out[..., block])
        for places, made in zip(edges, inner, strict=True):
            right = _between_margins(b, places) if made is None else made
            product = np.empty((*out.shape[:-1], right.shape[-1]), out.dtype)
            _multiply_rows(rows, right, product)
            for at, place in places:
                out[..., place] = product[..., at]

    return call


def _transposed(a: Array, b: Array, out: Array) -> Callable[[], None]:
    """Return the call with rows and columns exchanged."""
    product = np.empty((*out.shape[:-2], *out.shape[:-3:-1]), out.dtype)
    multiply = recorded(b.swapaxes(-1, -2), a.swapaxes(-1, -2), product)

    def call() -> None:
        multiply()
        np.copyto(out, product.swapaxes(-1, -2))

    return call


def _cost(m: int, n: int) -> int:
    """Return the number of elements computed for m x n."""
    if n < TILE or m <= REST:
        return m * n
    rows = m if m % GROUP <= REST else -(-m // GROUP) * GROUP
    margins = 2 * TILE
    return rows * (
        margins + (-(-n // TILE) * TILE if n <= NARROW else n + margins * -(-n // BLOCK))
    )


@lru_cache(1024)
def _cut(n: int) -> tuple[list[slice], list[Places]]:
    """Return the blocks of `n` columns, and the groups of tiles placed between margins."""
    tiles, blocks = _outer_tiles(n), list(_parts(n, BLOCK, TILE))
    if tiles and n <= NARROW:
        tiles, blocks = list(range(0, n, TILE)), []
    maximum = BLOCK // TILE - 2
    return blocks, [list(_places(tiles[i : i + maximum], n)) for i in range(0, len(tiles), maximum)]


def _parts(size: int, maximum: int, grain: int) -> Iterator[slice]:
    """Yield parts of at most this many rows or columns, none of which is a vector."""
    starts = list(range(0, size, maximum))
    if size % maximum == 1 and size > maximum:
        starts[-1] -= grain
    yield from (slice(start, stop) for start, stop in pairwise([*starts, size]))


def _outer_tiles(n: int) -> list[int]:
    """Return the starts of tiles that are the first or last whole ones of their block."""
    found: list[int] = []
    for block in _parts(n, BLOCK, TILE):
        if whole := (block.stop - block.start) // TILE * TILE:
            found += sorted({block.start, block.start + whole - TILE})
    return found


def _places(tiles: list[int], n: int) -> Iterator[tuple[slice, slice]]:
    """Yield the positions of tiles between margins, merging neighbours."""
    first = 0
    for i in range(1, len(tiles) + 1):
        if i == len(tiles) or tiles[i] != tiles[i - 1] + TILE:
            place = slice(tiles[first], min(tiles[i - 1] + TILE, n))
            start = (first + 1) * TILE
            yield slice(start, start + place.stop - place.start), place
            first = i


def _between_margins(b: Array, places: Places) -> Array:
    """Return tiles of columns as a matrix with a zero tile before and after them."""
    width = (-(-places[-1][0].stop // TILE) + 1) * TILE
    if b.strides[-2] < b.strides[-1]:
        inner = np.zeros((*b.shape[:-2], width, b.shape[-2]), b.dtype).swapaxes(-1, -2)
    else:
        inner = np.zeros((*b.shape[:-1], width), b.dtype)
    for at, place in places:
        inner[..., at] = b[..., place]
    return inner


def _takes_padding(m: int, k: int, n: int) -> bool:
    """Return whether zero rows are cheaper than packing `n` columns again for the last rows."""
    is_cheap = m * k <= WHOLE and m * (n + k) < 2 * k * n
    return m % GROUP > REST and (m < GROUP or is_cheap)


def _with_whole_groups(a: Array) -> Array:
    """Return matrices with zero rows appended to complete their groups."""
    rows = np.zeros((*a.shape[:-2], -(-a.shape[-2] // GROUP) * GROUP, a.shape[-1]), a.dtype)
    rows[..., : a.shape[-2], :] = a
    return rows


def _multiply_rows(a: Array, b: Array, out: Array) -> None:
    """Multiply whole groups of rows, and the remaining ones together with some before them.

    `a` may have more rows than `out`.
    """
    m = out.shape[-2]
    if a.shape[-2] > m:
        np.copyto(out, np.matmul(a, b)[..., :m, :])
        return
    whole = m if m % GROUP <= REST else m - m % GROUP
    if whole == m <= PACKED:
        np.matmul(a, b, out=out)
        return
    for part in _parts(whole, PACKED, GROUP):
        np.matmul(a[..., part, :], b, out=out[..., part, :])
    if whole < m:
        part = slice(m - GROUP, m)
        np.matmul(a[..., part, :], b, out=out[..., part, :])
