"""Copies of large arrays, shared by several threads: numpy releases the GIL while it copies."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from queue import SimpleQueue
from threading import Thread

import numpy as np

from . import forks
from .parallel import MAX_THREADS, Array, usable_cpus

#: Bytes from which several threads copy an array, and those that one copies at a time: of less, it
#: would wait for the GIL as long as it copies.
LARGE, PIECE = 4 << 20, 3 << 19

Call = Callable[[], None]


class _Copiers:
    """Threads that wait for calls: to start some takes longer than to copy a megabyte."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._forget()
        forks.forget_in_child(self._forget)

    def _forget(self) -> None:
        self._count, self._calls = 0, SimpleQueue[Call]()

    def share(self, call: Call, most: int) -> None:
        """Have `call` called by as many threads as there are CPUs for, `most` at most."""
        count = min(MAX_THREADS, usable_cpus())
        with self._lock:
            while self._count < count:
                Thread(target=_serve, args=(self._calls,), name="tercet-copy", daemon=True).start()
                self._count += 1
        for _ in range(min(count, most)):
            self._calls.put(call)


def _serve(calls: SimpleQueue[Call]) -> None:
    while True:
        calls.get()()


_COPIERS = _Copiers()


def is_shared(to: Array, source: Array) -> bool:
    """Whether several threads copy these elements: many, which are bytes in the same order."""
    if to.nbytes < LARGE:
        return False
    dense = to.flags.c_contiguous and source.flags.c_contiguous and not to.dtype.hasobject
    return dense and to.dtype == source.dtype and usable_cpus() > 1


def copy(to: Array, source: Array) -> None:
    """Copy elements to an array of the same shape, on several threads if there are many bytes."""
    if not is_shared(to, source):
        np.copyto(to, source)
        return
    with closing(copied(pieces(to), pieces(source))) as indices:
        for _ in indices:
            pass


def pieces(data: Array) -> list[Array]:
    """Return the bytes of a dense array, cut into pieces that one thread copies at a time."""
    flat = data.reshape(-1).view(np.uint8)
    return [flat[first : first + PIECE] for first in range(0, flat.nbytes, PIECE)]


def copied(to: Sequence[Array], source: Sequence[Array]) -> Generator[int]:
    """Copy pieces on several threads; yield the index of each, in any order, once it is copied.

    Nothing is being copied after the end, nor after the generator is closed.
    """
    left, done = iter(range(len(to))), SimpleQueue[int]()  # each index is taken by one thread

    def work() -> None:
        for index in left:
            to[index][...] = source[index]
            done.put(index)

    waiting = len(to)
    try:
        _COPIERS.share(work, waiting)
        while waiting:
            index = done.get()
            waiting -= 1
            yield index
    finally:
        waiting -= sum(1 for _ in left)
        for _ in range(waiting):
            done.get()
