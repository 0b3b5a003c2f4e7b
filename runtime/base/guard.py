"""What bounds the work of the calling thread: a time by which it must be done, and bytes.

Whatever may take long asks `check_time` now and then, and whatever needs memory that no shape tells
of asks `need`. Neither needs signals, so that limits hold in every thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import local
from time import monotonic
from typing import ParamSpec, TypeVar

from ..errors import (
    FAILURES,
    DeviceError,
    LimitError,
    TimeLimitError,
    out_of_memory,
)
from .arguments import seconds as limit_of
from .budget import Budget

P = ParamSpec("P")
R = TypeVar("R")


class _Bounds(local):
    """The bounds of one thread."""

    end: float | None = None
    seconds: float = 0.0
    budget: Budget | None = None


_BOUNDS = _Bounds()


class bounded:
    """Bounds the work that this thread does in a ``with`` block.

    Args:
        seconds: it may take; None for no limit but that of a block around this one.
        budget: the memory that it may take; None for that of a block around this one.

    Raises:
        TimeLimitError: from within the block, soon after the time is up.
        DeviceOutOfMemory: for a MemoryError from within the block.
        UsageError: the time is not a number of seconds above 0.
    """

    __slots__ = ("_before", "_budget", "_seconds")

    def __init__(self, seconds: float | None = None, budget: Budget | None = None) -> None:
        self._seconds = None if seconds is None else limit_of("timeout", seconds)
        self._budget = budget
        self._before = _BOUNDS.end, _BOUNDS.seconds, _BOUNDS.budget

    def __enter__(self) -> None:
        bounds, seconds = _BOUNDS, self._seconds
        self._before = bounds.end, bounds.seconds, bounds.budget
        if self._budget is not None:
            bounds.budget = self._budget
        if seconds is not None:
            end = monotonic() + seconds
            if bounds.end is None or end < bounds.end:
                bounds.end, bounds.seconds = end, seconds

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        bounds = _BOUNDS
        bounds.end, bounds.seconds, bounds.budget = self._before
        if isinstance(error, MemoryError):
            raise out_of_memory("the model", error) from error


@contextmanager
def planning(step: str) -> Generator[None]:
    """Name the step that cannot be planned, in whatever error a block ends with.

    Raises:
        LimitError: the step wants more memory than there may be.
        DeviceError: numbers of the model, such as sizes beyond 64 bits, that make no plan.
    """
    try:
        yield
    except LimitError as error:
        raise LimitError(f"{step}: {error}") from error
    except MemoryError as error:
        raise out_of_memory(step, error) from error
    except FAILURES as error:
        raise DeviceError(f"{step} cannot be planned: {error}") from error


def is_timed() -> bool:
    """Whether this thread's work must be done by some time."""
    return _BOUNDS.end is not None


def check_time() -> None:
    """Raise TimeLimitError if this thread's time is up."""
    end = _BOUNDS.end
    if end is not None and monotonic() > end:
        raise TimeLimitError(f"not done after {_BOUNDS.seconds:.3g} s; a longer timeout may help")


def inherited(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that has the bounds of this thread in whatever thread it is called."""
    bounds = _BOUNDS.end, _BOUNDS.seconds, _BOUNDS.budget

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        _BOUNDS.end, _BOUNDS.seconds, _BOUNDS.budget = bounds
        return function(*args, **kwargs)

    return call


def need(nbytes: int, what: str) -> None:
    """Refuse memory that no plan has taken, before it is allocated; see `Budget.make_room`.

    Args:
        nbytes: how much.
        what: it is for, such as ``the tables of Resize``.

    Raises:
        LimitError: it is more than a model may take.
    """
    (_BOUNDS.budget or Budget()).make_room(nbytes, what)
