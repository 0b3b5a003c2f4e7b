"""Waiting without sleeping: to wake a thread takes as long as many a step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import NamedTuple


class _Functions(NamedTuple):
    """Functions of the C library. All but `lock` are called with the GIL."""

    lock: Callable[[ctypes.Array[ctypes.c_int]], int]
    unlock: Callable[[ctypes.Array[ctypes.c_int]], int]
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
            held.pthread_spin_unlock,
            held.pthread_spin_trylock,
            held.pthread_spin_init,
            held.sched_getcpu,
        )
    except (AttributeError, OSError, TypeError):
        return None


def processor() -> int:
    """Return the number of the processor that runs the caller; -1 if unknown."""
    functions = _functions()
    return -1 if functions is None else functions.processor()


class SpinGate:
    """A gate that lets one waiting thread through and closes behind it; closed at first.

    It is a spin lock that one thread takes and another one returns.
    """

    __slots__ = ("_functions", "_lock")

    def __init__(self, functions: _Functions) -> None:
        self._functions = functions
        self._lock = (ctypes.c_int * 16)()  # a cache line
        functions.new(self._lock, 0)
        self.close()

    @classmethod
    def new(cls) -> SpinGate | None:
        """Return a new gate; None if this system has no spin locks."""
        functions = _functions()
        return None if functions is None else cls(functions)

    def open(self) -> None:
        """Let the waiting thread through, or the next one that comes."""
        self._functions.unlock(self._lock)

    def close(self) -> None:
        """Close the gate, whether it is open or not."""
        self._functions.try_lock(self._lock)

    def wait(self) -> None:
        """Occupy a processor, without the GIL, until another thread opens the gate."""
        self._functions.lock(self._lock)
