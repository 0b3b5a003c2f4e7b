"""Worker processes: a case that crashes or hangs harms no other."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from time import monotonic

from ...backends.numpy.numerics import blas
from ...onnx_backend import TercetBackend
from ...runtime.base.parallel import usable_cpus
from ...runtime.errors import DeviceError
from .judge import CaseOutcome, judge
from .suite import ConformanceCase

_CONTEXT = get_context("spawn")  # a CUDA context does not survive a fork
_START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Common settings of all workers.

    Attributes:
        backend: the backend.
        fallback: the backend for nodes that it declines.
        timeout: time limit per case in seconds.
        jobs: number of processes.
    """

    backend: str
    fallback: str | None = None
    timeout: float = 60.0
    jobs: int = 1


def run_cases(
    cases: Sequence[ConformanceCase], settings: WorkerSettings
) -> Iterator[tuple[ConformanceCase, CaseOutcome]]:
    """Yield every case with its outcome, in order of completion.

    Raises:
        DeviceError: a worker ended before its first case.
    """
    waiting = deque(cases)
    workers = [_CaseWorker(settings) for _ in range(min(settings.jobs, len(cases)))]
    try:
        while workers:
            for worker in _ready(workers):
                ended = worker.answer()
                if ended is not None:
                    yield ended
                if not waiting:
                    worker.stop()
                    workers.remove(worker)
                elif worker.idle:
                    worker.give(waiting.popleft())
    finally:
        for worker in workers:
            worker.stop()


def _ready(workers: Sequence[_CaseWorker]) -> list[_CaseWorker]:
    """Wait for workers that have answered, ended, or timed out."""
    patience = min(worker.deadline for worker in workers) - monotonic()
    answered = wait([worker.connection for worker in workers], max(0.0, patience))
    now = monotonic()
    return [w for w in workers if w.connection in answered or w.deadline <= now]


class _CaseWorker:
    """A process that is restarted after a case has crashed or broken it."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._start()

    def _start(self) -> None:
        self.idle = False
        self._case: ConformanceCase | None = None
        self.connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(
            target=_serve, args=(theirs, self._settings), name="tercet-conformance", daemon=True
        )
        self._process.start()
        theirs.close()
        self.deadline = monotonic() + _START_SECONDS

    def give(self, case: ConformanceCase) -> None:
        """Have the process run a case; a dead process is noticed by its missing answer."""
        self.idle = False
        self._case = case
        self.deadline = monotonic() + self._settings.timeout
        with suppress(BrokenPipeError):
            self.connection.send(case)

    def answer(self) -> tuple[ConformanceCase, CaseOutcome] | None:
        """Return the case with its outcome; None if the process has just started."""
        try:
            outcome = self.connection.recv() if self.connection.poll() else self._overdue()
        except (EOFError, ConnectionResetError):
            outcome = self._gone()
        case, self._case, self.idle = self._case, None, True
        if outcome is not None and outcome.broken:
            self.stop()
            self._start()
        return None if case is None or outcome is None else (case, outcome)

    def _overdue(self) -> CaseOutcome:
        if self._case is None:
            self.stop()
            raise DeviceError(f"a process for {self._settings.backend} does not start")
        return CaseOutcome("failed", f"no result after {self._settings.timeout:g} s", broken=True)

    def _gone(self) -> CaseOutcome:
        self._process.join()
        code = self._process.exitcode or 0
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        if self._case is None:
            raise DeviceError(f"a process for {self._settings.backend} {how} while it started")
        return CaseOutcome("failed", f"the process {how}", broken=True)

    def stop(self) -> None:
        """Kill the process."""
        self.connection.close()
        self._process.kill()
        self._process.join()


def _serve(connection: Connection, settings: WorkerSettings) -> None:
    """Report readiness, then each case with its outcome."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent process
    blas.set_threads(max(1, usable_cpus() // settings.jobs))
    backend = type("Backend", (TercetBackend,), {"backend": settings.backend})
    connection.send(None)
    while True:
        try:
            case = connection.recv()
        except EOFError:
            return
        connection.send(judge(case, backend, settings.fallback))
