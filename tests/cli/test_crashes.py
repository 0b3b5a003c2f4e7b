"""onnxruntime ends by a signal, or never: that is said, and all else goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import onnx
import pytest

import tercet as api
from tercet.tools.common.ended import RunnerEnded
from tercet.tools.runners.fatal_node import fatal_node
from tercet.tools.runners.onnxruntime_process import (
    OnnxruntimeProcess,
    ProcessEnded,
    SessionRefused,
)
from tercet.tools.runners.onnxruntime_server import Setup

from .. import onnxruntime_programs
from ..packages import needs_fork
from ..processes import is_gone
from .conftest import Tercet

#: Its Einsum is fatal to `dying`, if an axis is empty, as it was to onnxruntime 1.31.
FATAL = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[a, b, c] x) => (float[d, e, f] z) {
      r = Relu(x)
      [first] y = Einsum<equation="abc,azc->abz">(r, r)
      s = Sigmoid(y)
      z = Add(s, s)
    }"""
EMPTY = {"x": np.zeros((0, 3, 4), np.float32)}
FULL = {"x": np.ones((1, 3, 4), np.float32)}
BOTH = ["numpy", "onnxruntime"]
ON_EMPTY = "fatal.onnx", "--inputs-from", "empty.npz", "--json"


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """onnxruntime's processes end where a model with an Einsum reads an empty tensor."""
    onnxruntime_programs.use(monkeypatch, tmp_path, onnxruntime_programs.DYING)


@pytest.fixture
def fatal(folder: Path, dying: None) -> Path:
    onnx.save(onnx.parser.parse_model(FATAL), folder / "fatal.onnx")
    np.savez(folder / "empty.npz", x=EMPTY["x"])
    return folder / "fatal.onnx"


@pytest.mark.usefixtures("fatal")
def test_compare_says_who_ended_by_what_and_where(tercet: Tercet) -> None:
    done = tercet("compare", "-b", "numpy", "-b", "onnxruntime", *ON_EMPTY)
    assert done.code == 10
    assert (done.json["ok"], done.json["verdict"]) == (False, "inconclusive")
    (end,) = done.json["ended"]
    assert (end["runner"], end["by"], end["stage"]) == ("onnxruntime", "SIGFPE", "running")
    assert (end["model"], end["node"], end["operator"]) == ("fatal.onnx", "first", "Einsum")


@pytest.mark.usefixtures("fatal")
def test_a_reference_that_ends_is_an_error(tercet: Tercet) -> None:
    done = tercet("compare", "-b", "onnxruntime", "-b", "numpy", *ON_EMPTY)
    assert done.code == 10
    assert "onnxruntime ended by SIGFPE" in done.err
    assert done.json["error"]["node"] == "first"


@pytest.mark.usefixtures("dying")
def test_all_others_are_compared() -> None:
    model = onnx.parser.parse_model(FATAL)
    found = api.compare(model, [*BOTH, "onnx.reference"], EMPTY, repeat=1, allow_inconclusive=True)
    assert [result.name for result in found.results] == ["numpy", "onnx.reference"]
    assert found["onnx.reference"].ok
    assert (found.ok, found.exit_code) == (False, 10)
    lines = str(found).splitlines()
    assert lines[0].startswith("CRASH: onnxruntime ended by SIGFPE")
    assert "onnx.reference agrees with numpy" in lines


def test_layers_and_bisect_name_the_node(fatal: Path) -> None:
    layers = api.compare_layers(fatal, BOTH, EMPTY, optimise=False)
    assert [layer.verdict for layer in layers.layers] == ["equal", "crashed", "equal", "equal"]
    assert (layers.exit_code, layers.first) == (10, None)
    found = api.bisect(fatal, BOTH, EMPTY)
    assert (found.fault, found.nodes, found.exit_code) == ("crash", ("first",), 10)
    assert found.reduced is not None
    assert found.reduced.nodes == ("first",)


def test_a_runtime_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A request that takes longer than its limit ends the process; the next one gets another."""
    onnxruntime_programs.use(monkeypatch, folder, onnxruntime_programs.ENDLESS)
    found = api.compare(onnx.parser.parse_model(FATAL), BOTH, FULL, repeat=1, runner_timeout=1.0)
    (end,) = found.ended
    assert (end.by, end.node) == ("time limit", "")
    assert "did not answer within 1 s while running" in str(end)


def test_what_a_process_is_killed_by() -> None:
    process = OnnxruntimeProcess()
    session = process.open(onnx.parser.parse_model(FATAL).SerializeToString(), Setup())
    os.kill(number_of(process), signal.SIGKILL)
    with pytest.raises(ProcessEnded, match=r"SIGKILL.*memory") as caught:
        session.run(FULL, ["z"])
    assert not caught.value.may_recur
    with pytest.raises(ProcessEnded, match="had ended before"):
        session.run(FULL, ["z"])


def test_nothing_is_left_of_a_process_whose_user_is_killed(folder: Path) -> None:
    """Large arrays lie in memory, in a folder that must not stay."""
    script = folder / "killed.py"
    script.write_text(
        "import os, signal\n"
        "from tercet.tools.runners.onnxruntime_process import OnnxruntimeProcess\n"
        "print(OnnxruntimeProcess().start()._folder, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    left = Path(done.stdout.strip())
    assert left.name.startswith("tercet-")
    deadline = monotonic() + 60
    while left.exists() and monotonic() < deadline:
        sleep(0.02)
    assert not left.exists()


def test_one_process_has_many_sessions_and_keeps_texts_of_errors() -> None:
    process, data = OnnxruntimeProcess(), onnx.parser.parse_model(FATAL).SerializeToString()
    first, second = process.open(data, Setup()), process.open(data, Setup("ORT_DISABLE_ALL"))
    large = np.random.default_rng(0).random((30, 2, 20000)).astype(np.float32)  # in a file
    for session in (first, second):
        found = np.asarray(session.run({"x": large}, ["z"])[0])
        exact = 2 / (1 + np.exp(-np.einsum("abc,azc->abz", large, large)))
        np.testing.assert_allclose(found, exact, rtol=1e-5)
        assert found.flags.writeable
        session.repeat()
        assert session.seconds is not None
    with pytest.raises(SessionRefused, match="Required inputs"):
        first.run({}, ["z"])
    with pytest.raises(SessionRefused, match="INVALID_PROTOBUF"):
        process.open(b"no model", Setup())
    first.close()
    second.run(FULL, ["z"])


def number_of(process: OnnxruntimeProcess) -> int:
    """Return the system's number of a process."""
    return process.start()._process.pid  # pyright: ignore[reportPrivateUsage]


def test_a_process_that_is_left_is_the_next_users(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """But none that has ended, or still has a model."""
    onnx.save(onnx.parser.parse_model(FATAL), folder / "here.onnx")
    first = OnnxruntimeProcess()
    first.open("here.onnx", Setup()).close()
    number = number_of(first)
    del first
    (folder / "deeper").mkdir()
    onnx.save(onnx.parser.parse_model(FATAL), folder / "deeper" / "there.onnx")
    monkeypatch.chdir(folder / "deeper")  # it looks for files where its user is
    second = OnnxruntimeProcess()
    session = second.open("there.onnx", Setup())
    assert number_of(second) == number
    del session, second
    assert is_gone(number)
    third = OnnxruntimeProcess()
    number = number_of(third)
    os.kill(number, signal.SIGKILL)
    third.start()._process.wait()  # pyright: ignore[reportPrivateUsage]
    del third
    fourth = OnnxruntimeProcess()
    fourth.open("there.onnx", Setup()).close()
    assert number_of(fourth) != number


class Unreadable:
    """An object whose module the other process lacks."""

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, ("a_module_that_is_nowhere",)


@needs_fork
def test_a_forked_process_has_one_of_its_own() -> None:
    """And leaves that of its parent alone, whose answers nobody would collect."""
    model = onnx.parser.parse_model(FATAL).SerializeToString()
    process = OnnxruntimeProcess()
    session = process.open(model, Setup())
    child = os.fork()
    if child == 0:
        code = 1
        signal.alarm(100)  # where it waits, it ends
        try:
            session.run(FULL, session.outputs)
        except ProcessEnded as end:
            session.close()
            own = process.open(model, Setup())
            found = own.run(FULL, own.outputs)
            process.close()
            code = 0 if "forked" in end.cause and len(found) == 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(session.run(FULL, session.outputs)) == 1
    process.close()


def test_a_request_that_cannot_be_read_ends_its_process() -> None:
    process = OnnxruntimeProcess(limit=60)
    session = process.open(onnx.parser.parse_model(FATAL).SerializeToString(), Setup())
    with pytest.raises(ProcessEnded, match="a_module_that_is_nowhere") as caught:
        session.run({"x": Unreadable()}, session.outputs)
    assert caught.value.by == "exit code 1"


def test_the_process_does_not_import_tercet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    onnxruntime_programs.use(monkeypatch, tmp_path, onnxruntime_programs.ALONE)
    model = onnx.parser.parse_model(FATAL).SerializeToString()
    process = OnnxruntimeProcess(limit=60)
    session = process.open(model, Setup())
    (found,) = session.run(FULL, session.outputs)
    assert isinstance(found, np.ndarray)
    assert found.shape == (1, 3, 3)


def test_a_script_without_a_guard_is_not_run_again(folder: Path) -> None:
    """The other process is no copy of its user's."""
    script = folder / "script.py"
    onnx.save(onnx.parser.parse_model(FATAL), folder / "fatal.onnx")
    script.write_text(
        "import json, tercet\n"
        "found = tercet.compare('fatal.onnx', ['numpy', 'onnxruntime'], repeat=1)\n"
        "print(json.dumps(found.to_dict()))\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=folder, check=True
    )
    assert json.loads(done.stdout)["ok"]
    assert not done.stderr


@pytest.mark.parametrize("fault", [0, 1, 2, 3])
def test_the_first_fatal_node_is_found(fault: int) -> None:
    model = onnx.parser.parse_model(FATAL)
    wanted = model.graph.node[fault].output[0]
    asked: list[int] = []

    def is_fatal(part: onnx.ModelProto) -> bool:
        asked.append(len(part.graph.node))
        return any(wanted in node.output for node in part.graph.node)

    found: Any = fatal_node(model, is_fatal)
    assert found.output[0] == wanted
    assert len(asked) <= 3
    assert fatal_node(onnx.parser.parse_model(FATAL), lambda _: False) is None


def test_the_error_is_one_sentence() -> None:
    error = RunnerEnded(
        "onnxruntime", "SIGSEGV", "ended by SIGSEGV", "loading", "a.onnx", "n", "Conv"
    )
    assert str(error) == "onnxruntime ended by SIGSEGV while loading a.onnx, at node 'n' (Conv)"
