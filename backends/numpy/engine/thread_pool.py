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
from .spin_gate import SpinGate, processor

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
    """One worker's part, which its thread starts unless the caller is done by then.

    Args:
        worker: its number.
        jobs: see `ThreadPool.play`.
        queues: the blocks that no worker has taken, by worker.
        done: opened when the part is done; None to wait for that asleep.
    """

    def __init__(
        self, worker: int, jobs: Jobs, queues: Sequence[deque[int]], done: SpinGate | None
    ) -> None:
        self.worker, self.jobs, self.queues = worker, jobs, queues
        self.is_wanted, self.has_started = True, False
        self.error: BaseException | None = None
        self._caller, self._processor = processor(), -1
        self._done, self._may_spin = done, done is not None
        self._working = Lock()  # for one step

    @property
    def is_apart(self) -> bool:
        """Whether the thread started on another processor than its caller: spinning needs two."""
        return self._processor != self._caller

    def carry_out(self) -> None:
        """Work, if the caller still needs it."""
        with self._working:
            if not self.is_wanted:
                return
            self._processor = processor()
            self.has_started = True
            try:
                _work(self.worker, self.jobs, self.queues)
            except BaseException as error:  # re-raised by the caller
                self.error = error
            if self._done is not None:
                self._done.open()

    def finish(self) -> None:
        """Wait for the thread if it has started, else cancel; may be called again."""
        self.is_wanted = False
        may_spin, self._may_spin = self._may_spin, False  # the gate lets one wait pass
        if may_spin and self._done is not None and self.has_started and self.is_apart:
            self._done.wait()
        with self._working:
            pass


class _PoolThread:
    """One thread, which ends after being idle.

    Attributes:
        orders: what it is asked to do.
        is_there: whether it has not ended.
        stays: whether it may spin for its next order.
        is_spinning: whether it does.
        done: a gate for the orders that it is given.
    """

    def __init__(self, name: str, pool_lock: Lock) -> None:
        self.pool_lock = pool_lock
        self.orders: SimpleQueue[_WorkerShare] = SimpleQueue()
        self.is_there, self.stays, self.is_spinning = True, False, False
        self.done, self._gate = SpinGate.new(), SpinGate.new()
        Thread(target=self._serve, name=name, daemon=True).start()

    def give(self, order: _WorkerShare, stays: bool) -> None:
        """Have an order carried out, after which the thread may spin for the next one."""
        self.stays = stays
        self.orders.put(order)
        self._open()

    def release(self) -> None:
        """Let the thread sleep until its next order; may be called again."""
        self.stays = False
        self._open()

    def _open(self) -> None:
        if self.is_spinning and self._gate is not None:
            self._gate.open()

    def _serve(self) -> None:
        with np.errstate(all="ignore"):
            while True:
                try:
                    order = self.orders.get(timeout=PATIENCE)
                except Empty:
                    if self.pool_lock.acquire(blocking=False):
                        self.is_there = False
                        self.pool_lock.release()
                        return
                    continue
                while order is not None:
                    order.carry_out()
                    order = self._next(order.is_apart)

    def _next(self, is_apart: bool) -> _WorkerShare | None:
        """Spin for the next order; return None if the thread shall sleep instead.

        The caller writes what it wants and then reads whether this thread spins, which announces
        that first and then reads: so nothing is missed, but the gate may be open for no reason.
        """
        if self._gate is None or not is_apart:
            return None
        self.is_spinning = True
        try:
            while self.orders.empty():
                if not self.stays:
                    return None
                self._gate.wait()
            return self.orders.get()
        finally:
            self.is_spinning = False


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
        self.hands: list[_PoolThread] = []
        self._alone_until = 0.0
        self._rest = SHORTEST_REST
        forks.forget_in_child(self.forget)

    def play(self, jobs: Jobs, *, stays: bool = False, wakes: bool = True) -> None:
        """Process all blocks, with each product on one thread (`blas.one_thread`).

        Args:
            jobs: for each worker, the tapes of its blocks; worker 0 is the caller.
            stays: whether threads spin for the next step, until the caller calls `release`.
            wakes: whether the blocks are worth waking threads; else only those that spin help.
        """
        count = len(jobs[0])
        wanted = min(len(jobs), count)
        if wanted > 1:
            wanted = min(wanted, size())
        if not wakes and not any(hand.is_spinning for hand in self.hands):
            wanted = 1
        if wanted <= 1 or perf_counter() <= self._alone_until or self._lock.locked():
            for tape in jobs[0]:
                for call in tape:
                    call()
            return
        with self._lock:
            self._share(jobs, count, wanted, stays)

    def release(self) -> None:
        """Let threads sleep that spin for the next step."""
        for hand in self.hands:
            hand.release()

    def _share(self, jobs: Jobs, count: int, wanted: int, stays: bool) -> None:
        bounds = [count * worker // wanted for worker in range(wanted + 1)]
        queues = [deque(range(bounds[w], bounds[w + 1])) for w in range(wanted)]
        hands = self._ready(wanted - 1)
        orders: list[_WorkerShare] = []
        for worker, hand in enumerate(hands, 1):
            if hand.done is not None:
                hand.done.close()
            orders.append(_WorkerShare(worker, jobs, queues, hand.done))
        # However the caller is interrupted, no thread may continue working for it.
        try:
            try:
                for hand, order in zip(hands, orders, strict=True):
                    hand.give(order, stays)
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
        self.hands = [hand for hand in self.hands if hand.is_there]
        while len(self.hands) < number:
            self.hands.append(_PoolThread(f"tercet-{len(self.hands) + 1}", self._lock))
        return self.hands[:number]

    def forget(self) -> None:
        """Drop all threads, which do not exist in a forked process."""
        self.hands = []


POOL = ThreadPool()
