"""Even float32 products on OpenBLAS's kernels for AVX2, which add in two orders.

These kernels add the products of an element one after the other, or those of even and of odd depths
apart. Which way an element goes depends on where it lies in its block of `BLOCK` columns. Apart go
the first and the last whole tile of `TILE` columns, and of the rows that whole groups of `GROUP`
leave over all but up to `REST`. So blocks are multiplied as they are, and then their outer tiles
once more, as the inner ones of another matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import pairwise

import numpy as np

from ....runtime.ir.types import Array

#: Columns that the kernels take at once, and those of a block, which is packed as a whole.
TILE, BLOCK = 8, 320
#: Rows that the kernels take at once, and how many left over are still added in one order.
GROUP, REST = 12, 3
#: Rows that are packed together, at most.
PACKED = GROUP * 1024
#: Columns up to which a matrix between two margins costs less than a product of the outer tiles.
NARROW = 64
#: Elements of the left matrix up to which rows of zeros cost less than another call.
WHOLE = 1 << 16

#: Where columns go in a matrix with margins, and which ones.
Places = Sequence[tuple[slice, slice]]


def recorded(a: Array, b: Array, out: Array, *, is_fixed: bool = False) -> Callable[[], object]:
    """Return the call that puts a @ b, matrices or stacks of float32, into `out`, evenly.

    Args:
        a: matrices of two rows or more.
        b: matrices of two columns or more.
        out: where the product goes.
        is_fixed: whether `b` never changes.
    """
    if b.ndim == 2 < a.ndim and a.flags.c_contiguous and out.flags.c_contiguous:
        a, out = a.reshape(-1, a.shape[-1]), out.reshape(-1, out.shape[-1])
    m, n = out.shape[-2:]
    if m <= REST or n < TILE:
        return partial(np.matmul, a, b, out=out)
    if 10 * _cost(n, m) < 9 * _cost(m, n):
        return _turned(a, b, out)
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


def _turned(a: Array, b: Array, out: Array) -> Callable[[], None]:
    """Return the call that takes the rows for columns."""
    product = np.empty((*out.shape[:-2], *out.shape[:-3:-1]), out.dtype)
    multiply = recorded(b.swapaxes(-1, -2), a.swapaxes(-1, -2), product)

    def call() -> None:
        multiply()
        np.copyto(out, product.swapaxes(-1, -2))

    return call


def _cost(m: int, n: int) -> int:
    """Return how many elements are computed for m x n."""
    if n < TILE or m <= REST:
        return m * n
    rows = m if m % GROUP <= REST else -(-m // GROUP) * GROUP
    margins = 2 * TILE
    return rows * (
        margins + (-(-n // TILE) * TILE if n <= NARROW else n + margins * -(-n // BLOCK))
    )


@lru_cache(1024)
def _cut(n: int) -> tuple[list[slice], list[Places]]:
    """Return the blocks of `n` columns, and the groups of tiles that go between margins."""
    tiles, blocks = _outer_tiles(n), list(_parts(n, BLOCK, TILE))
    if tiles and n <= NARROW:
        tiles, blocks = list(range(0, n, TILE)), []
    maximum = BLOCK // TILE - 2
    return blocks, [list(_places(tiles[i : i + maximum], n)) for i in range(0, len(tiles), maximum)]


def _parts(size: int, maximum: int, grain: int) -> Iterator[slice]:
    """Yield parts of at most that many rows or columns, none of them a vector."""
    starts = list(range(0, size, maximum))
    if size % maximum == 1 and size > maximum:
        starts[-1] -= grain
    yield from (slice(start, stop) for start, stop in pairwise([*starts, size]))


def _outer_tiles(n: int) -> list[int]:
    """Return where the tiles start that are the first or the last whole one of their block."""
    found: list[int] = []
    for block in _parts(n, BLOCK, TILE):
        if whole := (block.stop - block.start) // TILE * TILE:
            found += sorted({block.start, block.start + whole - TILE})
    return found


def _places(tiles: list[int], n: int) -> Iterator[tuple[slice, slice]]:
    """Yield where some tiles of `n` columns go between margins, neighbours together."""
    first = 0
    for i in range(1, len(tiles) + 1):
        if i == len(tiles) or tiles[i] != tiles[i - 1] + TILE:
            place = slice(tiles[first], min(tiles[i - 1] + TILE, n))
            start = (first + 1) * TILE
            yield slice(start, start + place.stop - place.start), place
            first = i


def _between_margins(b: Array, places: Places) -> Array:
    """Return a matrix of some tiles of columns, with a tile of zeros before and after them."""
    width = (-(-places[-1][0].stop // TILE) + 1) * TILE
    if b.strides[-2] < b.strides[-1]:
        inner = np.zeros((*b.shape[:-2], width, b.shape[-2]), b.dtype).swapaxes(-1, -2)
    else:
        inner = np.zeros((*b.shape[:-1], width), b.dtype)
    for at, place in places:
        inner[..., at] = b[..., place]
    return inner


def _takes_padding(m: int, k: int, n: int) -> bool:
    """Return whether rows of zeros cost less than packing `n` columns again for the last rows."""
    is_cheap = m * k <= WHOLE and m * (n + k) < 2 * k * n
    return m % GROUP > REST and (m < GROUP or is_cheap)


def _with_whole_groups(a: Array) -> Array:
    """Return matrices with rows of zeros after that make their groups whole."""
    rows = np.zeros((*a.shape[:-2], -(-a.shape[-2] // GROUP) * GROUP, a.shape[-1]), a.dtype)
    rows[..., : a.shape[-2], :] = a
    return rows


def _multiply_rows(a: Array, b: Array, out: Array) -> None:
    """Multiply whole groups of rows, and those left over together with some before them.

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
