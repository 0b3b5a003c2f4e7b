"""Memory in front of pages that nobody may touch, for kernels that run on the host.

What a kernel reads or writes behind the last byte is found at once. Of a size that is no multiple
of `ALIGNMENT`, some bytes follow: they hold NaN, and what writes there is found after the run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from mmap import PAGESIZE, mmap

import numpy as np

from tercet.runtime.ir.types import Array

#: No kernel reads more bytes at once, and a tensor begins at a multiple of as many.
ALIGNMENT = 16
#: Bytes behind it that nobody may touch.
_GUARD = 1 << 20
#: Bytes in front of a tensor that are looked at after a run.
_BEFORE = 64
#: Bytes that pages have besides those of a tensor.
_AROUND = 1024
_POISON = b"\xff"
_NO_ACCESS = 0
_libc = ctypes.CDLL(None, use_errno=True)


class OutOfBounds(Exception):
    """A kernel reads or writes where it has no memory.

    Attributes:
        address: where.
    """

    def __init__(self, address: int) -> None:
        super().__init__(f"no memory at {address:#x}")
        self.address = address


def guarded(nbytes: int) -> Array:
    """Return that many bytes of new memory, which begin at a multiple of `ALIGNMENT`."""
    pages = _pages(nbytes)
    return pages[(pages.nbytes - nbytes) // ALIGNMENT * ALIGNMENT :][:nbytes]


def _pages(nbytes: int) -> Array:
    """Return pages with room for some bytes, in front of others that nobody may touch."""
    room = -(-nbytes // PAGESIZE) * PAGESIZE
    memory = np.frombuffer(mmap(-1, room + _GUARD), np.uint8)
    guard = ctypes.c_void_p(memory.ctypes.data + room)
    if _libc.mprotect(guard, ctypes.c_size_t(_GUARD), _NO_ACCESS):
        raise OSError(ctypes.get_errno(), "mprotect")
    return memory[:room]


#: Pages that no run has now, by their number of bytes, a power of two.
_free: dict[int, list[Array]] = {}


@dataclass(frozen=True)
class Place:
    """Some bytes at an address, which a kernel knows modulo `alignment`."""

    address: int
    nbytes: int
    alignment: int = ALIGNMENT

    @property
    def end(self) -> int:
        """The address of what follows."""
        return self.address + self.nbytes

    def joined(self, other: Place) -> Place:
        """Return what begins and ends with the two."""
        first = min(self.address, other.address)
        alignment = max(self.alignment, other.alignment)
        return Place(first, max(self.end, other.end) - first, alignment)


@contextmanager
def moved(places: Sequence[Place]) -> Iterator[list[int]]:
    """Move some memory in front of guards while the block runs, and back after it.

    Args:
        places: what does not overlap.

    Yields:
        The addresses meanwhile.

    Raises:
        OutOfBounds: something has been written just before or behind one of them.
    """
    taken = [_taken(place.nbytes) for place in places]
    starts: list[int] = []
    for pages, place in zip(taken, places, strict=True):
        end = pages.ctypes.data + pages.nbytes
        start = end - place.nbytes - (end - place.end) % place.alignment
        ctypes.memset(start - _BEFORE, _POISON[0], end - start + _BEFORE)
        ctypes.memmove(start, place.address, place.nbytes)
        starts.append(start)
    try:
        yield starts
        for pages, place, start in zip(taken, places, starts, strict=True):
            ctypes.memmove(place.address, start, place.nbytes)
            for first, last in (
                (start - _BEFORE, start),
                (start + place.nbytes, pages.ctypes.data + pages.nbytes),
            ):
                beside = ctypes.string_at(first, last - first)
                if written := beside.lstrip(_POISON):
                    raise OutOfBounds(last - len(written))
    finally:
        for pages in taken:
            _free[pages.nbytes].append(pages)


def _taken(nbytes: int) -> Array:
    room = 1 << (max(PAGESIZE, nbytes + _AROUND) - 1).bit_length()
    free = _free.setdefault(room, [])
    return free.pop() if free else _pages(room)
