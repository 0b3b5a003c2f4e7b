"""Time limits that keep partial results.

Where signals are available (main thread, not on Windows), work is interrupted anywhere, as by
Ctrl-C; elsewhere at the next reported stage. If neither works, as in a long BLAS product or an
endless kernel, the command line ends its process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from threading import Event, Thread, Timer, current_thread, main_thread
from time import monotonic
from types import FrameType
from typing import ParamSpec, TypeVar, cast

from ...runtime.base.guard import bounded
from ...runtime.errors import TimeLimitError, UsageError
from .console import Say, silent
from .interrupts import ignores_exceptions

P = ParamSpec("P")
R = TypeVar("R")

#: Grace period in seconds for a command to report partial results.
GRACE = 10.0
#: Seconds after which an unnoticed alarm is repeated.
PROMPT, AGAIN = 1.0, 1.0
#: Code in which an alarm is deferred, because it is clean-up code.
_OWN_FILES = frozenset({__file__, contextlib.__file__})


class OutOfTime(BaseException):
    """The time limit passed. Not an error: like KeyboardInterrupt, it bypasses error handlers."""


@dataclass(slots=True)
class Limit:
    """The time limit of some work, and its progress.

    Attributes:
        seconds: None for no limit.
        stage: the last reported stage.
        passed: whether the limit passed before the work was done.
    """

    seconds: float | None
    stage: str = ""
    passed: bool = False

    @property
    def stopped(self) -> str:
        """Why the work is incomplete, in words; empty if it is complete."""
        if not self.passed or self.seconds is None:
            return ""
        return f"stopped after {self.seconds:.3g} s" + (f" ({self.stage})" if self.stage else "")

    def error(self) -> TimeLimitError:
        """Return the error if no partial result is usable."""
        return TimeLimitError(f"{self.stopped}; no results yet; give a longer timeout")


class _Watch:
    """Passes every stage to a limit, and raises once when it has passed."""

    def __init__(self, limit: Limit, say: Say, seconds: float | None) -> None:
        self._limit, self._say = limit, say
        self._end = None if seconds is None else monotonic() + seconds
        self.active = True
        self.rung = False
        self.heard = 0.0

    def __call__(self, text: str) -> None:
        if self.active:
            self._limit.stage = text
            self._say(text)
            if self._end is not None and monotonic() > self._end and not self.rung:
                self._raise()

    def ring(self, number: int, frame: FrameType | None) -> None:
        """Handle the alarm."""
        if not self.active:
            return
        self.heard = monotonic()
        if frame is not None and (
            frame.f_code.co_filename in _OWN_FILES or ignores_exceptions(frame)
        ):
            signal.setitimer(signal.ITIMER_REAL, 1e-3)
            return
        # would be swallowed
        signal.setitimer(signal.ITIMER_REAL, AGAIN)
        self._raise()

    def _raise(self) -> None:
        self.rung = WATCHDOG.has_rung = True
        raise OutOfTime


_WATCHES: list[_Watch] = []


@contextmanager
def time_limit(
    seconds: float | None,
    say: Say = silent,
    since: float | None = None,
) -> Iterator[tuple[Limit, Say]]:
    """Limit the time of a block, which ends early without an error.

    On the command line, the process ends if the work cannot be interrupted.

    Args:
        seconds: positive; None for no limit.
        say: called with a description of each stage.
        since: start of the time, by `time.monotonic`; now if None.

    Yields:
        The limit, whose `passed` tells afterwards what happened, and what is to be told about each
        stage in place of `say`.
    """
    if seconds is not None and not seconds > 0:
        raise UsageError(f"a timeout of {seconds:g} s; it is more than 0")
    limit = Limit(seconds)
    spent = 0.0 if since is None else monotonic() - since
    left = None if seconds is None else max(1e-3, seconds - spent)
    watch = _Watch(limit, say, left)
    _WATCHES.append(watch)
    able = _has_alarms()
    ends = able and WATCHDOG.owns_process
    try:
        # The alarm is set last: an interruption before the block would be lost.
        with (
            _ended_promptly(left, watch, limit) if left is not None and ends else nullcontext(),
            _alarm(left, watch) if left is not None and able else nullcontext(),
        ):
            yield limit, watch
    except OutOfTime:
        if not watch.rung:  # the time of an enclosing block
            raise
        limit.passed = True
    finally:
        watch.active = False
        _WATCHES.remove(watch)


def _has_alarms() -> bool:
    """Whether signals can interrupt this thread."""
    return hasattr(signal, "SIGALRM") and current_thread() is main_thread()


def settle() -> None:
    """Disable the limit for what follows: `OutOfTime` was caught to report partial results."""
    for watch in _WATCHES:
        watch.active = False


@contextmanager
def _alarm(seconds: float, watch: _Watch) -> Iterator[None]:
    """Call `watch.ring` after this many seconds; restore the previous alarm afterwards."""
    begin = monotonic()
    handler = signal.signal(signal.SIGALRM, watch.ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        watch.active = False
        signal.setitimer(signal.ITIMER_REAL, 0)  # the default action ends the process
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, left - (monotonic() - begin)), interval)


@contextmanager
def _ended_promptly(seconds: float, watch: _Watch, limit: Limit) -> Iterator[None]:
    """End the process if the work ignores an alarm for `PROMPT` seconds."""
    is_over = Event()
    due = monotonic() + seconds

    def look() -> None:
        is_over.wait(seconds + PROMPT)
        while watch.active and limit.seconds is not None:
            expected = watch.heard + AGAIN if watch.heard else due
            if monotonic() > expected + PROMPT:
                _end_process(limit.seconds)
            is_over.wait(PROMPT / 4)

    Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        watch.active = False
        is_over.set()


@contextmanager
def all_or_nothing(seconds: float | None, say: Say = silent) -> Iterator[Say]:
    """Limit the time of a block; raise TimeLimitError if it has not ended.

    Args:
        seconds: positive; None for no limit.
        say: called with a description of each stage.
    """
    with time_limit(seconds, say) as (limit, tell):
        yield tell
    if limit.passed:
        raise limit.error()


def limited(function: Callable[P, R]) -> Callable[P, R]:
    """Limit the time of a function by its argument `timeout`, in every thread.

    When it has passed, the function raises TimeLimitError; its argument `say`, if it has one, is
    told about each stage.
    """
    reports = "say" in signature(function).parameters

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        seconds = cast("float | None", kwargs.get("timeout"))
        inside = nullcontext() if _has_alarms() else bounded(seconds)
        found: list[R] = []
        with all_or_nothing(seconds, cast("Say", kwargs.get("say", silent))) as tell, inside:
            if reports:
                kwargs["say"] = tell
            found.append(function(*args, **kwargs))
        return found[0]

    return call


# ── the command line ─────────────────────────────────────────────────────────────────────────────


class Watchdog:
    """Ends the process some time after a command should have ended.

    Attributes:
        owns_process: whether the process only runs this command.
        has_rung: whether work was interrupted by the time limit.
    """

    def __init__(self) -> None:
        self.owns_process = self.has_rung = False
        self._timer: Timer | None = None

    def arm(self, seconds: float | None) -> float | None:
        """End our own process `GRACE` seconds after this time; returns `seconds`."""
        self.disarm()
        if seconds is not None and self.owns_process:
            self._timer = Timer(seconds + GRACE, _end_process, (seconds,))
            self._timer.daemon = True
            self._timer.start()
        return seconds

    def disarm(self) -> None:
        """The command has ended before it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


WATCHDOG = Watchdog()


def _end_process(seconds: float) -> None:
    cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # a progress line hides it
    said = f"error: not done after {seconds:g} s, and cannot be interrupted: the process ends here"
    print(f"{cursor}{said}", file=sys.stderr, flush=True)
    os._exit(TimeLimitError.exit_code)
