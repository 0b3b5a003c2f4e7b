"""Inputs that are the same in every run: constants from now on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import tercet as api

from . import models
from .conftest import Tercet

FREEZE = "--freeze-input", "mask=mask.npy", "--freeze-input", "k=k.npy"


@pytest.fixture
def masked(folder: Path) -> str:
    """y = reshape(x * -exp(mask), k), and the files mask.npy and k.npy."""
    nodes = [
        helper.make_node("Exp", ["mask"], ["e"], name="exp"),
        helper.make_node("Neg", ["e"], ["g"], name="neg"),
        helper.make_node("Mul", ["x", "g"], ["p"], name="mul"),
        helper.make_node("Reshape", ["p", "k"], ["y"], name="shape"),
    ]
    inputs = [models.tensor(name, ["n", 4]) for name in ("x", "mask")]
    inputs.append(models.tensor("k", [2], onnx.TensorProto.INT64))
    models.write(models.model_of(nodes, inputs, [models.tensor("y", None)]), folder / "m.onnx")
    np.save("mask.npy", np.arange(12, dtype=np.float32).reshape(3, 4) / 8)
    np.save("k.npy", np.array([4, 3]))
    return "m.onnx"


def test_python(masked: str) -> None:
    x = np.ones((3, 4), np.float32)
    held = {"mask": np.load("mask.npy"), "k": np.load("k.npy")}
    with api.load(masked) as model:
        expected = model.run({"x": x, **held})["y"]
    with api.load(masked, freeze=held) as model:
        assert [str(info) for info in model.inputs] == ["x: float32[3,4]"]
        np.testing.assert_array_equal(model.run({"x": x})["y"], expected)
        assert [node.kind for node in model.graph.nodes] == ["Mul", "Reshape"]


def test_run(tercet: Tercet, masked: str) -> None:
    done = tercet("run", masked, *FREEZE, "--repeat", 0, "--json").json
    assert [entry["name"] for entry in done["inputs"]] == ["x"]
    assert done["outputs"][0]["type"] == "float32[4,3]"


def test_simplify_lists_what_is_folded(tercet: Tercet, masked: str) -> None:
    done = tercet("simplify", masked, "out.onnx", *FREEZE)
    assert done.code == 0
    assert "folded into it  exp, neg" in done.out
    assert "1 output equal to the original" in done.out
    written = onnx.load("out.onnx")
    assert [value.name for value in written.graph.input] == ["x"]
    assert [node.op_type for node in written.graph.node] == ["Mul", "Reshape"]


def test_export(tercet: Tercet, masked: str) -> None:
    one = FREEZE[:2]
    found = tercet("export", masked, "out.onnx", *one, "--json").json
    assert found["frozen"] == ["mask"]
    assert found["folded"] == ["exp", "neg"]
    assert [value.name for value in onnx.load("out.onnx").graph.input] == ["x", "k"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("msk=mask.npy", "did you mean 'mask'?"),
        ("k=mask.npy", "the model expects k: int64[2]"),
        ("mask.npy", "--freeze-input mask.npy: expected NAME=FILE, such as x=x.npy"),
        ("mask=gone.npy", "gone.npy"),
    ],
)
def test_what_does_not_fit(tercet: Tercet, masked: str, text: str, words: str) -> None:
    done = tercet("run", masked, "--freeze-input", text)
    assert done.code == 2
    assert words in done.err


def test_the_original_stays_as_it_is(folder: Path) -> None:
    x = np.ones((2, 2), np.float32)
    with api.load("adder.onnx", freeze={"b": x}) as model:
        assert len(model.inputs) == 1
        assert model.inputs[0].shape == (2, 2)
    with api.load("adder.onnx") as model:
        assert [info.shape for info in model.inputs] == [("n", "m"), ("n", "m")]
