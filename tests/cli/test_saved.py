"""Outputs in files as runners, and comparisons that are saved and taken up again."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

import tercet as api
from tercet.tools.compare.compare import compare

from . import models
from .conftest import Tercet


def test_an_archive(tercet: Tercet) -> None:
    assert tercet("run", "classifier.onnx", "--save", "out.npz", "--repeat", 0).code == 0
    done = tercet("compare", "classifier.onnx", "-b", "out.npz", "-b", "numpy", "--repeat", 1)
    assert done.code == 0
    assert "numpy agrees with out.npz" in done.out
    assert "saved in out.npz" in done.out
    latencies = done.out.split("latency")[1].split("output")[0]
    assert "numpy" in latencies
    assert "out.npz" not in latencies


def write_test_data(folder: Path) -> None:
    """A folder of ONNX test data for the adder."""
    folder.mkdir()
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((2, 3)).astype(np.float32) for _ in range(2))
    files = {"input_0": a, "input_1": b, "output_0": a + b, "output_1": np.maximum(a + b, 0)}
    for name, data in files.items():
        tensor = numpy_helper.from_array(data)
        (folder / f"{name}.pb").write_bytes(tensor.SerializeToString())


def test_a_folder_of_test_data_has_inputs_too(tercet: Tercet, folder: Path) -> None:
    write_test_data(folder / "test_data_set_0")
    chosen = "-b", "test_data_set_0", "-b", "numpy", "--repeat", 0
    done = tercet("compare", "adder.onnx", *chosen, "--json")
    assert done.code == 0
    assert done.json["inputs"][0]["origin"] == "test_data_set_0"
    assert done.json["inputs"][0]["shape"] == [2, 3]
    other = tercet("compare", "adder.onnx", *chosen, "--dim", "n=2", "--dim", "m=3")
    assert other.code == 1


def test_a_runner_is_not_a_folder_of_its_name(tercet: Tercet, folder: Path) -> None:
    """A folder is meant by its path; see `docs/adding_a_backend.md`, whose folder is its name."""
    write_test_data(folder / "numpy")
    pair = "-b", "numpy", "-b", "onnxruntime", "--repeat", 0
    done = tercet("compare", "adder.onnx", *pair, "--json").json
    assert done["inputs"][0]["origin"] != "numpy"
    assert not any("saved" in runner["about"] for runner in done["runners"])
    done = tercet("compare", "adder.onnx", "-b", "./numpy", "-b", "numpy", "--repeat", 0, "--json")
    assert done.json["inputs"][0]["origin"] == "numpy"
    assert done.json["ok"]


def test_save_and_load(tercet: Tercet) -> None:
    pair = "-b", "numpy", "-b", "onnxruntime", "--repeat", 0
    assert tercet("compare", "adder.onnx", *pair, "--seed", 5, "--save", "all.npz").code == 0
    done = tercet("compare", "adder.onnx", "-b", "numpy", "--load", "all.npz", "--json").json
    assert [c["name"] for c in done["runners"]] == [
        "numpy",
        "numpy (saved)",
        "onnxruntime (saved)",
    ]
    assert done["ok"]
    assert done["inputs"][0]["origin"] == "all.npz"
    assert all(output["max_abs"] == 0 for output in done["runners"][1]["outputs"])


def test_python_saves_and_loads(folder: Path) -> None:
    feeds = {name: np.full((1, 2), 3, np.float32) for name in "ab"}
    found = compare("adder.onnx", ["numpy", "onnxruntime"], feeds, repeat=0)
    found.save("all.npz")
    again = compare("adder.onnx", ["numpy"], repeat=0, load="all.npz")
    assert again.ok
    np.testing.assert_array_equal(again.inputs.arrays["a"], feeds["a"])
    np.testing.assert_array_equal(again["numpy (saved)"].outputs["sum"], [[6, 6]])


@pytest.mark.parametrize("dtype", [TensorProto.BFLOAT16, TensorProto.STRING, TensorProto.BOOL])
def test_types_that_numpy_files_lack(folder: Path, dtype: TensorProto.DataType) -> None:
    models.write(models.unary("Identity", [2], dtype), folder / "m.onnx")
    data = {
        TensorProto.BFLOAT16: np.array([1, 2], ml_dtypes.bfloat16),
        TensorProto.STRING: np.array(["a", "bc"], object),
        TensorProto.BOOL: np.array([True, False]),
    }[dtype]
    with api.load("m.onnx") as model:
        expected = model.run({"x": data})["y"]
    found = compare("m.onnx", ["numpy", "onnx.reference"], {"x": data}, repeat=0)
    found.save("all.npz")
    again = compare("m.onnx", ["numpy"], repeat=0, load="all.npz")
    assert again.ok, again
    assert again["numpy (saved)"].outputs["y"].dtype == expected.dtype


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("-b numpy -b gone.npz", "gone.npz"),
        ("-b numpy -b other.npz", "has no 'scores'; did you mean 'score'?"),
        ("-b numpy -b all.npz", "--load all.npz takes it up"),
        ("-b numpy --load other.npz", "not a saved comparison"),
        ("-b numpy --load gone.npz", "gone.npz"),
        ("-b numpy -b empty", "no output_0.pb"),
        ("-b numpy -b damaged.npz", "damaged.npz"),
        ("-b numpy -b onnxruntime --save out.txt", ".npz"),
    ],
)
def test_files_that_do_not_fit(tercet: Tercet, folder: Path, arguments: str, words: str) -> None:
    np.savez("other.npz", score=np.zeros(1))
    (folder / "empty").mkdir()
    (folder / "damaged.npz").write_bytes(b"PK\x05\x06" + b"\0" * 18)
    compare("classifier.onnx", ["numpy", "onnxruntime"], repeat=0).save("all.npz")
    done = tercet("compare", "classifier.onnx", *arguments.split(), "--repeat", 0)
    assert done.code == 2
    assert words in done.err


def test_saved_tensors_node_by_node(tercet: Tercet) -> None:
    names = "c,n,r,p,f,g,scores"
    assert tercet("run", "classifier.onnx", "--outputs", names, "--save", "t.npz").code == 0
    whole = "--layers", "--cumulative", "--no-optimise", "-b", "numpy", "-b", "t.npz"
    assert "no mismatch found on t.npz" in tercet("compare", "classifier.onnx", *whole).out
    tensors = dict(np.load("t.npz"))
    tensors["p"] = tensors["p"] * np.float32(1.01)
    np.savez("t.npz", **tensors)
    done = tercet("compare", "classifier.onnx", *whole)
    assert done.code == 1
    assert "first diverging step: pool (MaxPool)" in done.out
    alone = tercet("compare", "classifier.onnx", "--layers", "-b", "numpy", "-b", "t.npz")
    assert alone.code == 2
