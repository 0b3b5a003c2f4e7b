"""The thread count of numpy's BLAS."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import cast
from weakref import WeakSet

import numpy as np

from ....runtime.base import forks

_NAMES = tuple(
    f"{library}_{{}}_num_threads{suffix}"
    for library in ("scipy_openblas", "openblas")
    for suffix in ("64_", "")
)


@cache
def _functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Return OpenBLAS's functions to get and set its thread count, from numpy's wheel.

    None for another BLAS, which is not controlled.
    """
    package = Path(np.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".dylibs"):
        for file in sorted(folder.glob("*openblas*")):
            library = ctypes.CDLL(str(file))
            for name in _NAMES:
                if hasattr(library, name.format("set")):
                    found = (getattr(library, name.format(verb)) for verb in ("get", "set"))
                    return cast(tuple[Callable[[], int], Callable[[int], None]], tuple(found))
    return None


class _Limit:
    """The callers that need single-threaded BLAS, and the setting to restore.

    Callers interrupted before leaving are dropped when they are collected, so that exceptions at
    any point, such as KeyboardInterrupt, leave nothing behind.
    """

    def __init__(self) -> None:
        self.lock = forks.lock()
        self.callers: WeakSet[one_thread] = WeakSet()
        self.holds = False
        self.before = 1
        forks.forget_in_child(self.reset)

    def reset(self) -> None:
        """Drop the callers, whose threads do not exist in a forked process."""
        self.callers = WeakSet()
        if self.holds:
            self.holds = False
            set_threads(self.before)


_LIMIT = _Limit()


def threads() -> int | None:
    """Return the configured thread count of numpy's OpenBLAS; None for another BLAS.

    Temporary changes by `one_thread` do not count.
    """
    functions = _functions()
    if functions is None:
        return None
    return _LIMIT.before if _LIMIT.holds else functions[0]()


def set_threads(number: int) -> bool:
    """Set the thread count of numpy's OpenBLAS; False, without effect, for another BLAS."""
    functions = _functions()
    if functions is None:
        return False
    with _LIMIT.lock:
        _LIMIT.before = number
        if not _LIMIT.callers:
            functions[1](number)
            _LIMIT.holds = False
    return True


class one_thread:
    """Run products on their caller's thread alone within the block, for all callers in the process.

    Without effect for BLAS other than OpenBLAS.
    """

    def __enter__(self) -> None:
        functions = _functions()
        if functions is None:
            return
        get, put = functions
        with _LIMIT.lock:
            if not _LIMIT.holds:
                _LIMIT.before = get()
                _LIMIT.holds = True
            if not _LIMIT.callers:  # the last caller may have been interrupted after restoring it
                put(1)
            _LIMIT.callers.add(self)

    def __exit__(self, *error: object) -> None:
        functions = _functions()
        if functions is None:
            return
        with _LIMIT.lock:
            _LIMIT.callers.discard(self)
            if not _LIMIT.callers:
                functions[1](_LIMIT.before)
                _LIMIT.holds = False
