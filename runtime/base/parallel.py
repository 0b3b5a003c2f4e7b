"""Work on large arrays, shared by several threads: numpy releases the GIL while it computes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import local
from typing import Any, TypeVar

import numpy as np

from .guard import check_time, inherited

Array = np.ndarray[Any, Any]
T = TypeVar("T")
R = TypeVar("R")


class _Thread(local):
    """What a thread knows of these.

    Attributes:
        helps: whether it is one of them: it shares no more.
        helpers: those that it shares work with; None outside `same_threads`.
    """

    helps: bool = False
    helpers: ThreadPoolExecutor | None = None


_THREAD = _Thread()

#: Maximum threads: more would wait for the GIL, or for the memory.
MAX_THREADS = 8
#: Elements below which starting threads takes longer than what they save.
WORTH_SHARING = 1 << 20
#: Bytes of an array that one thread joins to others at a time.
COPIED = 2 << 20


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def same_threads() -> Generator[None]:
    """Let all work that is shared within the block be done by the same threads.

    They are started when there is work for them, and end with the block. To start some takes longer
    than many a piece of work.
    """
    if _THREAD.helps or _THREAD.helpers is not None:
        yield
        return
    with _helpers() as _THREAD.helpers:
        try:
            yield
        finally:
            _THREAD.helpers = None


def _helpers() -> ThreadPoolExecutor:
    workers = min(MAX_THREADS, usable_cpus())
    return ThreadPoolExecutor(workers, "tercet-prepare", initializer=_help)


def _borrowed() -> AbstractContextManager[ThreadPoolExecutor]:
    """Return the threads of `same_threads`, or new ones for one block."""
    helpers = _THREAD.helpers
    return _helpers() if helpers is None else nullcontext(helpers)


def in_parallel(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield ``function(item)`` of each item, in order, computed ahead on several threads.

    The threads have the limits of the caller (`guard`), and end with the iterator, or are those of
    `same_threads`. A few results at a time wait for the caller. Within such a thread, items are
    computed one by one.

    Raises:
        Exception: of the function, in the order of the items.
        TimeLimitError: see `check_time`.
    """
    workers = min(MAX_THREADS, usable_cpus())
    if workers < 2 or _THREAD.helps:
        yield from map(function, items)
        return
    call, waiting = inherited(function), deque[Future[R]]()
    with _borrowed() as pool:
        try:
            for item in items:
                waiting.append(pool.submit(call, item))
                if len(waiting) > 2 * workers:
                    check_time()
                    yield waiting.popleft().result()
            while waiting:
                check_time()
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()
            wait(waiting)


def share(function: Callable[[T], None], items: Sequence[T], size: int) -> None:
    """Call a function with each item, on several threads if there are many elements in all.

    Args:
        function: must not depend on the order of the items.
        items: parts of the work.
        size: elements of all parts.
    """
    if size < WORTH_SHARING:
        for item in items:
            function(item)
    else:
        for _ in in_parallel(function, items):
            pass


def begin(function: Callable[[T], None], items: Sequence[T], size: int) -> Callable[[], None]:
    """Do what `share` does, on the threads of `same_threads`, while the caller goes on.

    Returns:
        A function that waits until all is done, and raises what `share` does. The caller must call
        it before the threads end.
    """
    helpers = _THREAD.helpers
    if helpers is None or _THREAD.helps or size < WORTH_SHARING or usable_cpus() < 2:
        share(function, items, size)
        return lambda: None
    call = inherited(function)
    waiting = [helpers.submit(call, item) for item in items]

    def end() -> None:
        wait(waiting)
        for each in waiting:
            each.result()

    return end


def joined(parts: Sequence[Array], axis: int) -> Array:
    """Return arrays of one dtype joined along an axis, on several threads if there are many bytes.

    The result is in Fortran order if all parts are, as with `np.concatenate`.
    """
    if sum(part.size for part in parts) < WORTH_SHARING:
        return np.concatenate(parts, axis)
    if all(part.flags.fnc for part in parts):
        return joined([part.T for part in parts], parts[0].ndim - 1 - axis).T
    shape, at = list(parts[0].shape), 0
    shape[axis] = sum(part.shape[axis] for part in parts)
    found, copies = np.empty(shape, parts[0].dtype), list[tuple[Array, Array]]()
    for part in parts:
        place = found[(slice(None),) * axis + (slice(at, at + part.shape[axis]),)]
        at += part.shape[axis]
        rows = max(COPIED * len(part) // max(part.nbytes, 1), 1)
        copies += [(place[i : i + rows], part[i : i + rows]) for i in range(0, len(part), rows)]
    share(lambda each: np.copyto(*each), copies, found.size)
    return found


def _help() -> None:
    _THREAD.helps = True
