"""Callers at one time."""

from collections.abc import Callable
from threading import Thread


def together(work: Callable[[int], object], count: int) -> None:
    """Call `work` with 0, 1, …, each on a separate thread, and wait for all of them."""
    threads = [Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
