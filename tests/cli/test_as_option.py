"""Errors about arguments name the option on the command line, and the argument in Python."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command

import tercet as api
from tercet.runtime.base.arguments import refused, unfit
from tercet.runtime.errors import InputError
from tercet.runtime.options import Options
from tercet.tools import cli
from tercet.tools.commands.groups import RunOptions, ShapeOptions, WrittenFile
from tercet.tools.common.as_option import as_option, option_of

from .conftest import Tercet

#: Options that only Python has.
IN_PYTHON = {
    *("stop_at", "fold_bytes", "fold_total", "keep_quantized", "workspace", "max_plans"),
    *("check_each", "streams", "control", "cache", "ranges", "widen"),
}


def options_of(*commands: str) -> set[str]:
    group: Any = get_command(cli.app)
    return {
        o for c in commands for p in group.commands[c].params for o in (*p.opts, *p.secondary_opts)
    }


def test_every_argument_of_a_group_of_options_has_its_own() -> None:
    found = {*RunOptions().as_options(), *ShapeOptions().as_options(), *WrittenFile().as_options()}
    assert {*Options.__dataclass_fields__} - found == IN_PYTHON
    assert {option_of(name) for name in found} <= options_of("run", "export")


@pytest.mark.parametrize(
    ("name", "value", "written"),
    [
        ("tune", True, "--tune"),
        ("integers", False, "--no-integers"),
        ("conv", "fft", "--conv-algorithm fft"),
        ("timeout", -1.0, "--timeout -1"),
        ("skip", ("a", "b"), "--skip-passes a,b"),
        ("dims", "a b=1", "--dim 'a b=1'"),
        ("algorithms", {"a": "x", "b": "y"}, "--algorithm a=x --algorithm b=y"),
        ("backend_options", {"toy": {"n": 2}}, "--backend-option toy.n=2"),
        ("--max-bytes", "3x", "--max-bytes 3x"),
        ("weights", None, "--weights None"),
    ],
)
def test_values_are_shown_as_they_are_written(name: str, value: object, written: str) -> None:
    error = refused(name, value, "something else")
    assert error.argument is not None
    assert as_option(error.argument) == f"{written}: expected something else"


def test_a_reason_may_say_the_value() -> None:
    error = unfit(InputError, "keep_float32", "the model has no node 'x'")
    assert error.argument is not None
    assert as_option(error.argument) == "--keep-float32: the model has no node 'x'"
    assert str(error) == "keep_float32: the model has no node 'x'"


@pytest.mark.parametrize(
    ("given", "named", "written"),
    [
        ({"tune": True}, "tune=True", "--tune"),
        ({"conv": "fft"}, "conv='fft'", "--conv-algorithm fft"),
        (
            {"algorithms": {"Gemm": "direct"}},
            "algorithms={'Gemm': 'direct'}",
            "--algorithm Gemm=direct",
        ),
        ({"device": 1}, "device=1", "--device 1"),
        ({"precision": "float8"}, "precision='float8'", "--precision float8"),
        ({"skip": ["fold_all"]}, "skip", "--skip-passes"),
    ],
    ids=str,
)
def test_both_worlds(tercet: Tercet, given: dict[str, Any], named: str, written: str) -> None:
    words = written.split() + (["fold_all"] if "skip" in given else [])
    done = tercet("run", "classifier.onnx", *words, "--json")
    assert (done.code, done.err.startswith(f"error: {written}: ")) == (2, True), done.err
    assert done.json["error"]["message"].startswith(f"{written}: ")
    with pytest.raises(api.UsageError) as caught:
        api.load("classifier.onnx", **given)
    assert str(caught.value).startswith(f"{named}: ")
