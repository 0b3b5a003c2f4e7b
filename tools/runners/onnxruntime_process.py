"""onnxruntime in a separate process: some models crash it by a signal, which is no exception.

One process serves any number of sessions. It starts while its user does something else, and anew
after it has ended. One that is no longer needed waits for the next user: to start one takes longer
than most models.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from pathlib import Path
from pickle import UnpicklingError
from queue import Empty, SimpleQueue
from shutil import rmtree
from tempfile import mkdtemp
from threading import Thread
from typing import Any, Protocol
from weakref import finalize

from ...runtime.ir.types import HostValue
from . import onnxruntime_server
from .onnxruntime_server import Channel, Session, Setup

#: What ends a process that does not answer.
TIME_LIMIT = "time limit"
#: Where Linux keeps files in memory.
_MEMORY = "/dev/shm"
#: Lines of what a process printed before it ended that are told.
_LINES = 3
#: The only provider that gives back all its memory, on the host and on devices, with its sessions.
_CPU = "CPUExecutionProvider"
#: What may have caused a signal.
_MEANINGS = {
    "SIGFPE": "an integer was divided by zero",
    "SIGSEGV": "it accessed memory that it does not have",
    "SIGBUS": "it accessed memory that it does not have",
    "SIGILL": "an instruction that this CPU lacks",
    "SIGABRT": "its own checks failed",
    "SIGKILL": "usually because memory ran out",
}


class SessionRefused(RuntimeError):
    """onnxruntime raised an exception, whose text this is."""


class ProcessEnded(RuntimeError):
    """The process ended, or was ended after its time, in the middle of a request.

    Attributes:
        by: a signal such as ``SIGSEGV``, ``exit code 3`` or ``time limit``.
        cause: the same in a sentence, such as ``ended by SIGSEGV``.
        printed: the last lines that it printed.
    """

    def __init__(self, by: str, cause: str, printed: str = "") -> None:
        self.by, self.cause, self.printed = by, cause, printed
        super().__init__(f"{cause}: {printed}" if printed else cause)

    @property
    def may_recur(self) -> bool:
        """Whether the same request may be made again at little cost."""
        return self.by not in (TIME_LIMIT, "SIGKILL")


class SessionLike(Protocol):
    """A model in onnxruntime, in whichever process."""

    @property
    def outputs(self) -> list[str]:
        """Names of the model's outputs."""
        ...

    @property
    def providers(self) -> list[str]:
        """Execution providers that were started."""
        ...

    @property
    def seconds(self) -> float | None:
        """What the last request took where it ran; None if it ran here."""
        ...

    def run(self, feeds: Mapping[str, Any], wanted: Sequence[str]) -> list[HostValue]:
        """Return outputs in the order of their names, which may recur."""
        ...

    def repeat(self) -> None:
        """Run once more on the same inputs, and drop the results."""
        ...

    def close(self) -> None:
        """Release all memory."""
        ...


class LocalSession(Session):
    """A session in this process, which ends with it."""

    seconds: float | None = None

    def close(self) -> None:
        """Release all memory."""
        self._session = None


class OnnxruntimeProcess:
    """Processes that run onnxruntime, one at a time; the last one is left with this object.

    Args:
        limit: seconds that a request may take; None for any time.
    """

    def __init__(self, limit: float | None = None) -> None:
        self._limit = limit
        self._running: _Running | None = None

    def start(self) -> _Running:
        """Return the process, a new one if none is idle; does not wait for it."""
        if self._running is None or self._running.has_ended or self._running.is_inherited:
            self._running = _idle() or _Running()
            self._running.limit = self._limit
            finalize(self, _leave, self._running)
        return self._running

    def open(self, model: str | bytes, setup: Setup) -> RemoteSession:
        """Load a model.

        Args:
            model: its file, or its bytes.
            setup: the settings.

        Raises:
            SessionRefused: onnxruntime refuses it.
            ProcessEnded: the process ended.
        """
        return RemoteSession(self.start(), model, setup)

    def close(self) -> None:
        """End the process; the next model starts another."""
        if self._running is not None:
            self._running.end()


class RemoteSession:
    """A session in another process; see `SessionLike`."""

    def __init__(self, running: _Running, model: str | bytes, setup: Setup) -> None:
        self._running, self._number = running, next(running.numbers)
        self.outputs: list[str]
        self.providers: list[str]
        surroundings = _folder(), dict(os.environ)
        self.outputs, self.providers = self._ask("open", model, asdict(setup), *surroundings)
        running.opened.add(self._number)
        running.keeps_memory |= self.providers != [_CPU]

    def _ask(self, what: str, *given: object) -> Any:
        found, self.seconds = self._running.ask(self._number, what, *given)
        return found

    def run(self, feeds: Mapping[str, Any], wanted: Sequence[str]) -> list[HostValue]:
        return self._ask("run", dict(feeds), list(wanted))

    def repeat(self) -> None:
        self._ask("repeat")

    def close(self) -> None:
        if not (self._running.has_ended or self._running.is_inherited):
            self._ask("close")
            self._running.opened.discard(self._number)


class _Running:
    """One process from start to end.

    Attributes:
        limit: seconds that a request may take; None for any time.
        numbers: of its sessions.
        opened: those that are not closed.
        keeps_memory: whether some memory may be given back only when it ends.
        has_ended: whether it answers no more.
        origin: the process that started it, and the program that it runs.
    """

    def __init__(self) -> None:
        self.limit: float | None = None
        self.numbers, self.has_ended = count(), False
        self.opened, self.keeps_memory = set[int](), False
        self.origin = _origin()
        self._folder = mkdtemp(
            prefix="tercet-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None
        )
        self._errors = Path(self._folder) / "errors"
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", onnxruntime_server.__file__, self._folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for its user, who ends it
            )
        incoming, outgoing = self._process.stdout, self._process.stdin
        assert incoming is not None
        assert outgoing is not None
        self._channel = Channel(incoming, outgoing, self._folder)
        self._answers: SimpleQueue[Any] = SimpleQueue()
        Thread(target=_collect, args=(self._channel, self._answers), daemon=True).start()

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one that started it."""
        return self.origin[0] != os.getpid()

    def is_ready(self) -> bool:
        """Whether another user may have it; forgets what it printed for the last one."""
        if self._process.poll() is not None:
            return False
        os.truncate(self._errors, 0)
        return True

    def ask(self, number: int, what: str, *given: object) -> tuple[Any, float]:
        """Return the answer to a request, and the seconds that it took; see `serve`.

        Whatever interrupts the wait ends the process.

        Raises:
            SessionRefused: onnxruntime raised an exception.
            ProcessEnded: the process ended.
        """
        if self.has_ended:
            raise ProcessEnded("", "had ended before")
        if self.is_inherited:  # nobody here would collect its answer
            raise ProcessEnded("", "is another's: this process was forked after it was started")
        try:
            with suppress(ConnectionError):  # then no answer comes either
                self._channel.send((number, what, *given))
            found = self._answers.get(timeout=self.limit)
        except Empty:
            raise self._ended(TIME_LIMIT, f"did not answer within {self.limit:g} s") from None
        except BaseException:
            self.end()
            raise
        if found is None:
            raise self._ended(*_cause(self._process.wait()))
        is_right, result, seconds = found
        if not is_right:
            raise SessionRefused(result)
        return result, seconds

    def _ended(self, by: str, cause: str) -> ProcessEnded:
        lines = self._errors.read_text(errors="replace").split("\n")
        printed = [line.strip() for line in lines if line.strip()]
        self.end()
        return ProcessEnded(by, cause, "; ".join(printed[-_LINES:]))

    def end(self) -> None:
        """End the process, unless a fork has only inherited it."""
        if not self.has_ended:
            self.has_ended = True
            if self.is_inherited:
                return
            self._process.kill()
            self._process.wait()
            with suppress(OSError):  # the pipe has no reader
                self._channel.close()
            rmtree(self._folder, ignore_errors=True)


#: A process that nobody needs now; at most one.
_IDLE: list[_Running] = []


def _origin() -> tuple[int, str]:
    return os.getpid(), onnxruntime_server.__file__


def _idle() -> _Running | None:
    """Return the process that is idle, if it is one of this process and has not ended."""
    with suppress(IndexError):  # another thread was faster
        while True:
            running = _IDLE.pop()
            if running.origin == _origin() and running.is_ready():
                return running
            running.end()
    return None


def _leave(running: _Running) -> None:
    """Keep a process for its next user, or end it."""
    if running.has_ended or running.opened or running.keeps_memory or _IDLE:
        running.end()
    else:
        _IDLE.append(running)


@atexit.register
def _end_idle() -> None:
    for running in _IDLE:
        running.end()


def _folder() -> str:
    with suppress(OSError):  # it has been removed
        return os.getcwd()
    return os.sep


def _collect(channel: Channel, answers: SimpleQueue[Any]) -> None:
    """Pass on answers; None when no more come."""
    with channel.incoming, suppress(EOFError, OSError, UnpicklingError):
        while True:
            answers.put(channel.receive())
    answers.put(None)


def _cause(code: int) -> tuple[str, str]:
    """Return what ended a process, by its exit code, and the same in a sentence."""
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}", f"ended with exit code {code}"
    meaning = _MEANINGS.get(name)
    return name, f"ended by {name}" + (f" ({meaning})" if meaning else "")
