"""Bad input: one message that names file, node or input, a documented exit code, no traceback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import tercet as api

from . import models
from .conftest import Tercet

ROOT = Path(__file__).resolve().parents[2]
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"


def truncate(file: Path) -> None:
    whole = models.classifier().SerializeToString()
    file.write_bytes(whole[: len(whole) // 2])


def lose_weights(file: Path) -> None:
    onnx.save(
        models.classifier(), file, save_as_external_data=True, location="gone", size_threshold=0
    )
    (file.parent / "gone").unlink()


def contradict(file: Path) -> None:
    node = helper.make_node("MatMul", ["x", "x"], ["y"], name="product")
    ends = [models.tensor("x", [2, 3])], [models.tensor("y", None)]
    models.write(models.model_of([node], *ends), file)


@pytest.mark.parametrize("command", ["run", "compare"])
def test_unknown_operators(tercet: Tercet, folder: Path, command: str) -> None:
    models.write(models.unary("Relux", [2]), folder / "bad.onnx")
    done = tercet(command, "bad.onnx")
    assert (done.code, done.out) == (3, "")
    words = ["error: bad.onnx: ", "Relux (opset", "'only'", "did you mean 'Relu'"]
    assert all(word in done.err for word in words)
    assert tercet("inspect", "bad.onnx").code == 0


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda file: None, 2, ["no such file"]),
        (lambda file: file.write_text("hello, this is no model\n"), 4, ["not an ONNX model"]),
        (lambda file: file.write_text(LFS), 4, ["LFS pointer", "git lfs pull"]),
        (lambda file: file.write_text("<!DOCTYPE html><html></html>"), 4, ["HTML"]),
        (lambda file: file.write_bytes(b""), 4, ["empty"]),
        (lambda file: file.mkdir(), 2, ["folder"]),
        (truncate, 4, ["truncated"]),
        (lose_weights, 2, ["'w'", "'gone'"]),
        (contradict, 4, ["node 'product' (MatMul)", "float32[2,3]"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.parametrize("command", ["run", "inspect", "compare"])
def test_bad_models(
    tercet: Tercet,
    folder: Path,
    make: Callable[[Path], object],
    code: int,
    words: list[str],
    command: str,
) -> None:
    make(folder / "bad.onnx")
    more = ["-b", "numpy", "-b", "onnxruntime"] if command == "compare" else []
    done = tercet(command, "bad.onnx", *more)
    assert done.code == code
    assert not done.out
    (line,) = done.err.splitlines()
    assert line.startswith("error: bad.onnx: ")
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    "command",
    [
        "run gone.onnx",
        "compare gone.onnx -b numpy -b onnxruntime",
        "compare gone.onnx -b onnxruntime -b onnx.reference",
        "compare gone.onnx --layers -b numpy -b onnxruntime",
        "compare classifier.onnx --layers -b numpy --other gone.onnx",
        "bisect gone.onnx -b numpy -b onnxruntime",
        "export gone.onnx out.onnx",
        "simplify gone.onnx out.onnx",
        "extract gone.onnx out.onnx --outputs y",
        "inspect gone.onnx",
        "profile gone.onnx",
        "bench gone.onnx",
        "tune gone.onnx --show-space",
    ],
)
def test_a_model_that_is_not_there(tercet: Tercet, command: str) -> None:
    done = tercet(*command.split())
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: gone.onnx: there is no such file\n"


@pytest.fixture
def files(folder: Path) -> None:
    """Arrays and other files that do not fit classifier.onnx."""
    for name, data in {
        "good": np.zeros((1, 3, 8, 8), np.float32),
        "dtype": np.zeros((1, 3, 8, 8)),
        "rank": np.zeros((3, 8, 8), np.float32),
        "shape": np.zeros((1, 4, 8, 8), np.float32),
    }.items():
        np.save(f"{name}.npy", data)
    np.save("objects.npy", np.array([{}], object), allow_pickle=True)
    np.savez("two.npz", this=np.zeros(1), that=np.zeros(1))
    for suffix in ("npy", "npz", "pb", "png"):
        Path(f"junk.{suffix}").write_text("junk")
    whole = Path("good.npy").read_bytes()
    Path("cut.npy").write_bytes(whole[:-40])
    Path("empty").mkdir()


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        # the list: wrong name, dtype, rank, shape, missing input
        ("-i imag=good.npy", ["no input 'imag'", "did you mean 'image'"]),
        ("-i dtype.npy", ["'image'", "float64", "float32[batch,3,8,8]"]),
        ("-i rank.npy", ["'image'", "[3, 8, 8]", "rank 4"]),
        ("-i shape.npy", ["'image'", "[1, 4, 8, 8]", "axis 1 must be 3"]),
        ("adder.onnx -i a=good.npy", ["'a'", "[1, 3, 8, 8]", "rank 2"]),
        ("adder.onnx -i good.npy", ["2 inputs", "NAME=good.npy"]),
        # files
        ("-i gone.npy", ["gone.npy: there is no such file"]),
        ("-i gone.npz", ["gone.npz: there is no such file"]),
        ("-i gone.pb", ["gone.pb: there is no such file"]),
        ("-i gone.png", ["gone.png: there is no such file"]),
        ("-i junk.npy", ["junk.npy is not a .npy file", "numpy.save"]),
        ("-i junk.npz", ["junk.npz is not an .npz file"]),
        ("-i junk.pb", ["junk.pb is not an ONNX tensor"]),
        ("-i junk.png", ["junk.png is not an image"]),
        ("-i cut.npy", ["cut.npy is damaged"]),
        ("-i objects.npy", ["objects.npy", "Object arrays"]),
        ("-i two.npz", ["two.npz has no array 'image'", "this, that"]),
        ("-i good.txt", ["good.txt", ".npy, .npz, .pb"]),
        ("-i good.npy -i good.npy", ["given 2 times"]),
        ("-i good.npy --inputs-from empty", ["exclude each other"]),
        ("--inputs-from empty", ["no input_0.pb"]),
        ("--inputs-from gone", ["gone", "input_0.pb"]),
        # options
        ("--dim batches=2", ["'batches'", "did you mean 'batch'"]),
        ("--dim batch", ["NAME=SIZE, such as batch=4"]),
        ("--dim batch=-1", ["NAME=SIZE, such as batch=4"]),
        ("--shape 1*3", ["--shape '1*3'", "1x3x224x224"]),
        ("--shape 1x3", ["2 axes", "float32[batch,3,8,8]"]),
        (
            "adder.onnx --shape a=2x3 --shape b=4x3",
            ["'n' is 2 in input 'a' but 4 in input 'b'", "'add'"],
        ),
        ("--dim batch=99999999999999", ["no machine has room"]),
        ("--backend nunpy", ["'nunpy'", "did you mean 'numpy'"]),
        ("--fallback nunpy", ["'nunpy'", "did you mean 'numpy'"]),
        ("--precision float33", ["--precision float33: expected one of", "did you mean 'float32'"]),
        ("--outputs score", ["no tensor 'score'", "did you mean 'scores'"]),
        ("--repeat -1", ["--repeat -1: expected"]),
        ("--save out.npy", ["out.npy", ".npz"]),
        ("--save gone/out.npz", ["gone/out.npz: there is no folder 'gone'"]),
        ("--std 0", ["cannot be 0"]),
        ("--std nan", ["must be finite"]),
        ("--mean 1,inf", ["must be finite"]),
        ("--mean 1;2", ["--mean 1;2"]),
    ],
)
def test_bad_inputs_and_options(tercet: Tercet, arguments: str, words: list[str]) -> None:
    given = arguments.split()
    if given[0] != "adder.onnx":
        given.insert(0, "classifier.onnx")
    done = tercet("run", *given)
    assert done.code == 2
    assert not done.out
    (line,) = done.err.splitlines()
    assert line.startswith("error: ")
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("adder.onnx --input a=gone.npy", "gone.npy"),
        ("classifier.onnx --weights gone.safetensors", "gone.safetensors"),
    ],
)
def test_files_that_are_missing_are_said_to_be(tercet: Tercet, command: str, file: str) -> None:
    done = tercet("run", *command.split())
    assert (done.code, done.err) == (2, f"error: {file}: there is no such file or folder\n")


@pytest.mark.parametrize("command", ["report here", "compare adder.onnx --load here"])
def test_folders_are_no_files(tercet: Tercet, folder: Path, command: str) -> None:
    (folder / "here").mkdir()
    done = tercet(*command.split())
    assert (done.code, done.err) == (2, "error: here: is a folder; give a file\n")


def test_arrays_that_are_missing_are_said_to_be(folder: Path) -> None:
    with pytest.raises(OSError, match=r"gone\.npz: there is no such file or folder"):
        api.compare(folder / "classifier.onnx", inputs="gone.npz")


def test_missing_input(tercet: Tercet) -> None:
    np.save("a.npy", np.zeros((2, 2), np.float32))
    done = tercet("run", "adder.onnx", "-i", "a=a.npy")
    assert done.code == 2
    assert "input 'b' is missing" in done.err


def test_dimensions_that_were_assumed_are_named(tercet: Tercet, folder: Path) -> None:
    node = helper.make_node("MaxPool", ["x"], ["y"], name="pool", kernel_shape=[3, 3])
    ends = [models.tensor("x", [1, 1, "height", "width"])], [models.tensor("y", None)]
    models.write(models.model_of([node], *ends), folder / "m.onnx")
    done = tercet("run", "m.onnx")
    assert done.code == 2
    assert "defaulted to 1: height, width" in done.err
    assert tercet("run", "m.onnx", "--trace-shapes", "--repeat", 0).code == 2
    assert tercet("run", "m.onnx", "--dim", "height=5", "--dim", "width=4").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "error: missing argument 'MODEL'\n  `tercet run --help` describes its usage"),
        (
            ["profile", "--diff", "before.json"],
            "error: option '--diff' requires 2 arguments\n  `tercet profile --help` describes",
        ),
        ([], "Usage: tercet [OPTIONS] COMMAND [ARGS]...\n\n  Run ONNX models"),
        (
            ["run", "classifier.onnx", "--bakend", "numpy"],
            "error: no such option: --bakend; did you mean '--backend'?\n",
        ),
        (["run", "classifier.onnx", "--precison", "float16"], "did you mean '--precision'?\n"),
        (["run", "classifier.onnx", "--xyzzy"], "error: no such option: --xyzzy\n"),
        (["frobnicate"], "error: no such command 'frobnicate'\n  `tercet --help`"),
        (["comapre"], "did you mean 'compare'"),
        (
            ["run", "classifier.onnx", "--seed", "-1"],
            "error: --seed -1: expected a whole number >= 0",
        ),
        (["run", "classifier.onnx", "--scale", "x"], "error: --scale x: expected a number"),
        (["run", "classifier.onnx", "--seed", "x"], "error: --seed x: expected a whole number"),
        (["compare", "adder.onnx", "-b", "numpy"], "two runners"),
        (["compare", "adder.onnx", "b.onnx"], "of two models, the second follows --layers --other"),
        (["doctor", "--require", "nunpy"], "did you mean 'numpy'"),
    ],
)
def test_usage(tercet: Tercet, arguments: list[str], words: str) -> None:
    done = tercet(*arguments)
    assert done.code == 2
    assert words in done.err


def is_loaded(file: Path) -> bool:
    """Whether the onnxruntime that is installed knows the versions of a file."""
    from onnxruntime import InferenceSession
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail

    try:
        InferenceSession(file, providers=["CPUExecutionProvider"])
    except Fail:
        return False
    return True


@pytest.mark.parametrize(
    ("ir", "opset"), [(onnx.IR_VERSION, 21), (13, onnx.defs.onnx_opset_version())]
)
def test_a_model_that_may_be_newer_than_onnxruntime(
    tercet: Tercet, folder: Path, ir: int, opset: int
) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    ends = [models.tensor("x", [2])], [models.tensor("y", [2])]
    proto = models.model_of([node], *ends)
    proto.ir_version = ir
    proto.opset_import[0].version = opset
    models.write(proto, folder / "new.onnx")
    done = tercet("compare", "new.onnx", "-b", "onnxruntime", "-b", "numpy")
    if is_loaded(folder / "new.onnx"):
        assert done.code == 0
        return
    assert done.code == 3
    remedy = re.search(r"`tercet (export MODEL OUT .*)` writes", done.err)
    assert remedy is not None
    words = remedy[1].replace("MODEL", "new.onnx").replace("OUT", "older.onnx").split()
    assert tercet(*words).code == 0
    assert tercet("compare", "older.onnx", "-b", "onnxruntime", "-b", "numpy").code == 0


def test_a_backend_that_cannot_run_here(tercet: Tercet) -> None:
    missing = {found.name: found for found in api.available() if not found}
    for name, found in missing.items():
        done = tercet("run", "classifier.onnx", "--backend", name)
        assert done.code == 5
        assert f"backend '{name}' cannot run here" in done.err
        assert found.remedy in done.err


def test_debug_adds_the_traceback(tercet: Tercet) -> None:
    for arguments in (["--debug", "run", "gone.onnx"], ["run", "gone.onnx", "--debug"]):
        done = tercet(*arguments)
        assert done.code == 2
        assert "Traceback" in done.err
        assert done.err.splitlines()[-1] == "error: gone.onnx: there is no such file"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, ""),
        (MemoryError("no room"), 6, "too little memory: no room"),
        (api.DeviceError("the kernel failed"), 6, "the kernel failed"),
        (OSError(28, "No space left on device", "out.npz"), 2, "out.npz: No space left"),
    ],
)
def test_other_ends(
    tercet: Tercet, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, words: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("tercet.tools.run.run.run_model", fail)
    done = tercet("run", "classifier.onnx")
    assert done.code == code
    assert words in done.err


# ── as a separate process ──────────────────────────────────────────────────────────────────────


def python(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m tercet` in the current folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    environment.pop("COLUMNS", None)
    return subprocess.run(
        [sys.executable, "-m", "tercet", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def test_help_is_there_at_once_and_loads_nothing_heavy(folder: Path) -> None:
    script = """
import sys
from tercet.tools.cli import main
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0
print(*{name.split(".")[0] for name in sys.modules})
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert not {"numpy", "onnx", "onnxruntime", "cuda", "rich"} & set(loaded)
    assert all(
        f"  {name} " in done.stdout for name in ("run", "compare", "inspect", "doctor", "demo")
    )


def test_version(folder: Path) -> None:
    assert python("--version").stdout == f"tercet {api.__version__}\n"


def test_plain_text_in_pipes(folder: Path) -> None:
    """Whatever the terminal could show; what turns colours off there is tested below."""
    done = python("inspect", "classifier.onnx", "--passes", TERM="xterm-256color")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("more", "style"),
    [
        ({"TERM": "xterm"}, "\x1b[31m"),
        ({"TERM": "xterm", "NO_COLOR": ""}, "\x1b[31m"),
        ({"TERM": "xterm", "NO_COLOR": "1"}, ""),
        ({"TERM": "dumb"}, ""),
    ],
)
def test_errors_have_a_colour_where_terminals_have_some(more: dict[str, str], style: str) -> None:
    """https://no-color.org: no colour if NO_COLOR is present and not empty."""
    ours, theirs = os.openpty()
    environment = {n: v for n, v in os.environ.items() if n != "NO_COLOR"}
    environment |= {"PYTHONPATH": str(ROOT), **more}
    command = [sys.executable, "-m", "tercet", "run", "none.onnx"]
    subprocess.run(command, stderr=theirs, env=environment, check=False)
    os.close(theirs)
    said = os.read(ours, 1000).decode()
    os.close(ours)
    assert said.startswith(f"{style}\x1b[1merror: " if style else "error: ")
    assert ("\x1b" in said) is bool(style)


def test_a_reader_that_goes_away(folder: Path) -> None:
    command = f"{sys.executable} -m tercet inspect classifier.onnx --json | head -c 1"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout == "{"
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has this full disk")
@pytest.mark.parametrize(
    ("file", "words"), [("classifier.onnx", "no space"), ("no.onnx", "no such")]
)
def test_errors_are_told_where_json_has_no_room(folder: Path, file: str, words: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tercet", "inspect", file, "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "classifier.onnx", "--save", "lost/out.npz"), "there is no folder 'lost'"),
        (("run", "classifier.onnx", "--save", "full"), "full: is a folder"),
        (("compare", "classifier.onnx", "--save", "lost/out.npz"), "there is no folder 'lost'"),
        (("profile", "classifier.onnx", "--trace", "lost/t.json"), "there is no folder 'lost'"),
        (("inspect", "classifier.onnx", "--graph", "lost/g.svg"), "there is no folder 'lost'"),
        (("inspect", "classifier.onnx", "--passes", "--ir", "classifier.onnx"), "is a file"),
        (("bisect", "classifier.onnx", "--reduce", "classifier.onnx"), "is a file"),
        (("report", "any.json", "-o", "lost/r.html"), "there is no folder 'lost'"),
        (("conformance", "--write", "lost/page.md"), "there is no folder 'lost'"),
    ],
)
def test_places_for_results_are_known_before_there_are_any(
    tercet: Tercet, folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    (folder / "full").mkdir()
    done = tercet(*arguments)
    assert (done.code, done.out) == (2, "")
    assert words in done.err


def test_an_option_of_a_backend_that_does_not_run(tercet: Tercet, folder: Path) -> None:
    option = "--backend-option", "openvino.min_nodes=2"
    done = tercet("run", "classifier.onnx", *option)
    assert done.code == 2
    assert "backend 'numpy' does not use it; leave it out, or run on" in done.err


def test_axes_without_names_are_set_by_their_input(tercet: Tercet, folder: Path) -> None:
    models.write(models.unary("Relu", [None, 2]), folder / "open.onnx")
    done = tercet("run", "open.onnx", "--dim", "batch=2")
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("; --shape (shapes) sets axes without a name, as of 'x'\n")


@pytest.mark.parametrize("command", ["bisect", "bench", "compare --layers"])
def test_saved_outputs_are_for_compare(tercet: Tercet, command: str) -> None:
    name, *more = command.split()
    done = tercet(name, "classifier.onnx", *more, "-b", "numpy", "-b", "saved.npz")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: 'saved.npz': saved outputs take part only in compare")
