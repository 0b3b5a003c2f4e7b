"""What `compare` allows: measured in float64, or given for all, a dtype or an output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import tercet as api
from tercet.tools.compare.compare import compare
from tercet.tools.verdict.tolerances import Chosen, parse_tolerances

from . import models
from .conftest import Tercet

PAIR = "-b", "numpy", "-b", "onnxruntime", "--repeat", "0"


def test_bounds_are_measured(tercet: Tercet) -> None:
    done = tercet("compare", "classifier.onnx", *PAIR)
    assert "measured in float64" in done.out
    assert "from float64" in done.out
    found = tercet("compare", "classifier.onnx", *PAIR, "--json").json
    reference, other = found["runners"]
    assert 0 < reference["error"] < 1e-6
    (output,) = other["outputs"]
    assert output["bound"] == "float64"
    assert output["max_abs"] < output["atol"] < 1e-4 * output["scale"]


def test_the_wrong_runner_is_found(folder: Path) -> None:
    """The bound is that of the more exact one, so the reference may be the wrong one, too."""
    right = compare("classifier.onnx", ["numpy", "onnxruntime"], repeat=0)
    wrong = right["numpy"].outputs["scores"] + np.float32(1e-4)
    np.savez("wrong.npz", scores=wrong)
    for pair in (["numpy", "wrong.npz"], ["wrong.npz", "numpy"]):
        found = compare("classifier.onnx", pair, repeat=0)
        assert not found.ok
        assert found["wrong.npz"].error == pytest.approx(1e-4 / 0.33, rel=1)


def test_half_precision_may_cost_what_it_costs(tercet: Tercet) -> None:
    done = tercet("compare", "classifier.onnx", *PAIR, "--precision", "float16", "--json")
    assert done.code == 0
    assert done.json["runners"][1]["outputs"][0]["atol"] > 1e-4


def test_integers_may_differ_where_rounding_decides(folder: Path) -> None:
    """A square that is 3 but for rounding, cut off to a whole number."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("Cast", ["square"], ["whole"], to=onnx.TensorProto.INT32),
    ]
    inputs, outputs = [models.tensor("x", [2])], [models.tensor("whole", [2], 6)]
    models.write(models.model_of(nodes, inputs, outputs), folder / "m.onnx")
    near = np.float32(np.sqrt(np.float64(3)))
    np.savez("off.npz", whole=np.array([2 if near**2 >= 3 else 3, 20], np.int32))
    feeds = {"x": np.array([near, 4.5], np.float32)}
    assert compare("m.onnx", ["numpy", "off.npz"], feeds, repeat=0).ok
    np.savez("wrong.npz", whole=np.array([3, 21], np.int32))
    assert not compare("m.onnx", ["numpy", "wrong.npz"], feeds, repeat=0).ok


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("--rtol 0 --atol 0", 1),
        ("--rtol 0 --atol 1", 0),
        ("--rtol 0 --atol 0 --atol sum=1 --atol positive=1", 0),
        ("--rtol 0 --atol 0 --atol sum=1", 1),
        ("--rtol 0 --atol float32=1", 0),
        ("--rtol 0 --atol float64=1", 0),
    ],
)
def test_given_tolerances(folder: Path, tercet: Tercet, options: str, code: int) -> None:
    a, b = np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)
    np.savez("in.npz", a=a, b=b)
    off = np.float32(2.001)
    np.savez("off.npz", sum=np.full((2, 2), off), positive=np.full((2, 2), off))
    chosen = "--inputs-from", "in.npz", "-b", "numpy", "-b", "off.npz", "--repeat", 0
    done = tercet("compare", "adder.onnx", *chosen, *options.split())
    assert done.code == (1 if "float64" in options else code)


def test_the_nearest_name_counts_most() -> None:
    chosen = Chosen.of({"": 1, "float32": 2, "y": 3}, 0.5)
    data = np.zeros(1, np.float32)
    assert chosen.pick("y", data) == (3, 0.5)
    assert chosen.pick("x", data) == (2, 0.5)
    assert chosen.pick("x", data.astype(np.float64)) == (1, 0.5)
    assert Chosen().pick("x", data) == (None, None)


def test_names_that_nobody_has(tercet: Tercet) -> None:
    done = tercet("compare", "classifier.onnx", *PAIR, "--rtol", "score=1")
    assert done.code == 2
    assert "did you mean 'scores'?" in done.err
    done = tercet("compare", "classifier.onnx", *PAIR, "--atol", "x=")
    assert done.code == 2
    assert "expected a number, such as 1e-3" in done.err
    with pytest.raises(api.UsageError, match="expected a number >= 0"):
        parse_tolerances("rtol", ["-1"])


def test_a_model_without_float64(folder: Path) -> None:
    """Where the bound cannot be measured, that of the dtype counts."""
    models.write(models.unary("Relu", [3]), folder / "m.onnx")
    found = compare("m.onnx", ["numpy", "onnxruntime"], repeat=0)
    (row,) = found["onnxruntime"].agreements
    assert row.tolerance.origin == "float64"
    given = compare("m.onnx", ["numpy", "onnxruntime"], repeat=0, rtol=1e-3)
    assert given["onnxruntime"].agreements[0].tolerance.origin == "given"
    assert given["numpy"].error is None


def test_statistics_are_shown(tercet: Tercet) -> None:
    quiet = tercet("compare", "classifier.onnx", *PAIR)
    assert "PSNR" not in quiet.out
    done = tercet("compare", "classifier.onnx", *PAIR, "--stats", "--dim", "batch=4")
    for words in ("mean abs", "99.9 % below", "cosine", "PSNR", "ulp, most", "top-5 the same"):
        assert words in done.out
    wrong = tercet("compare", "classifier.onnx", *PAIR, "--rtol", "0", "--dim", "batch=4")
    assert wrong.code == 1
    assert "top-5 the same" in wrong.out
