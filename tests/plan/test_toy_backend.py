"""The backend of docs/adding_a_backend.md, as a separate package."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tercet import BackendUnavailable, backends
from tercet.runtime.options import Options

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "adding_a_backend.md"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder as pip leaves one: the page's module, and its entry point."""
    text = PAGE.read_text(encoding="utf-8")
    (module,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (project,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (entry,) = re.findall(r'^toy = "(.*)"$', project, re.MULTILINE)
    assert len(module.splitlines()) < 100
    (tmp_path / "toy_backend.py").write_text(module, encoding="utf-8")
    about = tmp_path / "toy_backend-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[tercet.backends]\ntoy = {entry}\n")
    return tmp_path


def model(folder: Path) -> Path:
    """Write a model of a Sigmoid and a Relu, which onnxruntime loads as well."""
    x, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 3)) for name in "xz")
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["y"], "smooth"),
        helper.make_node("Relu", ["y"], ["z"], "rectify"),
    ]
    graph = helper.make_graph(nodes, "two", [x], [z])
    opset = helper.make_opsetid("", 20)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), folder / "two.onnx")
    return folder / "two.onnx"


def tercet(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line beside the package."""
    return python(folder, "-m", "tercet", *arguments)


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an interpreter beside the package."""
    paths = os.pathsep.join((str(ROOT), str(folder)))
    command = (sys.executable, *arguments)
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=folder
    )


def test_it_runs_what_it_claims(installed: Path) -> None:
    path = str(model(installed))
    answer = tercet(installed, "run", path, "-b", "toy", "--fallback", "numpy", "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["ran_on"]["toy"] == 1
    answer = tercet(installed, "compare", path, "-b", "numpy", "-b", "toy", "--fallback", "numpy")
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_it_says_what_it_does_not_run(installed: Path) -> None:
    answer = tercet(installed, "run", str(model(installed)), "-b", "toy")
    assert answer.returncode == 3
    assert "toy: runs only Relu" in answer.stderr


def test_a_backend_that_nobody_named_is_left_out(installed: Path) -> None:
    """By default all take part that can run the model."""
    path = str(model(installed))
    answer = tercet(installed, "compare", path, "--repeat", "0")
    assert answer.returncode == 0, answer.stderr
    assert "toy did not take part: 1 node cannot run on toy" in answer.stdout
    assert tercet(installed, "compare", path, "-b", "numpy", "-b", "toy").returncode == 3


def test_a_run_says_that_all_nodes_fell_back(installed: Path) -> None:
    small = "--backend-option", "toy.max_elements=5", "--fallback", "numpy", "--repeat", "0"
    answer = tercet(installed, "run", str(model(installed)), "-b", "toy", *small)
    assert "toy on cpu, float32; 2 nodes on numpy" in answer.stdout


#: Options, the exit code of a run with each, and what it says.
OPTIONS = {
    "toy.max_elements=5": (3, "more than 5 elements"),
    "toy.max_element=5": (2, "no option 'max_element'; did you mean 'max_elements'?"),
    "toy.max_elements=many": (2, "'many' is not int"),
    "numpy.anything=1": (2, "backend 'numpy' has no options"),
    "openvino.min_nodes=1": (2, "backend 'toy' does not use it; leave it out"),
    "toy=1": (2, "toy=1: expected BACKEND.OPTION=VALUE, such as"),
    "toy": (2, "toy: expected BACKEND.OPTION=VALUE, such as"),
}
#: Runs a model once with each option, and prints exit codes and messages.
RUN_WITH_EACH = """
import contextlib, io, json, sys
from tercet.tools.cli import main

found, (path, *options) = {}, sys.argv[1:]
for option in options:
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            main(["run", path, "-b", "toy", "--backend-option", option])
        except SystemExit as ended:
            found[option] = ended.code, said.getvalue()
print(json.dumps(found))
"""


def test_options_of_its_own_and_others(installed: Path) -> None:
    answer = python(installed, "-c", RUN_WITH_EACH, str(model(installed)), *OPTIONS)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    for option, (code, message) in OPTIONS.items():
        assert found[option][0] == code, found[option]
        assert message in " ".join(found[option][1].split())


#: Runs commands in one process, and prints the exit code and the texts of each.
RUN_COMMANDS = """
import contextlib, io, json, sys
from tercet.tools.cli import main

found = []
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as wrong:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            try:
                main(command)
            except SystemExit as ended:
                found.append((ended.code, out.getvalue() + wrong.getvalue()))
print(json.dumps(found))
"""


def test_faults_of_its_package_are_its_own(installed: Path) -> None:
    """When it is imported, opened and run; other backends work all the same."""
    module = installed / "toy_backend.py"
    module.write_text(module.read_text(encoding="utf-8").replace("out=y", "out=missing"))
    (installed / "shut.py").write_text("def open_backends(options):\n    return options.none")
    for name in ("broken", "shut"):
        about = installed / f"{name}-2.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2\n")
        entry = f"[tercet.backends]\n{name} = {name}:open_backends\n"
        (about / "entry_points.txt").write_text(entry)
    path = str(model(installed))
    (installed / "broken.py").write_text("print('imported')\nraise RuntimeError('no driver')")
    commands = [
        ["run", path, "-b", "numpy"],
        ["compare", path, "-b", "numpy", "-b", "onnx.reference"],
        ["doctor"],
        ["run", path, "-b", "broken"],
        ["run", path, "-b", "shut"],
        ["run", path, "-b", "toy", "--fallback", "numpy"],
    ]
    answer = python(installed, "-c", RUN_COMMANDS, json.dumps(commands))
    assert answer.returncode == 0, answer.stderr
    (ran, text), (compared, more), (told, table), *faults = json.loads(answer.stdout)
    assert (ran, compared, told) == (0, 0, 0)
    assert "imported" not in text + more, "it is imported although it was not requested"
    assert "RuntimeError: no driver" in " ".join(table.split())  # lines end where paths let them
    assert [code for code, _ in faults] == [5, 5, 9]
    for (_, text), words in zip(faults, ("broken 2", "shut 2", "toy-backend 1"), strict=True):
        assert f"of {words}" in text
        assert "not of tercet" in text
    assert "toy_backend, line" in faults[-1][1]


def test_why_an_import_failed_is_kept_however_often_it_is_asked() -> None:
    opener = backends._imported(EntryPoint("absent", "no_such_module:open", backends.GROUP))
    errors: list[BackendUnavailable] = []
    for _ in range(2):
        with pytest.raises(BackendUnavailable) as caught:
            opener(Options())
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert all(isinstance(error.__cause__, ModuleNotFoundError) for error in errors)
