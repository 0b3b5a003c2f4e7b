"""Callers at one time, and the threads that steps share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from tercet.backends.numpy.numerics import blas


def together(work: Callable[[int], object], count: int) -> None:
    """Call `work` with 0, 1, …, each on a separate thread, and wait for all of them."""
    threads = [Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def two_threads() -> Iterator[None]:
    """Have two threads for each step, whatever the machine has."""
    before = blas.threads()
    if before is None or not blas.set_threads(2):
        pytest.skip("numpy's BLAS is not OpenBLAS: steps run on their callers alone")
    try:
        yield
    finally:
        blas.set_threads(before)
