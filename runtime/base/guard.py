"""Limits on the work of the calling thread: a deadline and a memory budget.

Code that may take long calls `check_time` regularly, and code that allocates memory not implied by
shapes calls `need`. Neither uses signals, so limits work in every thread.
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
    """The limits of one thread."""

    end: float | None = None
    seconds: float = 0.0
    budget: Budget | None = None


_BOUNDS = _Bounds()


class bounded:
    """Limit the work of this thread within a ``with`` block.

    Args:
        seconds: time limit; None for that of an enclosing block, if any.
        budget: memory budget; None for that of an enclosing block.

    Raises:
        TimeLimitError: raised from within the block, soon after the deadline.
        DeviceOutOfMemory: replaces a MemoryError of the block.
        UsageError: `seconds` is not a positive number.
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
    """Add the step being planned to whatever error the block raises.

    Raises:
        LimitError: the step exceeds the memory budget.
        DeviceError: numbers in the model, such as sizes beyond 64 bits, cannot be planned.
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
    """Whether this thread has a deadline."""
    return _BOUNDS.end is not None


def check_time() -> None:
    """Raise TimeLimitError if this thread's deadline has passed."""
    end = _BOUNDS.end
    if end is not None and monotonic() > end:
        raise TimeLimitError(f"not done after {_BOUNDS.seconds:.3g} s; a longer timeout may help")


def inherited(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that runs with the limits of this thread in any thread that calls it."""
    bounds = _BOUNDS.end, _BOUNDS.seconds, _BOUNDS.budget

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        _BOUNDS.end, _BOUNDS.seconds, _BOUNDS.budget = bounds
        return function(*args, **kwargs)

    return call


def need(nbytes: int, what: object) -> None:
    """Check memory that no plan accounts for before it is allocated; see `Budget.make_room`.

    Args:
        nbytes: number of bytes.
        what: its text says what they are for, such as ``the tables of Resize``.

    Raises:
        LimitError: the model's budget is exceeded.
    """
    (_BOUNDS.budget or Budget()).make_room(nbytes, what)
