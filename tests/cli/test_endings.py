"""How commands end: an exit code and one message for every end, as JSON too; warnings likewise."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import warnings
from itertools import chain
from pathlib import Path

import pytest
from onnx import helper
from typer.testing import CliRunner

import tercet as api
from tercet.tools.cli import COMMANDS, app

from . import models
from .conftest import Tercet

ROOT = Path(__file__).resolve().parents[2]


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("tercet.tools.run.run.run_model", fail)
    monkeypatch.setattr("tercet.tools.doctor.doctor.diagnose", fail)


@pytest.mark.parametrize("command", [["run", "classifier.onnx"], ["doctor"]])
@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ZeroDivisionError("by nobody"), 9, ["internal error: ZeroDivisionError: by nobody"]),
        (KeyError("x"), 9, ["internal error: KeyError", "tercet doctor --json", "--debug"]),
        (OSError(errno.ENOSPC, "No space"), 2, ["no space left where standard output or a file"]),
        (RecursionError("deep"), 9, ["internal error: RecursionError"]),
        (AssertionError(), 9, ["internal error"]),
        (ExceptionGroup("several", [ValueError("one")]), 9, ["internal error"]),
        (KeyboardInterrupt(), 130, ["interrupted"]),
        (MemoryError("no room"), 6, ["too little memory"]),
        (api.TimeLimitError("late"), 7, ["late"]),
        (PermissionError(13, "Permission denied", "x.npz"), 2, ["x.npz: Permission denied"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_error_has_a_code_and_a_message(
    tercet: Tercet,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    error: BaseException,
    code: int,
    words: list[str],
) -> None:
    fail_with(monkeypatch, error)
    done = tercet(*command)
    assert (done.code, done.out) == (code, "")
    assert all(word in done.err for word in words), done.err
    told = tercet(*command, "--json")
    found = told.json["error"]
    assert told.code == found["exit_code"] == code
    assert found["type"] == type(error).__name__
    assert words[0] in found["message"]


def test_the_traceback_of_an_internal_error_is_there_with_debug(
    tercet: Tercet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, ZeroDivisionError("by nobody"))
    done = tercet("run", "classifier.onnx", "--debug")
    assert done.code == 9
    assert "Traceback" in done.err
    assert "ZeroDivisionError" in done.err


@pytest.mark.parametrize(
    ("command", "code", "kind", "field"),
    [
        ("run gone.onnx", 2, "ModelFileError", {"file": "gone.onnx"}),
        ("run classifier.onnx -i imag=x.npy", 2, "InputError", {}),
        ("run classifier.onnx --seed -1", 2, "BadParameter", {}),
        ("run classifier.onnx --bakend numpy", 2, "NoSuchOption", {}),
        ("frobnicate", 2, "UsageError", {}),
        ("run unknown.onnx", 3, "UnknownOperators", {}),
    ],
)
def test_errors_are_json(
    tercet: Tercet, folder: Path, command: str, code: int, kind: str, field: dict[str, str]
) -> None:
    models.write(models.unary("Relux", [2]), folder / "unknown.onnx")
    done = tercet(*command.split(), "--json")
    found = done.json["error"]
    assert (done.code, found["exit_code"], found["type"]) == (code, code, kind)
    assert field.items() <= found.items()
    assert found["message"]
    assert done.err


def test_warnings_are_printed_once_and_part_of_json(
    tercet: Tercet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tercet.tools.run import run

    plain = run.run_model

    def warn(*given: object, **more: object) -> object:
        for _ in range(2):
            warnings.warn("this is slow; do that", api.PerformanceWarning, stacklevel=1)
        return plain(*given, **more)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr("tercet.tools.run.run.run_model", warn)
    done = tercet("run", "classifier.onnx", "--repeat", 1)
    assert done.code == 0
    assert done.err == "warning: this is slow; do that\n"
    told = tercet("run", "classifier.onnx", "--repeat", 1, "--json")
    expected = [{"type": "PerformanceWarning", "message": "this is slow; do that"}]
    assert told.json["warnings"] == expected


# ── as a separate process ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "command",
    ["inspect classifier.onnx --cost", "inspect classifier.onnx --json", "--help", "doctor -h"],
)
def test_a_reader_that_goes_away_is_no_disagreement(folder: Path, command: str) -> None:
    """The pipe is closed before anything is written."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "tercet", *command.split()],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_interrupt_is_an_exit_code_wherever_it_is(folder: Path) -> None:
    """Python remembers one that comes while it executes a text, and ends itself by a signal."""
    (folder / "late.py").write_text("exec('raise KeyboardInterrupt')")
    line = ["-m", "tercet", "inspect", "classifier.onnx", "--operators", "late.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *line], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    "text",
    [
        "class Dying:\n    def __del__(self):\n        interrupt()\nDying()",
        "import weakref\nclass Any: pass\none = Any()\nweakref.finalize(one, interrupt)\ndel one",
        "class Named:\n    def __set_name__(self, owner, name):\n        interrupt()\n"
        "class Owner:\n    attribute = Named()",
        # as importlib's, which calls the extension
        "class ExtensionFileLoader:\n    def exec_module(self):\n        try:\n"
        "            interrupt()\n        except BaseException:\n            os.abort()\n"
        "ExtensionFileLoader().exec_module()",
        "try:\n    interrupt()\nexcept BaseException:\n    pass",
        "try:\n    interrupt()\nexcept KeyboardInterrupt as error:\n"
        "    raise RuntimeError('lost') from error",
    ],
    ids=[
        "finalizer",
        "weak reference",
        "name of an attribute",
        "extension",
        "dropped",
        "another error",
    ],
)
def test_an_interrupt_is_never_lost(folder: Path, text: str) -> None:
    """Whatever has become of its exception: as Python does in finalizers, say."""
    begin = "import os, signal, time\ndef interrupt():\n    os.kill(os.getpid(), signal.SIGINT)\n"
    (folder / "late.py").write_text(f"{begin}\n{text}\ntime.sleep(20)\n")
    code = (
        "import signal, sys\n"  # where a shell starts it in the background, SIGINT is ignored
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.argv = ['tercet', 'inspect', 'classifier.onnx', '--operators', 'late.py']\n"
        "from tercet.__main__ import main\n"
        "main()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.usefixtures("folder")
def test_names_are_whole_in_a_pipe(tercet: Tercet, folder: Path) -> None:
    """However long they are: grep finds them."""
    name = "_".join(["a_long_name_of_a_tensor"] * 10)
    node = helper.make_node("Relu", ["x"], [name], name=f"node_{name}")
    ends = [models.tensor("x", [2])], [models.tensor(name, [2])]
    models.write(models.model_of([node], *ends), folder / "long.onnx")
    for command in (
        "run long.onnx --repeat 1 --trace-shapes",
        "compare long.onnx -b numpy -b onnx.reference --repeat 1",
        "inspect long.onnx --placement numpy --cost --memory",
        "profile long.onnx --no-peaks --repeat 1",
    ):
        done = tercet(*command.split())
        assert done.code == 0
        assert name in done.out, done.out


# ── help ─────────────────────────────────────────────────────────────────────────────────────────


def test_summaries_are_whole() -> None:
    text = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    for command in chain.from_iterable(COMMANDS.values()):
        assert (command.__doc__ or "").partition("\n")[0] in text
    assert "..." not in text.split("Run and compare:")[1]


def test_completion_can_be_installed() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "_TERCET_COMPLETE": "complete_bash"}
    environment |= {"COMP_WORDS": "tercet comp", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tercet"], capture_output=True, text=True, env=environment
    )
    assert done.stdout.split() == ["compare", "compress", "compile"]


# ── custom operators and files ───────────────────────────────────────────────────────────────────

SWISH = """
import numpy as np

def swish(x, *, beta=1.0):
    return x / (1 + np.exp(-beta * x))

OPERATORS = {("my.domain", "Swish"): swish}
"""


@pytest.fixture
def swish(folder: Path) -> None:
    from onnx.parser import parse_model

    models.write(
        parse_model(
            '<ir_version: 10, opset_import: ["" : 21, "my.domain" : 1]>\n'
            "g (float[2] x) => (float[2] y) { s = my.domain.Swish <beta = 2.0> (x)  y = Abs (s) }"
        ),
        folder / "swish.onnx",
    )
    Path("ops.py").write_text(SWISH, encoding="utf-8")


@pytest.mark.usefixtures("swish")
@pytest.mark.parametrize(
    "command",
    [
        "run swish.onnx --repeat 1",
        "compare swish.onnx -b numpy -b out.npz --repeat 0",
        "compare swish.onnx --layers -b numpy --other swish.onnx",
        "bisect swish.onnx",
        "bisect swish.onnx --precision float16 --tolerance 1",
        "export swish.onnx other.onnx",
        "simplify swish.onnx other.onnx",
        "extract swish.onnx other.onnx --outputs s",
        "inspect swish.onnx --passes --placement numpy --capability numpy",
        "profile swish.onnx --repeat 1 --no-peaks",
        "bench swish.onnx -b numpy --duration 0.01 --warm-up 0",
    ],
)
def test_every_command_takes_custom_operators(tercet: Tercet, command: str) -> None:
    assert tercet("run", "swish.onnx", "--operators", "ops.py", "--save", "out.npz").code == 0
    done = tercet(*command.split(), "--operators", "ops.py")
    assert done.code == 0, done.err
    if not command.startswith("inspect"):  # which describes what it does not know
        assert tercet(*command.split()).code == 3


@pytest.mark.usefixtures("swish")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["error: bad.py: there is no such file"]),
        ("x = 1", ["bad.py", "OPERATORS = {"]),
        ("OPERATORS = [1]", ["bad.py", "OPERATORS = {"]),
        ("1 / 0", ["bad.py", "ZeroDivisionError"]),
        ("def", ["bad.py", "SyntaxError"]),
        ("OPERATORS = {'Swish': abs}", ["(domain, name)"]),
        ("OPERATORS = {('my.domain', 'Swish'): 5}", ["Swish"]),
    ],
)
def test_a_wrong_file_of_operators(tercet: Tercet, text: str | None, words: list[str]) -> None:
    if text is not None:
        Path("bad.py").write_text(text, encoding="utf-8")
    done = tercet("run", "swish.onnx", "--operators", "bad.py")
    assert done.code == 2
    assert all(word in done.err for word in words), done.err


def link(target: str, name: str) -> str:
    Path(name).symlink_to(target)
    return name


def hard_link(target: str, name: str) -> str:
    Path(name).hardlink_to(target)
    return name


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", ["export", "simplify", "extract"])
@pytest.mark.parametrize("name", ["itself", "link", "hard link", "folder"])
def test_a_model_is_not_written_over_itself(tercet: Tercet, command: str, name: str) -> None:
    file = Path("classifier.onnx")
    before = file.read_bytes()
    out = {
        "itself": lambda: "classifier.onnx",
        "link": lambda: link("classifier.onnx", "link.onnx"),
        "hard link": lambda: hard_link("classifier.onnx", "hard.onnx"),
        "folder": lambda: "../" + Path.cwd().name + "/classifier.onnx",
    }[name]()
    done = tercet(command, "classifier.onnx", out)
    assert done.code == 2
    assert "--force" in done.err
    assert file.read_bytes() == before
    if name == "itself":
        assert tercet(command, "classifier.onnx", out, "--force").code == 0
        assert file.read_bytes() != before


@pytest.mark.usefixtures("folder")
def test_the_file_of_another_model_is_replaced(tercet: Tercet) -> None:
    assert tercet("export", "classifier.onnx", "adder.onnx").code == 0
    assert json.loads(tercet("inspect", "adder.onnx", "--json").out)["inputs"]


def test_progress_tells_how_long_a_stage_takes() -> None:
    from tercet.tools.common.console import Remaining

    seconds = iter(range(0, 1000, 2))
    remaining = Remaining(lambda: float(next(seconds)))
    assert remaining.of("numpy: loading") == ""
    assert remaining.of("numpy: step 1 of 20") == ""  # at 0 s
    assert remaining.of("numpy: step 2 of 20") == ", about 38 s left"  # 2 s for one of 19 more
    assert remaining.of("cuda: step 1 of 20") == ""  # another stage begins
    assert remaining.of("cuda: step 3 of 20") == ", about 18 s left"


@pytest.mark.parametrize(
    ("closed", "model", "code"), [(">&-", "classifier", 0), ("2>&-", "gone", 2)]
)
@pytest.mark.usefixtures("folder")
def test_streams_may_be_closed(closed: str, model: str, code: int) -> None:
    line = f"exec {sys.executable} -m tercet run {model}.onnx --repeat 0 {closed}"
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert (done.returncode, done.stdout if code else done.stderr) == (code, b"")


@pytest.mark.parametrize(
    "line",
    [
        "run classifier.onnx --save shut/out.npz",
        "compare classifier.onnx -b numpy -b onnx.reference --save shut/out.npz",
        "profile classifier.onnx --trace shut/out.json",
        "bisect classifier.onnx --reduce shut/new/fault",
    ],
)
def test_folders_that_cannot_be_written_are_known_before_work_begins(
    tercet: Tercet, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    Path("shut").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "shut")
    monkeypatch.setattr("tercet.api.load", lambda *_, **__: pytest.fail("work has begun"))
    done = tercet(*line.split())
    assert (done.code, done.out) == (2, "")
    assert "no permission to write in the folder 'shut'" in done.err


@pytest.mark.parametrize("module", ["typer", "numpy"])
def test_interrupted_while_modules_are_imported(module: str) -> None:
    """As later: no traceback, and the code of an interrupt, in whatever a module executes.

    What is imported in part is not imported again: numpy refuses that.
    """
    code = (
        "import builtins, sys\n"
        "sys.argv = ['tercet', 'run', 'adder.onnx']\n"
        "real = builtins.__import__\n"
        "def interrupted(name, *rest):\n"
        f"    if name == '{module}': raise KeyboardInterrupt\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = interrupted\n"
        "from tercet.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has this full disk")
@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("run", "--repeat", "1", "--save", "full.npz"), "outputs"),
        (("compare", "-b", "numpy", "-b", "onnxruntime", "--save", "full.npz"), "runners"),
        (("profile", "--repeat", "1", "--no-peaks", "--trace", "full.json"), "rows"),
        (("inspect", "--graph", "full.svg"), "operators"),
        (("bisect", "--precision", "float16", "--tolerance", "1e-5", "--save", "full.txt"), "keep"),
    ],
    ids=lambda value: value[0],
)
def test_results_are_told_where_their_files_have_no_room(
    tercet: Tercet, folder: Path, arguments: tuple[str, ...], field: str
) -> None:
    command, *options = arguments
    (folder / options[-1]).symlink_to("/dev/full")
    done = tercet(command, "classifier.onnx", *options)
    assert done.code == 2
    assert f"{options[-1]}: No space left on device" in done.err
    assert "classifier.onnx" in done.out
    told = tercet(command, "classifier.onnx", *options, "--json").json
    assert told[field]
    assert told["error"]["message"] == f"{options[-1]}: No space left on device"
