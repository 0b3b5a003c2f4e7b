"""Options that all commands have which load a model: they are there, and they work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
import typer.main
from typer.testing import CliRunner

import tercet as api
from tercet.tools.cli import app

from .conftest import Tercet

#: Of every command that loads a model.
SHARED = {"--timeout", "--freeze-input", "--dim", "--shape", "--operators", "--external-data-dir"}
#: Parameters by which such a command is known, and one that runs a model on a backend.
READERS, RUNNERS = {"model", "models"}, {"backend", "backends", "placement"}
MODEL = """
    <ir_version: 10, opset_import: ["": 21, "my.domain": 1]>
    g (float[n, 3] x, float[3] mask) => (float[n, 3] y)
    { e = Exp(mask)  t = my.domain.Twice(x)  y = Mul(t, e) }"""
#: What runs with a custom operator, where tercet is alone, and with a frozen input.
LINES = [
    "run m.onnx --repeat 1",
    "compare plain.onnx -b numpy -b onnxruntime --repeat 1",
    "compare plain.onnx -b numpy -b onnxruntime --layers",
    "bisect m.onnx -b numpy",
    "bisect m.onnx --precision float16 --tolerance 0.1",
    "export m.onnx out.onnx",
    "simplify m.onnx out.onnx",
    "extract m.onnx out.onnx --outputs t",
    "compress m.onnx out.onnx --bits 4",
    "inspect m.onnx --passes --placement numpy",
    "profile m.onnx --no-peaks --repeat 1",
    "bench m.onnx -b numpy --duration 0.01 --warm-up 0",
    "tune m.onnx --show-space --target sm_80",
    "compile m.onnx --target sm_80 --fallback numpy",
]


def commands() -> dict[str, Any]:
    root: Any = typer.main.get_command(app)
    return root.commands


def options_of(command: Any) -> dict[str, Any]:
    return {name: p for p in command.params for name in p.opts}


def readers() -> dict[str, Any]:
    found = commands().items()
    return {n: c for n, c in found if READERS & {p.name for p in c.params}}


def test_every_command_that_loads_a_model_has_them() -> None:
    assert len(readers()) >= 10
    for name, command in readers().items():
        assert set(options_of(command)) >= SHARED, name
        if RUNNERS & {p.name for p in command.params}:
            assert "--device" in options_of(command), name


def test_every_command_has_a_timeout() -> None:
    assert [name for name, c in commands().items() if "--timeout" not in options_of(c)] == []


@pytest.mark.parametrize("option", sorted({*SHARED, "--device"}))
def test_each_is_declared_once(option: str) -> None:
    """The same words everywhere, unless something else is meant.

    A command of the test suite times its cases, not itself, and shapes of models that are written
    stay symbolic where none are given.
    """
    others = {"conformance", *(("export", "extract") if option in ("--dim", "--shape") else ())}
    found = {n: options_of(c).get(option) for n, c in commands().items() if n not in others}
    said = {(o.help, o.metavar, str(o.default)) for o in found.values() if o is not None}
    assert len(said) == 1, said


def test_help_has_a_section_per_group_and_general_options_last() -> None:
    text = CliRunner().invoke(app, ["bench", "--help"]).output
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert titles[:2] == ["Arguments", "Options"]
    assert titles[-2:] == ["General", "Examples"]
    assert {"Backend", "Inputs", "Model file"} <= set(titles)
    assert "Usage: tercet bench [OPTIONS] MODEL...\n" in text


@pytest.mark.parametrize("name", ["simplify", "export", "extract", "compress"])
def test_groups_are_in_the_same_order_everywhere(name: str) -> None:
    text = CliRunner().invoke(app, [name, "--help"]).output
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert titles[2:] == ["Inputs", "Model file", "Written file", "General", "Examples"]


@pytest.fixture
def operators(folder: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), folder / "m.onnx")
    plain = MODEL.replace("my.domain.Twice(x)", "Neg(x)")
    onnx.save(onnx.parser.parse_model(plain), folder / "plain.onnx")
    text = "OPERATORS = {('my.domain', 'Twice'): lambda x: 2 * x}\n"
    (folder / "own.py").write_text(text)
    np.save(folder / "mask.npy", np.array([0, 1, 2], np.float32))


@pytest.mark.usefixtures("operators")
@pytest.mark.parametrize("line", LINES)
def test_they_work(tercet: Tercet, line: str) -> None:
    shared = "--operators own.py --freeze-input mask=mask.npy --dim n=2 --timeout 100"
    done = tercet(*line.split(), *shared.split())
    assert done.code == 0, done.err


#: What runs a model on a backend and plans it there, for memory limits.
LIMITED = [
    "run classifier.onnx",
    "compare classifier.onnx -b numpy -b onnx.reference",
    "bisect classifier.onnx -b numpy",
    "inspect classifier.onnx --placement numpy",
    "profile classifier.onnx --no-peaks",
    "bench classifier.onnx -b numpy --duration 0.01",
]


@pytest.mark.parametrize("line", LIMITED)
def test_memory_limits(tercet: Tercet, line: str) -> None:
    """Before anything that large is allocated; units are those of the Python options."""
    allowed = tercet(*line.split(), "--max-bytes", "1GiB", "--max-device-bytes", "1GB")
    assert allowed.code == 0, allowed.err
    refused = tercet(*line.split(), "--max-bytes", "0.1kB")
    assert refused.code == 4
    assert "over the limit of 100 (max_bytes, --max-bytes)" in refused.err
    wrong = tercet(*line.split(), "--max-device-bytes", "2 XB")
    assert wrong.code == 2
    assert "--max-device-bytes '2 XB': expected a number of bytes" in wrong.err


def test_lines_are_of_every_command() -> None:
    assert {line.split()[0] for line in LINES} == set(readers())


ORDINARY = """
    <ir_version: 10, opset_import: ["": 21]>
    g (float[n, 3] x, float[3] mask, int64[2] k) => (y)
    { e = Exp(mask)  p = Mul(x, e)  y = Reshape(p, k) }"""


def test_other_runtimes_are_given_what_is_frozen(tercet: Tercet, folder: Path) -> None:
    onnx.save(onnx.parser.parse_model(ORDINARY), folder / "m.onnx")
    np.save(folder / "mask.npy", np.array([0, 1, 2], np.float32))
    np.save(folder / "k.npy", np.array([3, 2]))
    who = "-b numpy -b onnxruntime -b onnx.reference --repeat 1 --dim n=2"
    held = "--freeze-input mask=mask.npy --freeze-input k=k.npy"
    done = tercet("compare", "m.onnx", *who.split(), *held.split(), "--json")
    assert done.code == 0, done.err
    assert [entry["name"] for entry in done.json["inputs"]] == ["x"]
    wrong = tercet("compare", "m.onnx", *who.split(), "--freeze-input", "maks=mask.npy")
    assert wrong.code == 2
    assert "no input 'maks' to freeze; did you mean 'mask'" in wrong.err


FROZEN = {"mask": np.array([0, 1, 2], np.float32)}
CALLS: dict[str, dict[str, Any]] = {
    "compare": {"repeat": 1},
    "compare_layers": {},
    "bisect": {},
    "keep_float32": {"tolerance": 0.1},
    "profile": {"repeat": 1, "peaks": False},
    "bench": {"duration": 0.01, "warm_up": 0},
    "inspect": {"passes": True},
    "export": {},
    "simplify": {},
    "extract": {},
    "compress": {"bits": 4},
}


@pytest.mark.parametrize("name", CALLS)
def test_python_freezes_as_the_command_line(name: str) -> None:
    proto = onnx.parser.parse_model(MODEL.replace("my.domain.Twice(x)", "Neg(x)"))
    call = getattr(api, name)
    assert call(proto, freeze=FROZEN, dims={"n": 2}, **CALLS[name]) is not None
    with pytest.raises(api.InputError, match="no input 'maks' to freeze; did you mean 'mask'"):
        call(proto, freeze={"maks": FROZEN["mask"]}, dims={"n": 2}, **CALLS[name])
    if name in ("compare", "compare_layers", "bisect", "profile"):
        given = {"x": np.ones((2, 3), np.float32)}
        found = call(proto, inputs=given, freeze=FROZEN, **CALLS[name])
        assert list(found.inputs.arrays) == ["x"]
