"""Which layers of quantized models are computed on integers: options, and what is said of it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import onnx
import pytest

import tercet as api
from tercet import backends
from tercet.backends.cuda import INTEGERS
from tercet.backends.options import integers_of
from tercet.runtime.options import Options
from tercet.tools.tune.algorithms import on_paper

from ..passes.test_multiply_integers import LEFT, STAY
from .conftest import Tercet


@pytest.mark.parametrize(
    ("name", "asked", "chosen"),
    [
        ("numpy", None, False),
        ("cuda", None, INTEGERS),
        (("numpy", "cuda"), None, False),
        ("onnxruntime:cpu", None, False),
        ("numpy", True, True),
        ("cuda", False, False),
    ],
)
def test_the_first_backend_chooses_unless_the_user_does(
    name: str | tuple[str, ...], asked: bool | None, chosen: object
) -> None:
    assert backends.settled(Options(integers=asked), name).integers == chosen


def test_a_backend_of_another_package_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("another")
    monkeypatch.setitem(sys.modules, "another", module)
    opener = type("", (), {"__module__": "another"})
    assert integers_of(opener) is False
    module.__dict__["INTEGERS"] = INTEGERS
    assert integers_of(opener) is INTEGERS


def test_a_plan_on_paper_is_that_of_the_backend(tmp_path: Path) -> None:
    proto, _ = LEFT["few channels"]
    onnx.save(proto, tmp_path / "model.onnx")
    with on_paper(tmp_path / "model.onnx", {}) as (_, options):
        assert options.integers is INTEGERS
    with on_paper(tmp_path / "model.onnx", {"integers": True}) as (_, options):
        assert options.integers is True


def test_placements_say_what_stays_a_layer_of_floats() -> None:
    proto, reason = STAY["another reader"]
    found = api.inspect(proto, placement="numpy", integers=True)
    assert found.floats == (f"Conv 'Conv_t4' is a layer of floats: {reason}",)
    assert found.to_dict()["floats"] == list(found.floats)
    assert not api.inspect(proto, placement="numpy").floats


def test_the_command_line_asks_for_integers(tmp_path: Path, tercet: Tercet) -> None:
    for name, (proto, _) in {"joined": LEFT["few channels"], "left": STAY["16 bits"]}.items():
        onnx.save(proto, tmp_path / f"{name}.onnx")
    shown = tercet("inspect", tmp_path / "joined.onnx", "--placement", "numpy", "--integers")
    assert "QLinearConv" in shown.out
    shown = tercet("inspect", tmp_path / "joined.onnx", "--placement", "numpy", "--no-integers")
    assert "QLinearConv" not in shown.out
    shown = tercet("inspect", tmp_path / "left.onnx", "--placement", "numpy", "--integers")
    assert "only integers of 8 bits" in " ".join(shown.out.split())
