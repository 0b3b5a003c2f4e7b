"""An exception that comes at any time, as Ctrl-C does, leaves a model right for the next run."""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest

import tercet
from tercet.backends.numpy.engine import cost, thread_pool
from tercet.backends.numpy.numerics import blas

from ..threads import two_threads

ROOT = Path(tercet.__file__).parent.parent
#: Where a run may be interrupted.
FILES = frozenset(
    str(ROOT / name)
    for name in (
        "backends/numpy/numerics/blas.py",
        "backends/numpy/engine/thread_pool.py",
        "backends/numpy/engine/step.py",
        "runtime/control/host_control.py",
        "runtime/session/program_cache.py",
        "runtime/session/model.py",
        "runtime/plan/plan.py",
        "runtime/control/program.py",
        "runtime/control/resources.py",
        "runtime/session/program_pool.py",
        "runtime/plan/weights.py",
    )
)


class Interrupt(BaseException):
    """Comes at any time."""


def is_checked(code: CodeType, at: int) -> bool:
    """Whether Python looks at signals behind this instruction."""
    name = dis.opname[code.co_code[at]] if at >= 0 else ""
    return name.startswith(("CALL", "RESUME", "JUMP_BACKWARD"))


def interrupted(call: Callable[[], object], at: int, files: frozenset[str] = FILES) -> bool:
    """Call, and raise `Interrupt` where a signal may come in these files; False if it ended.

    Args:
        call: what to interrupt.
        at: at which of the places, counted from 0.
        files: where.
    """
    left = at

    def follow(frame: FrameType, event: str, argument: Any) -> Any:
        if left < 0 or frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        last = -1

        def step(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal left, last
            if event == "opcode" and left >= 0:
                if is_checked(frame.f_code, last):
                    left -= 1
                last = frame.f_lasti
                if left < 0:
                    raise Interrupt
            return step

        return step

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        call()
    except Interrupt:
        return True
    finally:
        sys.settrace(before)
    return False


class Late:
    """A thread that has not come to its orders yet."""

    given: list[Any]

    def __init__(self, name: str, lock: object) -> None:
        self.is_there, self.is_awake = True, False

    def gate(self) -> None:
        """Return none: it does not spin."""

    def give(self, order: Any, stays: bool) -> None:
        type(self).given.append(order)


def test_no_thread_works_for_a_caller_that_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "_PoolThread", Late)
    files = frozenset({thread_pool.__file__, blas.__file__})
    with two_threads():
        for at in range(2000):
            Late.given, team = [], thread_pool.ThreadPool()
            done: list[int] = []
            jobs = [[[partial(done.append, block)] for block in range(4)]] * 2
            was_interrupted = interrupted(partial(team.play, jobs), at, files)
            count = len(done)
            for order in Late.given:
                order.carry_out()
            assert len(done) == count, f"worked after place {at}"
            team._alone_until = 0.0
            team.play(jobs)
            assert sorted(done[count:]) == [0, 1, 2, 3]
            assert blas.threads() == 2
            if not was_interrupted:
                break
        else:
            pytest.fail("it is interrupted wherever it is looked at")
        assert at > 30


def test_products_keep_to_one_thread_after_any_interrupt() -> None:
    functions = blas._functions()

    def work() -> None:
        with blas.one_thread():
            pass

    with two_threads():
        assert functions is not None
        at = 0
        while interrupted(work, at, frozenset({blas.__file__})):
            with blas.one_thread():
                assert functions[0]() == 1, f"shared between threads after place {at}"
            assert functions[0]() == blas.threads() == 2, f"other threads after place {at}"
            at += 1
        assert at > 5


def weights(name: str, *shape: int) -> onnx.TensorProto:
    data = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
    return onnx.numpy_helper.from_array(data / 8, name)


def network() -> onnx.ModelProto:
    """A network with a convolution, a product, and a loop on the host."""
    proto = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21]>
        g (float[n, 8, 24, 24] x, int64 times) => (float[n, m] y) {
            c = Conv<pads = [1, 1, 1, 1]>(x, w)
            r = Relu(c)
            f = Flatten(r)
            p = MatMul(f, v)
            true = Constant<value = bool {1}>()
            y = Loop(times, true, p) <body = body (int64 i, bool on, float[a, b] s)
                => (bool still, float[a, b] t) {
                still = Identity(on)
                half = Constant<value = float {0.5}>()
                t = Mul(s, half)
            }>
        }
    """)
    proto.graph.initializer.extend([weights("w", 32, 8, 3, 3), weights("v", 32 * 24 * 24, 16)])
    return proto


@pytest.mark.parametrize("first", [True, False], ids=["making the plan", "running it"])
def test_the_next_run_is_right(first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "WORTH", 0)  # both threads share small steps, too
    monkeypatch.setattr(cost, "MIN_BLOCK", 1)
    random = np.random.default_rng(0)
    one, other = (
        {"x": random.standard_normal((2, 8, 24, 24)).astype(np.float32), "times": np.int64(n)}
        for n in (2, 3)
    )
    with two_threads(), tercet.load(network()) as model:
        want = model.run(one)["y"], model.run(other)["y"]

    def check(model: tercet.Model, at: int) -> None:
        for feeds, right in ((other, want[1]), (one, want[0])):
            assert not any(hand.stays for hand in thread_pool.POOL.hands), f"spins after place {at}"
            assert np.array_equal(model.run(feeds)["y"], right), f"wrong after place {at}"

    with two_threads():
        if first:
            step, at, ended = 23, 0, False  # plans take long: some of the lines
            while not ended:
                with tercet.load(network()) as model:
                    ended = not interrupted(partial(model.run, one), at)
                    check(model, at)
                at += step
            return
        with tercet.load(network()) as model:
            check(model, -1)
            at = 0
            while interrupted(partial(model.run, one), at):
                check(model, at)
                at += 1
            assert at > 50
            gc.collect()
            held = sum(program.memory.activations["cpu"] for program in model._programs.pool.idle)
            assert held > 0
