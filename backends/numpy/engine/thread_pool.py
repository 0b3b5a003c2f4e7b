"""A thread pool that shares the blocks of one step with the caller.

numpy releases the GIL while it computes, so blocks run in parallel, each with its own part of the
workspace, and a core mostly reads what it has written itself. Results do not depend on the
distribution: a block's calls are the same on every thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import perf_counter

import numpy as np

from ....runtime.base import forks
from ..numerics import blas
from .spin_gate import LEAVING, STARTING, SpinGate, processor

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


@lru_cache(1024)
def _shares(count: int, workers: int) -> list[range]:
    """Return the blocks that each worker takes first."""
    ends = [count * worker // workers for worker in range(workers + 1)]
    return [range(start, end) for start, end in pairwise(ends)]


def _work(worker: int, jobs: Jobs, queues: Sequence[deque[int]]) -> None:
    """Process the worker's own blocks from the front, then those of others from the back."""
    tapes, own = jobs[worker], queues[worker]
    for queue in (own, *queues):
        while queue:
            try:
                block = queue.popleft() if queue is own else queue.pop()
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
        done: opened when the part is done if the caller waits; None to wait for that asleep.
    """

    __slots__ = (
        "_caller",
        "_done",
        "_is_awaited",
        "_working",
        "error",
        "has_started",
        "is_apart",
        "is_done",
        "is_wanted",
        "jobs",
        "queues",
        "worker",
    )

    def __init__(
        self, worker: int, jobs: Jobs, queues: Sequence[deque[int]], done: SpinGate | None
    ) -> None:
        self.worker, self.jobs, self.queues = worker, jobs, queues
        self.is_wanted, self.has_started, self.is_done = True, False, False
        #: Whether the thread started on another processor than its caller: spinning needs two.
        self.is_apart = False
        self.error: BaseException | None = None
        self._caller, self._done, self._is_awaited = processor(), done, False
        self._working = Lock()  # for one step

    def carry_out(self) -> None:
        """Work, if the caller still needs it."""
        with self._working:
            if not self.is_wanted:
                return
            self.is_apart = processor() != self._caller
            self.has_started = True
            try:
                _work(self.worker, self.jobs, self.queues)
            except BaseException as error:  # re-raised by the caller
                self.error = error
        # Either the caller sees that this is done, or this thread sees that it waits.
        self.is_done = True
        if self._is_awaited and self._done is not None:
            self._done.hand_over()

    def finish(self) -> None:
        """Wait for the thread if it has started, else cancel; may be called again."""
        self.is_wanted = False
        may_spin = self.is_apart and self.has_started
        if may_spin and self._done is not None and not self._is_awaited:  # for it lets one pass
            self._is_awaited = True
            if not self.is_done:
                self._done.wait()
        with self._working:
            pass


class _PoolThread:
    """One thread, which ends after being idle.

    Attributes:
        orders: what it is asked to do.
        is_there: whether it has not ended.
        stays: whether it may spin for its next order.
        is_awake: whether it looks for its next order before it sleeps.
        is_spinning: whether it waits for that.
        done: gates for the orders that it is given, alternately: the last one may still be opened.
    """

    def __init__(self, name: str, pool_lock: Lock) -> None:
        self.pool_lock = pool_lock
        self.orders: SimpleQueue[_WorkerShare] = SimpleQueue()
        self.is_there, self.stays, self.is_awake, self.is_spinning = True, False, False, False
        self.done, self._before = SpinGate.new(LEAVING), SpinGate.new(LEAVING)
        self._gate = SpinGate.new(STARTING)
        Thread(target=self._serve, name=name, daemon=True).start()

    def give(self, order: _WorkerShare, stays: bool) -> None:
        """Have an order carried out, after which the thread may spin for the next one."""
        self.stays = stays
        self.orders.put(order)
        if self.is_spinning and self._gate is not None:
            self._gate.hand_over()

    def gate(self) -> SpinGate | None:
        """Return a closed gate for the next order."""
        self.done, self._before = self._before, self.done
        if self.done is not None:
            self.done.close()
        return self.done

    def release(self) -> None:
        """Let the thread sleep until its next order; may be called again."""
        self.stays = False
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
                self.is_awake = True
                while order is not None:
                    order.carry_out()
                    order = self._next(order.is_apart)

    def _next(self, is_apart: bool) -> _WorkerShare | None:
        """Spin for the next order; return None if the thread shall sleep instead.

        The caller writes what it wants and then reads whether this thread spins, which announces
        that first and then reads: so nothing is missed, but the gate may be open for no reason.
        """
        if self._gate is None or not is_apart:
            self.is_awake = False
            return None
        self._gate.close()  # the caller may have opened it for longer than this thread waited
        self.is_spinning = True
        try:
            while self.orders.empty():
                if not self.stays:
                    self.is_awake = False
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
        if not wakes and not any(hand.is_awake for hand in self.hands):
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
        queues = [deque(blocks) for blocks in _shares(count, wanted)]
        hands = self._ready(wanted - 1)
        orders = [_WorkerShare(i, jobs, queues, hand.gate()) for i, hand in enumerate(hands, 1)]
        is_finished = False
        # However the caller is interrupted, no thread may continue working for it.
        try:
            try:
                for hand, order in zip(hands, orders, strict=True):
                    hand.give(order, stays)
                start = perf_counter()
                _work(0, jobs, queues)
                own = perf_counter() - start
                _finish(orders)
                is_finished = True
                waited = perf_counter() - start - own
                self._judge(waited > LATE + own / 2)
            finally:
                if not is_finished:
                    for queue in queues:
                        queue.clear()
                    _finish(orders)
        finally:
            if not is_finished:
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
        if len(self.hands) < number or not all(hand.is_there for hand in self.hands):
            self.hands = [hand for hand in self.hands if hand.is_there]
        while len(self.hands) < number:
            self.hands.append(_PoolThread(f"tercet-{len(self.hands) + 1}", self._lock))
        return self.hands[:number]

    def forget(self) -> None:
        """Drop all threads, which do not exist in a forked process."""
        self.hands = []


POOL = ThreadPool()
