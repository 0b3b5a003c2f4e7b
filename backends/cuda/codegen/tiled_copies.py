"""Strided copies through tiles in shared memory: `copy_tiles.cu`.

Where neighbours in the result are not neighbours in the source, a thread of `copy_strided` moves
one element, and what it reads is scattered. A tile has runs of both.
"""

from __future__ import annotations

from math import gcd, prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, int32
from ..recipe.launch import Launch
from ..recipe.operands import Ints, ceil_div, divisors, index_type

THREADS = 256
#: Minimum bytes of a copy: smaller ones take as long as a launch.
LARGE = 1 << 20
#: Bytes of a run that fill a transaction and maximum number of its elements, bytes of the widest
#: word, and elements of a tile.
RUN, RUN_LENGTH, WORD, TILE = 128, 64, 16, 4096
#: Tiles below which they are not extended: a few blocks of a multiprocessor load at once.
BUSY = 512
#: How much longer loading and storing a word takes than without tiles. On an H200, 40 of 48 copies
#: of three sizes of elements take 3 to 76 % less time with it, pixel shuffles a third.
SLOWER = 1.6
#: Maximum bytes of a tile, minimum bytes of its runs (a sector), and bytes of a bank.
MAX_TILE, SECTOR, BANK = 32768, 32, 4
#: Maximum number of axes.
MAX_RANK = 8


@record
class Tiling:
    """How a copy is cut into tiles.

    Attributes:
        tile: sizes of a tile along the axes of the result, the outermost first.
        order: axes by their strides in the source, the smallest first.
        runs: elements of a tile that are adjacent in the source, and in the result.
        words: elements that are loaded, and stored, together.
    """

    tile: Ints
    order: Ints
    runs: tuple[int, int]
    words: tuple[int, int]

    @property
    def code(self) -> str:
        """The compile-time constants that are lists."""
        inner = tuple(prod(self.tile[axis + 1 :]) for axis in range(len(self.tile)))
        lists = {"TILE": self.tile, "INNER": inner, "NEXT": self.order}
        return "\n".join(
            f"#define {name}_OF {{{', '.join(map(str, numbers))}}}"
            for name, numbers in lists.items()
        )


def tiling(sizes: Ints, moves: Ints, places: Ints, offset: int, itemsize: int) -> Tiling | None:
    """Return how to cut a copy; None if elements are not adjacent along any axis of the source.

    Args:
        sizes: of the axes of the result, the outermost first.
        moves: strides of the source along them.
        places: strides of the result.
        offset: index in the source of the first element.
        itemsize: bytes of an element.
    """
    rank = len(sizes)
    if not 1 < rank <= MAX_RANK:
        return None
    axes = sorted(range(rank), key=lambda axis: (moves[axis] <= 0, moves[axis]))
    source, result = _Side(axes, sizes, moves), _Side(list(reversed(range(rank))), sizes, places)
    wanted = min(RUN // itemsize, RUN_LENGTH)
    ways = source.wanted(wanted), result.wanted(wanted)
    tile = [max(way.get(axis, 1) for way in ways) for axis in range(rank)]
    for axis, size in enumerate(sizes):
        if any(way.get(axis) == size for way in ways):
            tile[axis] = size  # a run continues along the next axis
    for axis in result.axes:
        more = min(TILE, prod(sizes) // BUSY) // prod(tile)
        if more > 1 and moves[axis] > 0 and tile[axis] < sizes[axis]:
            tile[axis] = min(sizes[axis], tile[axis] << more.bit_length() - 1)
    runs = source.run(tile), result.run(tile)
    if min(runs) * itemsize < SECTOR or prod(tile) * itemsize > MAX_TILE:
        return None
    words = source.word(tile, itemsize, offset), result.word(tile, itemsize, 0)
    return Tiling(tuple(tile), tuple(axes), runs, words)


@record
class _Side:
    """The source or the result of a copy.

    Attributes:
        axes: the axes, the innermost in its memory first.
        sizes: of the axes of the result.
        steps: strides along them.
    """

    axes: list[int]
    sizes: Ints
    steps: Ints

    def wanted(self, count: int) -> dict[int, int]:
        """Return sizes of a tile with runs of about `count` elements: powers of two, or whole."""
        tile: dict[int, int] = {}
        run = 1
        for axis in self.axes:
            size = self.sizes[axis]
            if self.steps[axis] != run or run > count // 2:
                break
            tile[axis] = min(size, _power(ceil_div(count, run)))
            if tile[axis] < size:
                break
            run *= size
        return tile

    def run(self, tile: list[int]) -> int:
        """Return how many elements of a tile are adjacent."""
        return prod(tile[axis] for axis in self._inner(tile))

    def _inner(self, tile: list[int]) -> list[int]:
        """Return the axes of a run; it has all elements along them, except along the last."""
        found: list[int] = []
        run = 1
        for axis in self.axes:
            if self.steps[axis] != run:
                break
            found.append(axis)
            if tile[axis] != self.sizes[axis]:
                break
            run *= tile[axis]
        return found

    def word(self, tile: list[int], itemsize: int, offset: int) -> int:
        """Return how many elements of a run are moved together."""
        inner = self._inner(tile)
        others = (step for axis, step in enumerate(self.steps) if axis not in inner)
        starts = gcd(offset, *others, prod(self.sizes[axis] for axis in inner))
        return gcd(WORD // itemsize, starts, self.run(tile))


def _power(n: int) -> int:
    """Return the least power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def copy_tiles(
    sizes: Ints, moves: Ints, places: Ints, word: DType, *, offset: int = 0, plain: float
) -> Launch | None:
    """Return the launch of `copy_tiles.cu` with null addresses `x` and `y`, if it pays.

    Args:
        sizes: of the axes of the result, the outermost first; for the others see `tiling`.
        moves: strides of the source.
        places: strides of the result.
        word: an element.
        offset: index in the source of the first element.
        plain: words that another kernel loads and stores per element; see `SLOWER`.
    """
    itemsize, count = word.itemsize, prod(sizes)
    if count * itemsize < LARGE:
        return None
    how = tiling(sizes, moves, places, offset, itemsize)
    if how is None or SLOWER * sum(1 / elements for elements in how.words) > plain:
        return None
    extents = (
        sum((size - 1) * abs(step) for size, step in zip(sizes, steps, strict=True))
        for steps in (moves, places)
    )
    index = index_type(*extents)
    tiles = tuple(ceil_div(size, extent) for size, extent in zip(sizes, how.tile, strict=True))
    if index != int32 or prod(tiles) >= 2**31:
        return None
    return Launch(
        "move/copy_tiles.cu",
        "copy_tiles",
        grid=(prod(tiles), 1, 1),
        block=THREADS,
        args={
            **{"x": None, "y": None, "offset": offset, "sizes": sizes, "tiles": tiles},
            **{**divisors(tiles), "strides": moves, "places": places},
        },
        types=(("Index", index), ("T", word)),
        constants=(
            *(("RANK", len(sizes)), ("COUNT", prod(how.tile)), ("RUN_Y", how.runs[1])),
            *(("LOAD", how.words[0]), ("STORE", how.words[1])),
            ("PITCH", how.runs[1] + max(1, BANK // itemsize)),
        ),
        code=how.code,
        note=f"{len(sizes)} axes, tiles of {'x'.join(map(str, how.tile))}",
    )
