"""The threads that numpy's own matrix products run on."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import cast

import numpy as np

_NAMES = tuple(
    f"{library}_{{}}_num_threads{suffix}"
    for library in ("scipy_openblas", "openblas")
    for suffix in ("64_", "")
)


@cache
def _functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Return OpenBLAS's functions that get and set its threads, from the library in numpy's wheel.

    None where numpy came with another BLAS, which is then left to itself.
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
    """How many callers want one thread a product, and what to go back to."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.callers = 0
        self.before = 1

    def reset(self) -> None:
        """Forget the callers: their threads are not there in a forked process."""
        self.lock = Lock()
        if self.callers:
            self.callers = 0
            set_threads(self.before)


_LIMIT = _Limit()


def threads() -> int | None:
    """Return how many threads numpy's OpenBLAS is to use; None for another BLAS.

    What `one_thread` does for a moment does not count.
    """
    functions = _functions()
    if functions is None:
        return None
    return _LIMIT.before if _LIMIT.callers else functions[0]()


def set_threads(number: int) -> bool:
    """Let numpy's OpenBLAS use so many threads; False, and no effect, for another BLAS."""
    functions = _functions()
    if functions is None:
        return False
    with _LIMIT.lock:
        if _LIMIT.callers:
            _LIMIT.before = number
        else:
            functions[1](number)
    return True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_LIMIT.reset)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let each product run on its caller's thread alone, for all callers in the process.

    Does nothing for another BLAS than OpenBLAS.
    """
    functions = _functions()
    if functions is None:
        yield
        return
    get, put = functions
    with _LIMIT.lock:
        if _LIMIT.callers == 0:
            _LIMIT.before = get()
            put(1)
        _LIMIT.callers += 1
    try:
        yield
    finally:
        with _LIMIT.lock:
            _LIMIT.callers -= 1
            if _LIMIT.callers == 0:
                put(_LIMIT.before)
