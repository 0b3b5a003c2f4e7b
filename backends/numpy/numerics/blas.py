"""The threads that numpy's own matrix products run on."""

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
    """The callers that want one BLAS thread, and the setting to restore.

    Whoever was interrupted before leaving is forgotten when it is collected, so that nothing is
    left behind by exceptions that come at any time, such as KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.lock = forks.lock()
        self.callers: WeakSet[one_thread] = WeakSet()
        self.holds = False
        self.before = 1
        forks.forget_in_child(self.reset)

    def reset(self) -> None:
        """Forget the callers: their threads are not there in a forked process."""
        self.callers = WeakSet()
        if self.holds:
            self.holds = False
            set_threads(self.before)


_LIMIT = _Limit()


def threads() -> int | None:
    """Return how many threads numpy's OpenBLAS is to use; None for another BLAS.

    What `one_thread` does for a moment does not count.
    """
    functions = _functions()
    if functions is None:
        return None
    return _LIMIT.before if _LIMIT.holds else functions[0]()


def set_threads(number: int) -> bool:
    """Let numpy's OpenBLAS use that many threads; False, and no effect, for another BLAS."""
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
    """Let each product run on its caller's thread alone in a block, for all callers in the process.

    Does nothing for another BLAS than OpenBLAS.
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
            if (
                not _LIMIT.callers
            ):  # whoever left last may have been interrupted after setting it back
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
