"""The threads that share a step: everything is done once, whatever goes wrong."""

from __future__ import annotations

import math
import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat

import numpy as np
import pytest
from onnx import helper

import tercet
from tercet.backends.numpy.engine import cost, step, thread_pool
from tercet.backends.numpy.engine.spin_gate import SpinGate
from tercet.backends.numpy.engine.step import Sharing
from tercet.backends.numpy.engine.thread_pool import ThreadPool
from tercet.backends.numpy.numerics import blas

from ..packages import needs_fork
from ..threads import two_threads
from .graphs import model, node, random

X = random(1, 16, 80, 80)
NODES = (
    node("Conv", ["x", "w", "b"], "a", pads=[1, 1, 1, 1]),
    node("Relu", ["a"], "r"),
    node("MaxPool", ["r"], "p", kernel_shape=[3, 3], strides=[2, 2]),
    node("Conv", ["p", "v"], "c", group=64),
    node("BatchNormalization", ["c", "k", "k", "k", "n"], "d"),
    node("Concat", ["d", "p"], "e", axis=1),
    node("AveragePool", ["e"], "y", kernel_shape=[2, 2], strides=[2, 2]),
)
CONSTANTS = {
    "w": random(64, 16, 3, 3),
    "b": random(64),
    "v": random(64, 1, 3, 3),
    "k": random(64),
    "n": np.abs(random(64)) + np.float32(0.1),
}
SMALL = model((*NODES[:-2], node("Identity", ["d"], "y")), {"x": X}, CONSTANTS)


@pytest.fixture
def threads() -> Iterator[None]:
    with two_threads():
        yield


def counting(count: int, workers: int = 2) -> tuple[list[int], list[list[list[partial[None]]]]]:
    done: list[int] = []
    return done, [[[partial(done.append, i)] for i in range(count)] for _ in range(workers)]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_every_block_is_done_once(count: int) -> None:
    team = ThreadPool()
    for _ in range(50):
        done, jobs = counting(count)
        team.play(jobs)
        assert sorted(done) == list(range(count))


@pytest.mark.usefixtures("threads")
def test_both_threads_work() -> None:
    both = threading.Barrier(2, timeout=60)
    ThreadPool().play([[[both.wait]] * 2] * 2)
    assert not both.broken


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("worker", [0, 1])
def test_errors_reach_the_caller(worker: int) -> None:
    def fail() -> None:
        raise ValueError("in a block")

    team = ThreadPool()
    calls: list[Callable[[], None]] = [partial(time.sleep, 0.01), partial(time.sleep, 0.01)]
    calls[worker] = fail
    with pytest.raises(ValueError, match="in a block"):
        team.play([[[call] for call in calls]] * 2)
    done, jobs = counting(4)
    team.play(jobs)
    assert len(done) == 4


@pytest.mark.usefixtures("threads")
def test_products_keep_to_their_thread_and_give_it_back() -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")
    seen: list[int] = []

    def look() -> None:
        found = threadpoolctl.threadpool_info()
        seen.extend(pool["num_threads"] for pool in found if "numpy" in pool["filepath"])
        assert blas.threads() == 2

    with blas.one_thread():
        ThreadPool().play([[[look]] * 2] * 2)
    look()
    assert seen == [1, 1, 2]


@pytest.mark.usefixtures("threads")
def test_a_caller_that_had_to_wait_works_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """It worked for 0.1 s, then waited for the other thread until 1 s was over."""
    clock = chain([1.0, 1.0, 1.1], repeat(2.0))
    monkeypatch.setattr(thread_pool, "perf_counter", lambda: next(clock))
    team = ThreadPool()
    team.play(counting(2)[1])
    names: list[str] = []

    def note() -> None:
        names.append(threading.current_thread().name)

    team.play([[[note]] * 4] * 2)
    assert names == [threading.current_thread().name] * 4
    monkeypatch.setattr(thread_pool, "perf_counter", lambda: 2.0 + 2 * thread_pool.LONGEST_REST)
    both = threading.Barrier(2, timeout=60)
    team.play([[[both.wait]] * 2] * 2)
    assert not both.broken


@pytest.mark.usefixtures("threads")
def test_idle_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "PATIENCE", 0.02)
    team = ThreadPool()
    before = threading.active_count()
    done, jobs = counting(4)
    team.play(jobs)
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threading.active_count() == before
    team.play(jobs)
    assert len(done) == 8


@pytest.mark.usefixtures("threads")
def test_small_images_stay_with_their_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a block, but all together are not worth waking a thread."""
    shared: list[object] = []
    monkeypatch.setattr(ThreadPool, "play", lambda self, jobs, stays, wakes: shared.append(jobs))
    x = random(3, 16, 8, 8)
    for channels, group in ((16, 1), (1, 16)):
        w = random(16, channels, 3, 3)
        nodes = (node("Conv", ["x", "w"], "a", group=group), node("Relu", ["a"], "y"))
        with tercet.load(model(nodes, {"x": x}, {"w": w})) as small:
            small(x)
    assert not shared


@pytest.fixture(params=["with spin locks", "without"])
def team(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ThreadPool:
    """A pool whose threads take themselves to be on separate processors, and never late."""
    if request.param == "without":
        monkeypatch.setattr(SpinGate, "new", lambda writes: None)
    elif SpinGate.new(1) is None:
        pytest.skip("this system has no spin locks")
    monkeypatch.setattr(thread_pool, "processor", threading.get_ident)
    monkeypatch.setattr(thread_pool, "LATE", math.inf)  # however busy this machine is
    return ThreadPool()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert condition()


def test_a_gate_lets_one_thread_through_however_it_is_opened() -> None:
    gate = SpinGate.new(5000)
    if gate is None:
        pytest.skip("this system has no spin locks")
    for pass_on in (gate.open, gate.hand_over, gate.open, gate.hand_over):
        gate.close()
        thread = threading.Thread(target=gate.wait, daemon=True)
        thread.start()
        thread.join(0.01)
        assert thread.is_alive()
        pass_on()
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.usefixtures("threads")
def test_threads_spin_from_step_to_step_until_released(team: ThreadPool) -> None:
    both = threading.Barrier(2, timeout=60)
    jobs = [[[both.wait]] * 2] * 2
    team.play(jobs, stays=True)
    (hand,) = team.hands
    can_spin = hand.done is not None
    until(lambda: hand.is_spinning == can_spin)
    for _ in range(20):  # the same thread goes on, and nothing is done twice
        team.play(jobs, stays=True)
    until(lambda: hand.is_spinning == can_spin)
    team.release()
    until(lambda: not hand.is_spinning)
    team.play(jobs)
    assert team.hands == [hand]
    until(lambda: not hand.is_spinning)


@pytest.mark.usefixtures("threads")
def test_short_steps_wake_no_thread(team: ThreadPool) -> None:
    names: list[str] = []

    def note() -> None:
        names.append(threading.current_thread().name)

    both = threading.Barrier(2, timeout=60)
    team.play([[[note]] * 4] * 2, wakes=False)
    assert names == [threading.current_thread().name] * 4
    team.play([[[both.wait]] * 2] * 2, stays=True)
    (hand,) = team.hands
    if hand.done is not None:
        until(lambda: hand.is_spinning)
        team.play([[[both.wait]] * 2] * 2, stays=True, wakes=False)
    team.release()


@pytest.mark.usefixtures("threads")
def test_every_block_is_done_once_by_threads_that_spin(team: ThreadPool) -> None:
    for round_ in range(300):
        done, jobs = counting(round_ % 7)
        team.play(jobs, stays=round_ % 5 > 0)
        assert sorted(done) == list(range(round_ % 7))
    team.release()


@pytest.mark.usefixtures("threads")
def test_errors_of_threads_that_spin_reach_the_caller(team: ThreadPool) -> None:
    both = threading.Barrier(2, timeout=60)

    def fail() -> None:
        both.wait()
        raise ValueError("in a block")

    for _ in range(3):
        with pytest.raises(ValueError, match="in a block"):
            team.play([[[both.wait], [fail]]] * 2, stays=True)
    team.release()


@pytest.mark.usefixtures("threads")
def test_no_thread_spins_after_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "WORTH", 0)
    with tercet.load(SMALL) as small:
        for _ in range(10):
            small(X)
            assert not any(hand.stays for hand in thread_pool.POOL.hands)


@pytest.mark.usefixtures("threads")
def test_no_thread_spins_while_its_caller_works_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is released where the caller took long the last time, or runs for the first time."""
    monkeypatch.setattr(cost, "WORTH", 0)
    stays: list[list[bool]] = []

    def slow(x: np.ndarray) -> np.ndarray:
        stays.append([hand.stays for hand in thread_pool.POOL.hands])
        time.sleep(2 * step.SPIN)
        return x

    nodes = (*NODES[:2], node("Slow", ["r"], "s", domain="here"), node("Relu", ["s"], "y"))
    proto = model(nodes, {"x": X}, CONSTANTS)
    proto.opset_import.append(helper.make_opsetid("here", 1))
    with tercet.load(proto, operators={("here", "Slow"): slow}) as small:
        for _ in range(3):
            small(X)
    assert stays
    assert not any(chain.from_iterable(stays))


@pytest.mark.usefixtures("threads")
def test_no_two_threads_have_one_workspace() -> None:
    """Threads end in any order; those that are left and new ones share the workers anew."""
    team, workers = ThreadPool(), 4
    assert blas.set_threads(workers)
    seen: set[tuple[int, int]] = set()

    def block(worker: int) -> None:
        seen.add((worker, threading.get_ident()))
        time.sleep(0.02)

    jobs = [[[partial(block, worker)] for _ in range(16)] for worker in range(workers)]
    team.play(jobs)
    team.hands[0].is_there = False
    seen.clear()
    team._alone_until = 0.0
    team.play(jobs)
    assert len(seen) == len({worker for worker, _ in seen}) == len({who for _, who in seen}) > 1


@pytest.mark.usefixtures("threads")
def test_callers_at_one_time() -> None:
    with tercet.load(SMALL) as small:
        want = small(X)[0]
        results: list[np.ndarray] = []
        callers = [
            threading.Thread(target=lambda: results.extend(small(X)[0] for _ in range(5)))
            for _ in range(4)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert len(results) == 20
    assert all(np.array_equal(got, want) for got in results)
    assert blas.threads() == 2


@pytest.mark.usefixtures("threads")
def test_results_do_not_depend_on_who_does_what() -> None:
    with tercet.load(SMALL) as small:
        first = small(X)[0]
        assert all(np.array_equal(small(X)[0], first) for _ in range(20))


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.usefixtures("threads")
def test_forked_processes_have_threads_of_their_own() -> None:
    with tercet.load(SMALL) as small:
        want = small(X)[0]
        child = os.fork()
        if child == 0:
            same = all(np.array_equal(small(X)[0], want) for _ in range(5))
            os._exit(0 if same and blas.threads() == 2 else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert np.array_equal(small(X)[0], want)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("workers", [1, 2])
def test_runs_allocate_no_tensors(workers: int) -> None:
    """The largest tensor has 1.6 million bytes; numpy has buffers for each call, one a thread."""
    assert blas.set_threads(workers)
    with tercet.load(SMALL) as small:
        plan = small.prepare()
        plan.plans[0].execute()
        tracemalloc.start()
        plan.plans[0].execute()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 200_000 * workers


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("workspace", [1 << 15, 1 << 17, 1 << 20])
def test_workspace_keeps_to_its_limit(workspace: int, workers: int) -> None:
    """Where all threads would need more together, fewer of them share a step."""
    assert blas.set_threads(workers)
    with tercet.load(SMALL) as free, tercet.load(SMALL, workspace=workspace) as limited:
        assert limited.memory().workspace["cpu"] <= workspace
        assert np.allclose(limited(X)[0], free(X)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("alone", "shared"), [(1.0, 2.0), (2.0, 1.0)])
def test_a_step_is_shared_if_that_takes_less_time(alone: float, shared: float) -> None:
    """The other way is tried now and then, and taken once this one takes longer."""
    sharing = Sharing()
    taken = [alone, shared]
    chosen: list[bool] = []
    for run in range(1000):
        if run == 500:
            taken.reverse()
        chosen.append(sharing.next())
        sharing.took(chosen[-1], taken[chosen[-1]])
    better = shared < alone
    assert chosen[5:500].count(better) >= 480
    assert chosen[700:].count(not better) >= 285
    assert set(chosen[5:500]) == set(chosen[700:]) == {False, True}
