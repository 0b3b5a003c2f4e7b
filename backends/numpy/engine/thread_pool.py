"""A few threads that share the blocks of one step with its caller.

numpy releases the interpreter while it computes, so blocks run side by side, each with its own part
of the workspace, and what one core has written it mostly reads again itself. Results do not depend
on who does what: a block's calls are the same on every thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import perf_counter

import numpy as np

from ....runtime.base import forks
from ..numerics import blas

#: Calls without arguments, made one after the other.
Tape = Sequence[Callable[[], object]]
#: Tapes that may run in any order: one per block, for each worker.
Jobs = Sequence[Sequence[Tape]]

#: More threads than this would wait for the interpreter more than they would compute.
MAX_THREADS = 8
#: Seconds without work after which a thread ends.
PATIENCE = 5.0
#: A caller that waits longer than this (seconds), and than half of its own work, has lost the other
#: core to another program. It works alone for a while, because each such loss costs milliseconds:
#: shortly after the first one, ever longer if it happens repeatedly.
LATE = 3e-4
SHORTEST_REST, LONGEST_REST = 4e-3, 0.25


def size() -> int:
    """Return how many workers a step should prepare blocks for, the caller included.

    As many as numpy's BLAS is set to use; one, which leaves the threads to BLAS, where that cannot
    be told to keep to its caller's thread.
    """
    return max(1, min(blas.threads() or 1, MAX_THREADS))


def _work(worker: int, jobs: Jobs, queues: Sequence[deque[int]]) -> None:
    """Do the worker's own blocks from the front, then those of the others from the back."""
    tapes = jobs[worker]
    for queue in (queues[worker], *queues[:worker], *queues[worker + 1 :]):
        take = queue.popleft if queue is queues[worker] else queue.pop
        while queue:
            try:
                block = take()
            except IndexError:  # somebody else took the last one
                break
            for call in tapes[block]:
                call()


class _Order:
    """One worker's part, which a thread begins if it comes before the caller is done with all."""

    def __init__(self, worker: int, jobs: Jobs, queues: Sequence[deque[int]]) -> None:
        self.worker, self.jobs, self.queues = worker, jobs, queues
        self.is_wanted = True
        self.error: BaseException | None = None
        self._working = Lock()  # of one step, which ends with its process

    def carry_out(self) -> None:
        """Work, if the caller still wants it."""
        with self._working:
            if not self.is_wanted:
                return
            try:
                _work(self.worker, self.jobs, self.queues)
            except BaseException as error:  # the caller raises it
                self.error = error

    def finish(self) -> None:
        """Wait for the thread if it has begun, else tell it not to; may be called again."""
        self.is_wanted = False
        with self._working:
            pass


class _Hand:
    """One thread; it ends when it has had nothing to do for long."""

    def __init__(self, name: str, crew: Lock) -> None:
        self.crew = crew
        self.orders: SimpleQueue[_Order] = SimpleQueue()
        self.is_there = True
        Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        with np.errstate(all="ignore"):
            while True:
                try:
                    self.orders.get(timeout=PATIENCE).carry_out()
                except Empty:
                    if self.crew.acquire(blocking=False):
                        self.is_there = False
                        self.crew.release()
                        return


def _finish(orders: Sequence[_Order]) -> None:
    """Finish all orders, even if that is interrupted; raises then what did so."""
    interrupted: BaseException | None = None
    while True:
        try:
            for order in orders:
                order.finish()
            break
        except BaseException as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted


class Crew:
    """All threads of the process; one step at a time has them, others run on their callers."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._hands: list[_Hand] = []
        self._alone_until = 0.0
        self._rest = SHORTEST_REST
        forks.forget_in_child(self.forget)

    def play(self, jobs: Jobs) -> None:
        """Do all blocks, where each product runs on one thread (`blas.one_thread`).

        Args:
            jobs: for each worker the tapes of all blocks; worker 0 is the caller.
        """
        count = len(jobs[0])
        wanted = min(len(jobs), count)
        if wanted > 1:
            wanted = min(wanted, size())
        if wanted <= 1 or perf_counter() <= self._alone_until or self._lock.locked():
            for tape in jobs[0]:
                for call in tape:
                    call()
            return
        with self._lock:
            self._share(jobs, count, wanted)

    def _share(self, jobs: Jobs, count: int, wanted: int) -> None:
        bounds = [count * worker // wanted for worker in range(wanted + 1)]
        queues = [deque(range(bounds[w], bounds[w + 1])) for w in range(wanted)]
        orders = [_Order(worker, jobs, queues) for worker in range(1, wanted)]
        # Whatever interrupts the caller, and wherever: no thread may work for it any longer.
        try:
            try:
                for hand, order in zip(self._ready(wanted - 1), orders, strict=True):
                    hand.orders.put(order)
                start = perf_counter()
                _work(0, jobs, queues)
                own = perf_counter() - start
                _finish(orders)
                waited = perf_counter() - start - own
                self._judge(waited > LATE + own / 2)
            finally:
                for queue in queues:
                    queue.clear()
                _finish(orders)
        finally:
            _finish(orders)
        for order in orders:
            if order.error is not None:
                raise order.error

    def _judge(self, is_late: bool) -> None:
        """Rest if the others were late; rest shorter the next time if they were not."""
        if is_late:
            self._alone_until = perf_counter() + self._rest
            self._rest = min(2 * self._rest, LONGEST_REST)
        else:
            self._rest = max(0.9 * self._rest, SHORTEST_REST)

    def _ready(self, number: int) -> list[_Hand]:
        self._hands = [hand for hand in self._hands if hand.is_there]
        while len(self._hands) < number:
            self._hands.append(_Hand(f"tercet-{len(self._hands) + 1}", self._lock))
        return self._hands[:number]

    def forget(self) -> None:
        """Be without threads again: a forked process has none of its parent's."""
        self._hands = []


CREW = Crew()
