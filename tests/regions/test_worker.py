"""A process for what may crash: it answers, and whatever becomes of it, the caller goes on."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tercet.runtime.base.guard import bounded
from tercet.runtime.base.worker import Ended, Worker
from tercet.runtime.errors import TimeLimitError

from ..processes import is_gone
from . import answering

MODULE = answering.__name__


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(MODULE) as found:
        yield found


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_one_process_answers_everything(worker: Worker) -> None:
    answers = [worker.ask({"number": i}) for i in range(3)]
    assert [each["heard"] for each in answers] == [{"number": i} for i in range(3)]
    assert len({each["process"] for each in answers}) == 1
    assert answers[0]["process"] != os.getpid()


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ({"crash": "SIGSEGV"}, "died of SIGSEGV"),
        ({"crash": "SIGABRT"}, "died of SIGABRT"),
        ({"leave": 3}, "ended with status 3"),
    ],
)
def test_a_crash_costs_one_answer(worker: Worker, question: dict[str, Any], text: str) -> None:
    first = worker.ask({})["process"]
    with pytest.raises(Ended, match=text):
        worker.ask(question)
    assert worker.ask({})["process"] != first


def test_what_takes_too_long() -> None:
    with Worker(MODULE, patience=0.2) as worker:
        with pytest.raises(Ended, match=r"not done after 0\.2 s"):
            worker.ask({"sleep": 600})
        assert worker.ask({"x": 1})["heard"] == {"x": 1}


def test_the_callers_time_is_up(worker: Worker) -> None:
    process = worker.ask({})["process"]
    with pytest.raises(TimeLimitError), bounded(0.2):
        worker.ask({"sleep": 600})
    assert is_gone(process)


def test_it_ends_by_itself_unless_it_is_busy() -> None:
    with Worker(MODULE, "0.01") as worker:
        worker.ask({"busy": True})
        time.sleep(0.1)
        process = worker._process
        assert process is not None
        assert process.poll() is None
        worker.ask({})
        wait_for(lambda: process.poll() is not None)
        assert worker.start(), "and the next one starts"


def test_it_ends_with_its_parent() -> None:
    worker = Worker(MODULE)
    process = worker.ask({})["process"]
    del worker
    gc.collect()
    assert is_gone(process)


@pytest.mark.parametrize("executable", ["", "/nowhere/python3", "/bin/sh"])
def test_where_none_can_be_started(
    worker: Worker, executable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert not worker.start()
    with pytest.raises(Ended, match="does not start"):
        worker.ask({})


def test_a_module_that_is_not_there() -> None:
    with Worker(f"{MODULE}.nothing") as worker:
        assert not worker.start()
