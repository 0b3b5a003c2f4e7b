"""A thread pool that shares the blocks of one step with the caller.

numpy releases the GIL while it computes, so blocks run in parallel, each with its own part of the
workspace, and a core mostly reads what it has written itself. Results do not depend on the
distribution: a block's calls are the same on every thread.
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

#: A tape: calls without arguments, executed in order.
Tape = Sequence[Callable[[], object]]
#: Tapes in any order: one per block, for each worker.
Jobs = Sequence[Sequence[Tape]]

#: Maximum threads: more would mostly wait for the GIL.
MAX_THREADS = 8
#: Idle seconds after which a thread ends.
PATIENCE = 5.0
#: A caller that waits longer than this (seconds), and longer than half of its own work, has lost
#: the other core to another program. It then works alone for a while, because each such loss costs
#: milliseconds: briefly after the first one, and longer if it happens repeatedly.
LATE = 3e-4
SHORTEST_REST, LONGEST_REST = 4e-3, 0.25


def size() -> int:
    """Return the number of workers for which a step should prepare blocks, caller included.

    That is the number of BLAS threads, or one if BLAS cannot be limited to its caller's thread.
    """
    return max(1, min(blas.threads() or 1, MAX_THREADS))


def _work(worker: int, jobs: Jobs, queues: Sequence[deque[int]]) -> None:
    """Process the worker's own blocks from the front, then those of others from the back."""
    tapes = jobs[worker]
    for queue in (queues[worker], *queues[:worker], *queues[worker + 1 :]):
        take = queue.popleft if queue is queues[worker] else queue.pop
        while queue:
            try:
                block = take()
            except IndexError:  # another worker took the last one
                break
            for call in tapes[block]:
                call()


class _WorkerShare:
    """One worker's part, which its thread starts unless the caller is done by then."""

    def __init__(self, worker: int, jobs: Jobs, queues: Sequence[deque[int]]) -> None:
        self.worker, self.jobs, self.queues = worker, jobs, queues
        self.is_wanted = True
        self.error: BaseException | None = None
        self._working = Lock()  # for one step

    def carry_out(self) -> None:
        """Work, if the caller still needs it."""
        with self._working:
            if not self.is_wanted:
                return
            try:
                _work(self.worker, self.jobs, self.queues)
            except BaseException as error:  # re-raised by the caller
                self.error = error

    def finish(self) -> None:
        """Wait for the thread if it has started, else cancel; may be called again."""
        self.is_wanted = False
        with self._working:
            pass


class _PoolThread:
    """One thread, which ends after being idle."""

    def __init__(self, name: str, pool_lock: Lock) -> None:
        self.pool_lock = pool_lock
        self.orders: SimpleQueue[_WorkerShare] = SimpleQueue()
        self.is_there = True
        Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        with np.errstate(all="ignore"):
            while True:
                try:
                    self.orders.get(timeout=PATIENCE).carry_out()
                except Empty:
                    if self.pool_lock.acquire(blocking=False):
                        self.is_there = False
                        self.pool_lock.release()
                        return


def _finish(orders: Sequence[_WorkerShare]) -> None:
    """Finish all orders, even if interrupted; then re-raise the interruption."""
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


class ThreadPool:
    """All threads of the process; used by one step at a time, others run on their callers."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._hands: list[_PoolThread] = []
        self._alone_until = 0.0
        self._rest = SHORTEST_REST
        forks.forget_in_child(self.forget)

    def play(self, jobs: Jobs) -> None:
        """Process all blocks, with each product on one thread (`blas.one_thread`).

        Args:
            jobs: for each worker, the tapes of its blocks; worker 0 is the caller.
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
        orders = [_WorkerShare(worker, jobs, queues) for worker in range(1, wanted)]
        # However the caller is interrupted, no thread may continue working for it.
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
        """Pause if others were late; pause less the next time if they were not."""
        if is_late:
            self._alone_until = perf_counter() + self._rest
            self._rest = min(2 * self._rest, LONGEST_REST)
        else:
            self._rest = max(0.9 * self._rest, SHORTEST_REST)

    def _ready(self, number: int) -> list[_PoolThread]:
        self._hands = [hand for hand in self._hands if hand.is_there]
        while len(self._hands) < number:
            self._hands.append(_PoolThread(f"tercet-{len(self._hands) + 1}", self._lock))
        return self._hands[:number]

    def forget(self) -> None:
        """Drop all threads, which do not exist in a forked process."""
        self._hands = []


POOL = ThreadPool()
