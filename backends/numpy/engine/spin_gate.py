"""Waiting without sleeping: to wake a thread takes as long as many a step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

#: Writes that hand over: about as long as a thread takes from there to its first call of numpy,
#: when it lets another one start, and when another one goes on to its next step.
STARTING, LEAVING = 30_000, 60_000


class _Functions(NamedTuple):
    """Functions of the C library. All but `lock` are called with the GIL."""

    lock: Callable[[ctypes.Array[ctypes.c_int]], int]
    try_lock: Callable[[ctypes.Array[ctypes.c_int]], int]
    new: Callable[[ctypes.Array[ctypes.c_int], int], int]
    processor: Callable[[], int]


@cache
def _functions() -> _Functions | None:
    """Return the functions; None where there are no POSIX spin locks, as on macOS and Windows."""
    try:
        free, held = ctypes.CDLL(None), ctypes.PyDLL(None)
        return _Functions(
            free.pthread_spin_lock,
            held.pthread_spin_trylock,
            held.pthread_spin_init,
            held.sched_getcpu,
        )
    except (AttributeError, OSError, TypeError):
        return None


def _unknown() -> int:
    return -1


_FOUND = _functions()
#: Returns the number of the processor that runs the caller; -1 if unknown.
processor: Callable[[], int] = _unknown if _FOUND is None else _FOUND.processor


class SpinGate:
    """A gate that lets one waiting thread through and closes behind it; closed at first.

    It is a spin lock that one thread takes and another one returns. If both then wanted the GIL at
    once, one would sleep, and wake too late. So `hand_over` is a call of numpy that returns the
    lock again and again without the GIL, while the other thread goes on. The last of its writes may
    leave the gate open behind that thread.

    Attributes:
        open: lets the waiting thread through, or the next one that comes.
        hand_over: the same, and leaves the GIL to it for a while.
        close: closes the gate, whether it is open or not.
        wait: occupies a processor, without the GIL, until another thread opens the gate.
    """

    __slots__ = ("close", "hand_over", "open", "wait")

    def __init__(self, functions: _Functions, writes: int) -> None:
        words = np.zeros(16, np.intc)  # a cache line
        lock, word = (ctypes.c_int * 16).from_buffer(words.data), words[:1]
        functions.new(lock, 0)
        opened = word.copy()
        self.open = partial(np.copyto, word, opened)
        self.hand_over = partial(np.copyto, as_strided(word, (writes,), (0,)), opened)
        self.close = partial(functions.try_lock, lock)
        self.wait = partial(functions.lock, lock)
        self.close()

    @classmethod
    def new(cls, writes: int) -> SpinGate | None:
        """Return a new gate, handed over by `writes` writes; None without spin locks."""
        functions = _functions()
        return None if functions is None else cls(functions, writes)
