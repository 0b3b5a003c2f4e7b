"""The threads that numpy's matrix products run on."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

from ..runtime.errors import UsageError

_NAMES = tuple(
    f"{library}_{{}}_num_threads{suffix}"
    for library in ("scipy_openblas", "openblas")
    for suffix in ("64_", "")
)


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def blas_threads() -> int | None:
    """Return how many threads numpy's OpenBLAS uses; None for another BLAS."""
    function = _function("get")
    return None if function is None else int(function())


def set_blas_threads(number: int) -> bool:
    """Set how many threads numpy's OpenBLAS uses; False, and no effect, for another BLAS."""
    function = _function("set")
    if function is not None:
        function(ctypes.c_int(number))
    return function is not None


@cache
def _function(verb: str) -> ctypes._NamedFuncPointer | None:
    """Return OpenBLAS's ``get`` or ``set`` function, from the library in numpy's own wheel."""
    package = Path(np.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".dylibs"):
        for file in sorted(folder.glob("*openblas*")):
            library = ctypes.CDLL(str(file))
            for name in _NAMES:
                if hasattr(library, name.format(verb)):
                    return getattr(library, name.format(verb))
    return None


@contextmanager
def use_threads(number: int | None) -> Iterator[None]:
    """Let numpy's matrix products run on so many threads for a while; None changes nothing.

    Raises:
        UsageError: the number makes no sense, or numpy's BLAS is another one than OpenBLAS.
    """
    before = blas_threads()
    if number is None:
        yield
        return
    if number < 1:
        raise UsageError(f"{number} threads; it must be 1 or more")
    if before is None or not set_blas_threads(number):
        raise UsageError("the threads of numpy's BLAS cannot be set here; it is not OpenBLAS")
    try:
        yield
    finally:
        set_blas_threads(before)
