"""A separate process for what may crash or needs limits: a vendor's library, a chat template.

The caller has a `Worker` and asks; the process runs `serve`, or another script, and answers.
Questions and answers are lines of JSON. A crash costs only the answer to one question: the next one
starts a new process. A process that runs `serve` ends when it is idle, and each ends with the
process that started it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import IO, Any
from weakref import finalize

from . import forks
from .closable import Closable
from .guard import check_time
from .host_memory import used_by

#: Idle seconds after which a process ends.
IDLE = 20.0
#: Seconds between checks of the caller's time limit, and of a process's memory.
_LOOK, _LOOK_AT_MEMORY = 0.1, 0.02
#: Seconds within which a process must report that it has started.
_START = 120.0
#: The process's script; its module path is that of the process that starts it.
_SCRIPT = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from importlib import import_module
import_module(sys.argv[2]).main(*sys.argv[3:])
"""

Answer = dict[str, Any]


class Ended(Exception):
    """The process ended, or was terminated, before it answered."""


class TooSlow(Ended):
    """The process was terminated because it took longer than its patience."""


class TooLarge(Ended):
    """The process was terminated because it took more than its memory."""


class _Left(Ended):
    """The process ended because it was idle."""


class Worker(Closable):
    """A process that answers questions, restarted when it has ended.

    Args:
        module: has a `main` that calls `serve`; imported by its full name.
        arguments: of that function.
        patience: time limit per answer in seconds; None for only the caller's limit.
        memory: limit of the process's memory in bytes, watched from outside; None for none.

    Attributes:
        lock: held by callers that ask several questions in a row.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        patience: float | None = None,
        memory: int | None = None,
    ) -> None:
        self.lock = forks.lock()
        self._call = (module, *arguments)
        self._patience, self._memory = patience, memory
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        self._ending: finalize[..., Any] | None = None
        self._generation = forks.generation()

    def close(self) -> None:
        """End the process, if there is one."""
        self._end()

    def start(self) -> bool:
        """Start the process unless it runs; return whether it runs now.

        Raises:
            TimeLimitError: the caller's time limit passed.
        """
        if self._generation != forks.generation():  # it belongs to the process that forked
            self._process, self._generation = None, forks.generation()
        if self._process is not None and self._process.poll() is None:
            return True
        self._end()
        if not _is_python(sys.executable):
            return False
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                (sys.executable, *self._command()),
                stdin=pipe,
                stdout=pipe,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            return False
        self._ending = finalize(self, _ended, self._process)
        self._lines = SimpleQueue()
        Thread(target=_collect, args=(self._process.stdout, self._lines), daemon=True).start()
        with suppress(Ended):
            self._read(_START)
            return True
        return False

    def _command(self) -> tuple[str, ...]:
        """Return the arguments of the interpreter."""
        paths = json.dumps([os.path.abspath(path) for path in sys.path])
        return ("-c", _SCRIPT, paths, *self._call)

    def ask(self, question: Mapping[str, Any]) -> Answer:
        """Return the answer to a question.

        Raises:
            Ended: the process crashed, took too long or too much memory, or cannot be started.
            TimeLimitError: the caller's time limit passed; the process is ended.
        """
        try:
            return self._ask(question)
        except _Left:  # it ended just before the question
            return self._ask(question)

    def _ask(self, question: Mapping[str, Any]) -> Answer:
        if not self.start():
            raise Ended("the process does not start")
        process = self._process
        assert process is not None
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # reading the answer then fails at once
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
        return self._read(self._patience)

    def _read(self, patience: float | None) -> Answer:
        process = self._process
        assert process is not None
        end = None if patience is None else monotonic() + patience
        look = _LOOK if self._memory is None else _LOOK_AT_MEMORY
        try:
            while True:
                with suppress(Empty):
                    line = self._lines.get(timeout=look)
                    break
                check_time()
                if end is not None and monotonic() > end:
                    raise TooSlow(f"not done after {patience:g} s")
                if self._memory is not None and used_by(process.pid) > self._memory:
                    raise TooLarge(f"takes more than {self._memory} bytes")
        except BaseException:
            self._end(at_once=True)
            raise
        if not line:
            status = self._end()
            raise (Ended if status else _Left)(f"its process {_how(status)}")
        return dict(json.loads(line))

    def _end(self, *, at_once: bool = False) -> int:
        """End the process if there is one; return its status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        if self._ending is not None:
            self._ending.detach()
        if at_once:
            process.kill()
        return _ended(process)


class Isolated(Worker):
    """A process that runs a script without the module path, site and variables of Python.

    Args:
        script: writes a line ``{}`` when it has started, and then one per question.
        *arguments: its arguments.
        patience: see `Worker`.
        memory: see `Worker`.
    """

    def __init__(
        self,
        script: Path,
        *arguments: str,
        patience: float | None = None,
        memory: int | None = None,
    ) -> None:
        super().__init__(str(script), *arguments, patience=patience, memory=memory)

    def _command(self) -> tuple[str, ...]:
        return ("-I", "-S", *self._call)


def _collect(source: IO[bytes], lines: SimpleQueue[bytes]) -> None:
    """Pass on the lines of a process; the last one is empty."""
    with source, suppress(OSError):
        for line in source:
            lines.put(line)
    lines.put(b"")


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process whose input is closed; return its status."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        status = process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        status = process.wait()
    return status


def _is_python(executable: str) -> bool:
    """Whether this is a Python interpreter, not an application that embeds one."""
    return os.path.basename(executable).lower().startswith(("python", "pypy"))


def _how(status: int) -> str:
    """Return how a process ended, by its status."""
    if status >= 0:
        return f"ended with status {status}"
    with suppress(ValueError):
        return f"died of {signal.Signals(-status).name}"
    return f"died of signal {-status}"


def serve(
    answer: Callable[[Answer], Mapping[str, Any]], is_busy: Callable[[], bool] = lambda: False
) -> None:
    """Answer questions from standard input until it is closed, or no question comes for a while.

    Output of libraries goes to standard error.

    Args:
        answer: returns the answer to a question.
        is_busy: whether another question will certainly come, however late.
    """
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    source = os.fdopen(os.dup(0), "rb", buffering=0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides when it ends
    reply: Mapping[str, Any] = {}
    while True:
        out.write(json.dumps(reply).encode() + b"\n")
        out.flush()
        if not select.select([source], [], [], None if is_busy() else IDLE)[0]:
            return
        line = source.readline()
        if not line:
            return
        reply = answer(json.loads(line))
