"""--timeout: what is known when the time is up is shown, and the exit code says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from time import sleep
from typing import Any

import onnx.parser
import pytest

import tercet as api
from tercet.tools import cli
from tercet.tools.common import deadline
from tercet.tools.common.deadline import all_or_nothing, time_limit
from tercet.tools.common.measure import Repeat
from tercet.tools.run import run

from .conftest import Tercet

ROOT = Path(__file__).resolve().parents[2]
FOREVER = "100000000"
HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
#: Nodes of a model that takes far more than a millisecond, the shortest time limit.
LONG = 1000


def test_the_time_of_an_enclosing_block_is_its_own() -> None:
    with time_limit(0.02) as (outer, _), time_limit(None) as (inner, _):
        sleep(5)
    assert outer.stopped == "stopped after 0.02 s"
    assert not inner.passed


def in_a_thread(work: Callable[[], None]) -> None:
    """Do some work in a thread that no signal interrupts, and raise what it raises."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def test_work_is_interrupted_wherever_it_is() -> None:
    done = []
    with time_limit(0.05) as (limit, say):
        say("counting")
        while True:
            done[:] = [*done[-1000:], len(done)]
    assert limit.passed
    assert limit.stopped == "stopped after 0.05 s (counting)"
    assert done


def test_time_that_is_not_up_changes_nothing() -> None:
    with time_limit(60) as (limit, _):
        pass
    assert not limit.passed
    assert limit.stopped == ""
    with time_limit(None) as (limit, _):
        pass
    assert not limit.passed


def test_an_alarm_of_the_caller_is_restored() -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with time_limit(30):
            pass
        sleep(0.3)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert rung == [signal.SIGALRM]


RACE = """
from tercet.tools.common.deadline import time_limit

for number in range(1000):
    with time_limit(0.0015) as (limit, say):
        while True:
            say("x")
    assert limit.passed
"""


def test_an_alarm_that_comes_as_the_work_ends_kills_nobody() -> None:
    """Where `say` has noticed first that the time is up, the signal is about to come."""
    done = subprocess.run(
        [sys.executable, "-c", RACE],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_errors_pass() -> None:
    with pytest.raises(KeyError), time_limit(60):
        raise KeyError


def test_another_thread_ends_at_its_next_stage() -> None:
    found: list[str] = []

    def work() -> None:
        with time_limit(0.02) as (limit, say):
            for number in range(1000):
                say(f"stage {number}")
                sleep(0.005)
        found.append(limit.stopped)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert found[0].startswith("stopped after 0.02 s (stage ")


def test_all_or_nothing() -> None:
    def wait() -> None:
        with all_or_nothing(0.02) as say:
            say("waiting")
            sleep(5)

    with pytest.raises(api.TimeLimitError, match=r"stopped after 0\.02 s \(waiting\)"):
        wait()


ALL_OR_NOTHING: dict[str, dict[str, Any]] = {
    "compress": {"sparsity": 0.5},
    "export": {},
    "extract": {},
    "inspect": {},
    "simplify": {},
}


@pytest.mark.parametrize("name", ALL_OR_NOTHING)
@pytest.mark.parametrize("runs_in", [lambda work: work(), in_a_thread], ids=["main", "thread"])
def test_functions_without_partial_results(folder: Path, name: str, runs_in: Any) -> None:
    function, more = getattr(api, name), ALL_OR_NOTHING[name]
    names = ["x", *(f"x{i}" for i in range(LONG)), "y"]
    body = " ".join(f"{y} = Exp ({x})" for x, y in pairwise(names))
    long = onnx.parser.parse_model(f"{HEAD} g (float[1] x) => (float[1] y) {{ {body} }}")
    (folder / "long.onnx").write_bytes(long.SerializeToString())

    def work() -> None:
        with pytest.raises(api.TimeLimitError, match="a longer timeout"):
            function("long.onnx", timeout=1e-6, **more)
        assert "classifier.onnx" in str(function("classifier.onnx", timeout=600, **more))

    runs_in(work)


def test_an_alarm_in_a_finalizer_is_not_lost() -> None:
    class Slow:
        def __del__(self) -> None:
            sleep(0.1)

    with time_limit(0.02) as (limit, _):
        Slow()
        sleep(5)
    assert limit.passed


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_times_that_make_no_sense(seconds: float) -> None:
    with pytest.raises(api.UsageError, match="more than 0"), time_limit(seconds):
        pass


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("run classifier.onnx", "steady"),
        ("compare classifier.onnx -b numpy -b onnxruntime", "agrees with numpy"),
        ("profile classifier.onnx --no-peaks", "operator"),
    ],
)
def test_what_is_known_is_shown(tercet: Tercet, command: str, words: str) -> None:
    done = tercet(*command.split(), "--repeat", FOREVER, "--timeout", 1.5)
    assert done.code == 7
    assert "not complete: stopped after 1.5 s" in done.out.replace("\n", " ")
    assert words in done.out


def test_bench_keeps_the_cases_that_it_has(tercet: Tercet) -> None:
    chosen = "-b", "numpy", "--concurrency", "1,2", "--duration", "1", "--warm-up", "0"
    done = tercet("bench", "classifier.onnx", *chosen, "--timeout", 1.5, "--json")
    assert done.code == 7
    assert [case["concurrency"] for case in done.json["cases"]] == [1]
    assert done.json["stopped"].startswith("stopped after 1.5 s (numpy")
    late = tercet("bench", "classifier.onnx", "-b", "numpy", "--duration", 50, "--timeout", 1.5)
    assert late.code == 7
    assert "items/s" in late.out


def test_what_has_nothing_to_show_is_an_error(tercet: Tercet) -> None:
    done = tercet("simplify", "classifier.onnx", "out.onnx", "--timeout", 1e-4)
    assert done.code == 7
    assert "error: stopped after 0.0001 s" in done.err
    done = tercet("compare", "classifier.onnx", "--timeout", 1e-4)
    assert done.code == 7


def test_a_mismatch_counts_more_than_the_time(tercet: Tercet) -> None:
    chosen = "-b", "numpy", "-b", "onnxruntime", "--rtol", "0", "--atol", "0", "--dim", "batch=8"
    done = tercet("compare", "classifier.onnx", *chosen, "--repeat", FOREVER, "--timeout", 1.5)
    assert done.code == 1


# An alarm between open() and its `with` leaves the file to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_bisect_and_layers_say_how_far_they_came(folder: Path) -> None:
    found = api.bisect("classifier.onnx", timeout=1e-3)
    assert found.fault == "unknown"
    assert "not known yet" in str(found)
    assert found.stopped
    with pytest.raises(api.TimeLimitError):
        api.compare_layers("classifier.onnx", ["numpy", "onnxruntime"], timeout=1e-3)


def test_python_gives_what_there_is(folder: Path) -> None:
    for seconds in (1, 4, 16, 64):  # loading alone may take the first of them on a busy machine
        found = api.compare("adder.onnx", repeat=Repeat(10**9), timeout=seconds)
        assert found.stopped.startswith(f"stopped after {seconds} s")
        if found.results and found.results[0].steady.samples:
            return
    pytest.fail("nothing was measured")


def in_a_process(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in another Python process."""
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )


HANGS = """
import signal, sys
from tercet.tools.common import deadline
from tercet.tools.cli import main
from tercet.tools.run import run

deadline.GRACE = 0.2

def hang(*args, **kwargs):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    signal.sigwait({signal.SIGUSR2})

run.run_model = hang
sys.argv = ["tercet", "run", "adder.onnx", "--timeout", "0.1"]
main()
"""


def test_what_cannot_be_interrupted_ends_with_the_process(folder: Path) -> None:
    done = in_a_process(HANGS)
    assert done.returncode == 7
    assert "the process ends here" in done.stderr


#: An operator that never ends, and hears of no signal, as a library's function in C.
NEVER = """
import signal

def never(x):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    signal.sigwait({signal.SIGUSR2})
    return x

OPERATORS = {("my.domain", "Never"): never}
"""

#: A command that would wait for its results for ever, too.
PATIENT = """
import sys
from tercet.tools.common import deadline
from tercet.tools.cli import main

deadline.GRACE = 1e6
main()
"""

#: Commands that run all nodes of a model, or fold those of one whose nodes read no input.
SLOW_COMMANDS = [
    "compare reads.onnx -b numpy -b onnx.reference",
    "compare reads.onnx -b numpy -b onnx.reference --layers",
    "bisect reads.onnx --precision float16 --tolerance 0.1",
    "profile reads.onnx --no-peaks",
    "bench reads.onnx",
    "simplify reads.onnx out.onnx",
    "run folds.onnx",
    "tune folds.onnx --show-space --target sm_90a",
]


def slow_model(reads: bool) -> str:
    """A model whose slow node works on an input, or on a constant."""
    return f"""
        <ir_version: 10, opset_import: ["": 21, "my.domain": 1]>
        g (float[4] x) => (float[4] y) {{
            c = Constant<value = float[4] {{1, 2, 3, 4}}>()
            s = my.domain.Never({"x" if reads else "c"})
            y = Add(x, s)
        }}
    """


@pytest.mark.skipif(
    not hasattr(signal, "pthread_sigmask"),
    reason="this system has no pthread_sigmask, with which the operators here block the alarm",
)
def test_every_command_ends_promptly(folder: Path) -> None:
    """What no alarm interrupts ends with the process, soon after the time is up."""
    (folder / "never.py").write_text(NEVER)
    for name in ("reads", "folds"):
        onnx.save(onnx.parser.parse_model(slow_model(name == "reads")), folder / f"{name}.onnx")
    more = ["--timeout", "0.2", "--operators", "never.py"]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PATIENT, *command.split(), *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        for command in SLOW_COMMANDS
    ]
    try:
        for command, child in zip(SLOW_COMMANDS, started, strict=True):
            _, said = child.communicate(timeout=90)
            assert child.returncode == 7, f"{command}: {said}"
            assert "after 0.2 s" in said, command
    finally:
        for child in started:
            child.kill()
            child.communicate()


#: Work that is interrupted with a lock in its hands, beside a thread that never ends.
STUCK = """
import sys, threading, time
from tercet.tools.cli import main
from tercet.tools.run import run

def stick(*args, timeout, say, **kwargs):
    threading.Thread(target=lambda: time.sleep(1e6)).start()
    threading._shutdown_locks_lock.acquire() if hasattr(threading, "_shutdown_locks_lock") else None
    with run.all_or_nothing(timeout, say):
        while True:
            pass

from tercet.tools.common import deadline
run.all_or_nothing = deadline.all_or_nothing
run.run_model = stick
sys.argv = ["tercet", "run", "adder.onnx", "--timeout", "0.1", "--json"]
main()
"""


def test_a_process_ends_behind_interrupted_work(folder: Path) -> None:
    """Python's own end would wait for the lock, and for the thread."""
    done = in_a_process(STUCK)
    assert done.returncode == 7, done.stderr
    assert "stopped after 0.1 s" in done.stdout + done.stderr


def ends_of_process(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    ended: list[float] = []
    monkeypatch.setattr(deadline, "GRACE", 0.0)
    monkeypatch.setattr(deadline, "_end_process", ended.append)
    monkeypatch.setattr(cli, "leave", ended.append)  # it may be a slow machine
    return ended


def test_the_watchdog_is_called_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, timers = ends_of_process(monkeypatch), list[threading.Timer]()

    def timer(*arguments: Any) -> threading.Timer:
        timers.append(threading.Timer(*arguments))
        return timers[-1]

    monkeypatch.setattr(deadline, "Timer", timer)
    monkeypatch.setattr(sys, "argv", ["tercet", "run", "adder.onnx", "--timeout", "600"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert (end.value.code, ended) == (0, [])
    assert [timer.finished.is_set() for timer in timers] == [True]
    assert not deadline._WATCHES


def test_only_a_process_of_its_own_is_ended(
    tercet: Tercet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever calls `main` with arguments has other work in the process."""
    ended = ends_of_process(monkeypatch)
    monkeypatch.setattr(run, "run_model", lambda *args, **kwargs: sleep(0.5))
    tercet("run", "adder.onnx", "--timeout", 0.1)
    assert not ended
