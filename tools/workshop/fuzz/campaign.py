"""A campaign: processes that try mutants, each within limits, and what came of all of them."""

from __future__ import annotations

import os
import resource
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from time import monotonic, process_time

from .bytewise import damaged_bytes
from .seeds import Seed, all_seeds
from .structure import Mutant, damaged
from .trial import Outcome, try_mutant

_CONTEXT = get_context("spawn")
_START_SECONDS = 3600.0
PATIENCE = 6
#: A process that takes more is ended before the machine suffers.
ADDRESS_SPACE = 6 << 30
#: Seconds of the processor: a process that uses fewer meanwhile waits for something.
_IDLE = 0.1
#: Mutants that a process tries before another one takes its place.
SERVICE = 20_000


@dataclass(frozen=True, slots=True)
class Campaign:
    """Which mutants there are.

    Attributes:
        seed: its number.
        folders: whose models are seeds too.
        without: names of seeds that do not run as they are.
        byte_share: share of mutants whose bytes are changed, the others' structure is.
        seconds: of the processor that a mutant may take. The clock ends only one that computes
            nothing in `PATIENCE` times as long: other work may have the processor meanwhile.
        megabytes: of resident memory that it may take.
    """

    seed: int = 0
    folders: tuple[Path, ...] = ()
    without: frozenset[str] = frozenset()
    byte_share: float = 0.25
    seconds: float = 10.0
    megabytes: float = 1024.0

    def mutant(self, number: int, seeds: Sequence[Seed]) -> tuple[Mutant, Seed]:
        """Return a mutant by its number, the same one every time, and what it was made of."""
        rng = Random(f"{self.seed}/{number}")
        seed = _pick(seeds, rng)
        if rng.random() < self.byte_share:
            return damaged_bytes(seed.data, _pick(seeds, rng).data, rng), seed
        return damaged(seed.data, rng), seed


def _pick(seeds: Sequence[Seed], rng: Random) -> Seed:
    """Return a seed: ONNX's cases, most of them of one node, half of the time, else another one."""
    is_case = rng.random() < 0.5
    return rng.choice([seed for seed in seeds if seed.is_case == is_case])


def run_campaign(
    campaign: Campaign, numbers: Sequence[int], jobs: int = 1, until: float = float("inf")
) -> Iterator[tuple[int, Outcome]]:
    """Yield every mutant's number with what became of it, in the order in which they end.

    Args:
        campaign: see there.
        numbers: the mutants'.
        jobs: number of processes.
        until: point of `time.monotonic` after which no mutant is begun.
    """
    waiting = deque(numbers)
    workers = [_Worker(campaign) for _ in range(min(jobs, len(numbers)))]
    try:
        while workers:
            patience = min(worker.deadline for worker in workers) - monotonic()
            wait([worker.connection for worker in workers], max(0.0, patience))
            for worker in list(workers):
                yield from worker.ended()
                if worker.idle and waiting and monotonic() < until:
                    worker.give(waiting.popleft())
                elif worker.idle:
                    worker.stop()
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A process that is started again where a mutant has ended it or taken too long."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self._start()

    @property
    def idle(self) -> bool:
        """Whether it can be given a mutant."""
        return self._ready and self._number is None

    def give(self, number: int) -> None:
        """Have a mutant tried."""
        if self._served >= SERVICE:
            self.stop()
            self._start()
        self._served += 1
        self._number = number
        if self._ready:
            self._send(number)

    def ended(self) -> Iterator[tuple[int, Outcome]]:
        """Yield the mutant that has ended, if one has."""
        try:
            if self.connection.poll():
                self._take(self.connection.recv())
                if self._answer is not None and self._number is not None:
                    number, self._number = self._number, None
                    yield number, self._judged(self._answer)
            elif monotonic() >= self.deadline and not self._still_computes():
                yield from self._lost("too long", "")
        except EOFError:
            self._process.join()
            yield from self._lost("signal", _signal_name(self._process.exitcode or 0))

    def _still_computes(self) -> bool:
        """Whether the process has used the processor lately, but not for too long; then wait."""
        used, before = _processor_seconds(self._process.pid), self._used
        if used - self._used_first >= self._campaign.seconds or used - before < _IDLE:
            return False
        self._used = used
        self.deadline = monotonic() + PATIENCE * self._campaign.seconds
        return True

    def _take(self, said: Outcome | None) -> None:
        self._answer = said
        if not self._ready:
            self._ready = True
            self.deadline = float("inf")
            if self._number is not None:
                self._send(self._number)

    def _send(self, number: int) -> None:
        self.deadline = monotonic() + PATIENCE * self._campaign.seconds
        self._used = self._used_first = _processor_seconds(self._process.pid)
        self.connection.send(number)

    def _judged(self, outcome: Outcome) -> Outcome:
        self.deadline = float("inf")
        if outcome.seconds > self._campaign.seconds:
            return replace(outcome, ended="too long")
        if outcome.megabytes > self._campaign.megabytes:
            return replace(outcome, ended="too large", message=f"{outcome.megabytes:.0f} MB")
        return outcome

    def _lost(self, ended: str, message: str) -> Iterator[tuple[int, Outcome]]:
        number = self._number
        if number is None and not self._ready:
            raise RuntimeError(f"a process of the campaign does not start: {message or ended}")
        self.stop()
        self._start()
        if number is not None:
            yield number, Outcome("", ended, message=message, seconds=self._campaign.seconds)

    def _start(self) -> None:
        self.connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(theirs, self._campaign), daemon=True)
        self._process.start()
        theirs.close()
        self._number: int | None = None
        self._answer: Outcome | None = None
        self._ready, self._served = False, 0
        self._used = self._used_first = 0.0
        self.deadline = monotonic() + _START_SECONDS

    def stop(self) -> None:
        """End the process."""
        self.connection.close()
        self._process.kill()
        self._process.join()


def _processor_seconds(pid: int | None) -> float:
    """Return how long a process has computed, all threads together; 0 if nobody knows."""
    with suppress(OSError), open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _signal_name(code: int) -> str:
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"exit code {code}"


def _serve(connection: Connection, campaign: Campaign) -> None:
    """Try mutants until nobody asks for more."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seeds = all_seeds(campaign.folders, campaign.without)
    connection.send(None)
    with suppress(EOFError):
        while True:
            mutant, seed = campaign.mutant(connection.recv(), seeds)
            _forget_peak()
            begin = process_time()
            outcome = try_mutant(mutant, seed.feeds)
            seconds = process_time() - begin
            connection.send(replace(outcome, seconds=seconds, megabytes=_peak_megabytes()))


def _forget_peak() -> None:
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def _peak_megabytes() -> float:
    with suppress(OSError), open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1000
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def workers_for(jobs: int | None) -> int:
    """Return how many processes a campaign has: as many as asked for, else one per CPU."""
    return jobs or len(os.sched_getaffinity(0))
