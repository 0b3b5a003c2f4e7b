"""The number of CPU threads of all runners: that of numpy's matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...backends.numpy.numerics import blas
from ...runtime.base.arguments import refused
from ...runtime.errors import UsageError


@contextmanager
def use_threads(number: int | None) -> Iterator[None]:
    """Use this many threads for numpy's matrix products within the block; None for no change.

    Raises:
        UsageError: the number is invalid, or numpy's BLAS is not OpenBLAS.
    """
    if number is None:
        yield
        return
    if number < 1:
        raise refused("threads", number, "a whole number >= 1")
    before = blas.threads()
    if before is None or not blas.set_threads(number):
        raise UsageError("the threads of numpy's BLAS cannot be set here; it is not OpenBLAS")
    try:
        yield
    finally:
        blas.set_threads(before)
