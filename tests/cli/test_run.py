"""`tercet run`: outputs, files in and out, shapes on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

import tercet as api
from tercet.tools.common.archives import write_archive

from . import models
from .conftest import Tercet


def test_shows_outputs_and_latencies(tercet: Tercet) -> None:
    done = tercet("run", "classifier.onnx", "--dim", "batch=2", "--repeat", 2)
    assert done.code == 0
    assert "numpy on cpu, float32" in done.out
    assert "image float32[2,3,8,8], random, seed 0" in done.out
    assert "float32[2,10]" in done.out
    assert "scores[1]" in done.out
    assert "median of 2" in done.out
    assert not done.err


def test_json_has_everything(tercet: Tercet) -> None:
    found = tercet("run", "classifier.onnx", "--json", "--trace-shapes", "--repeat", 3).json
    assert found["backend"] == "numpy on cpu"
    assert found["precision"] == "float32"
    (given,) = found["inputs"]
    assert given == {
        "name": "image",
        "dtype": "float32",
        "shape": [1, 3, 8, 8],
        "origin": "random, seed 0",
    }
    (scores,) = found["outputs"]
    assert scores["type"] == "float32[1,10]"
    assert scores["mean"] == pytest.approx(0.1)
    assert [len(row) for row in scores["top"]] == [5]
    assert found["steady_ms"]["runs"] == 3
    assert found["load_ms"] > 0 < found["first_ms"]
    assert found["ran_on"] == {"numpy": 6}  # all but Flatten, which is only a view
    assert len(found["layers"]) == 7


def test_equals_the_python_interface(tercet: Tercet, folder: Path) -> None:
    image = np.random.default_rng(3).random((4, 3, 8, 8), np.float32)
    np.save("image.npy", image)
    done = tercet("run", "classifier.onnx", "-i", "image.npy", "--save", "out.npz", "--repeat", 0)
    assert done.code == 0
    with api.load(folder / "classifier.onnx") as model, np.load("out.npz") as saved:
        np.testing.assert_array_equal(saved["scores"], model(image)[0])


def test_intermediate_tensors(tercet: Tercet) -> None:
    done = tercet("run", "classifier.onnx", "--outputs", "f,n", "--save", "out.npz")
    assert done.code == 0
    with np.load("out.npz") as saved:
        assert {name: saved[name].shape for name in saved} == {"f": (1, 64), "n": (1, 4, 8, 8)}


def test_saves_what_is_hard_to_save(tercet: Tercet, folder: Path) -> None:
    """Names that numpy.savez trips over, strings, and types that numpy lacks."""
    graph = models.unary("Identity", [2], TensorProto.BFLOAT16)
    graph.graph.node[0].output[0] = graph.graph.output[0].name = "file"
    models.write(graph, folder / "m.onnx")
    assert tercet("run", "m.onnx", "--save", "a.npz").code == 0
    with np.load("a.npz", allow_pickle=False) as saved:
        assert saved["file"].dtype.itemsize == 2
    write_archive(folder / "b.npz", {"y": np.array(["a", "bcd"], object)})
    with np.load("b.npz", allow_pickle=False) as saved:
        assert list(saved["y"]) == ["a", "bcd"]


def test_nan_is_counted_and_shown(tercet: Tercet) -> None:
    a = np.array([[1, np.nan], [np.inf, -np.inf]], np.float32)
    np.save("a.npy", a)
    np.save("b.npy", np.zeros((2, 2), np.float32))
    arguments = "run", "adder.onnx", "-i", "a=a.npy", "-i", "b=b.npy", "--outputs", "sum"
    (found,) = tercet(*arguments, "--json").json["outputs"]
    assert (found["nan"], found["inf"], found["min"], found["max"]) == (1, 2, 1, 1)
    assert "1/2" in tercet(*arguments).out


def test_nan_is_not_among_the_greatest(tercet: Tercet, folder: Path) -> None:
    (folder / "two.onnxtxt").write_text("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[2,6] x) => (float[2,6] y) { y = Identity (x) }""")
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    x[0] = x[1, 2] = np.nan
    np.save("x.npy", x)
    arguments = "run", "two.onnxtxt", "-i", "x.npy", "--repeat", 0
    (found,) = tercet(*arguments, "--json").json["outputs"]
    assert [[each["class"] for each in row] for row in found["top"]] == [[], [5, 4, 3, 1, 0]]
    (all_nan,) = (line for line in tercet(*arguments).out.splitlines() if line.startswith("y[0]"))
    assert all_nan.split() == ["y[0]", "all", "NaN"]
    np.save("x.npy", np.full((2, 6), np.nan, np.float32))
    assert "greatest" not in tercet(*arguments).out


@pytest.mark.parametrize(("count", "more"), [(8, False), (30, True)])
def test_texts_are_shown(tercet: Tercet, folder: Path, count: int, *, more: bool) -> None:
    """They have no minimum, maximum and mean that would tell anything."""
    (folder / "texts.onnxtxt").write_text("""<ir_version: 10, opset_import: ["" : 21]>
        g (string[n] x) => (string[n] y) { y = Identity (x) }""")
    np.save("x.npy", np.array([f"t{number}" for number in range(count)]))
    said = tercet("run", "texts.onnxtxt", "-i", "x.npy", "--repeat", 0).out
    assert "y = t0 t1 t2 t3 t4 t5 t6 t7" in said
    assert ("… (30 in all; --save has them)" in said) == more
    assert "t8" not in said


def test_trace_shapes_of_vgg16(tercet: Tercet, folder: Path) -> None:
    """The lecture's list: 224x224x3 ... 25088, 4096, 4096, 1000."""
    models.write(models.vgg16(scale=64), folder / "thin.onnx")
    layers = tercet("run", "thin.onnx", "--trace-shapes", "--json", "--repeat", 0).json["layers"]
    assert layers[0]["inputs"] == ["float32[1,3,224,224]"]
    shapes = [layer["outputs"][0] for layer in layers if layer["operator"] in ("MaxPool", "Gemm")]
    pools = [f"float32[1,{c},{n},{n}]" for c, n in ((1, 112), (2, 56), (4, 28), (8, 14), (8, 7))]
    assert shapes == [*pools, "float32[1,64]", "float32[1,64]", "float32[1,1000]"]
    said = tercet("run", "thin.onnx", "--trace-shapes", "--repeat", 0).out
    assert "1x3x224x224" in said
    assert "1x8x7x7  1x392" in " ".join(said.split()).replace(" 1x392", "  1x392")


def test_every_hidden_layer_can_be_asked_for(tercet: Tercet, folder: Path) -> None:
    thin = models.vgg16(scale=64)
    models.write(thin, folder / "thin.onnx")
    names = [node.output[0] for node in thin.graph.node]
    done = tercet("run", "thin.onnx", "--outputs", ",".join(names), "--json", "--repeat", 0)
    assert [found["name"] for found in done.json["outputs"]] == names


def test_unused_inputs_and_scalars(tercet: Tercet, folder: Path) -> None:
    models.write(models.unary("Relu", []), folder / "m.onnx")
    done = tercet("run", "m.onnx", "--seed", 4)
    assert done.code == 0
    assert "y = " in done.out


def test_test_data_of_onnx(tercet: Tercet, folder: Path) -> None:
    data = folder / "test_data_set_0"
    data.mkdir()
    a, b = np.ones((2, 3), np.float32), np.full((2, 3), -3, np.float32)
    for number, array in enumerate((a, b)):
        proto = numpy_helper.from_array(array)
        (data / f"input_{number}.pb").write_bytes(proto.SerializeToString())
    done = tercet("run", "adder.onnx", "--inputs-from", data, "--json")
    assert {found["name"]: found["max"] for found in done.json["outputs"]} == {
        "sum": -2,
        "positive": 0,
    }
    np.savez("all.npz", a=a, b=b, other=a)
    again = tercet("run", "adder.onnx", "--inputs-from", "all.npz", "--json")
    assert again.json["outputs"] == done.json["outputs"]
    third = tercet("run", "adder.onnx", "--input", "all.npz", "--json")
    assert third.json["outputs"] == done.json["outputs"]


def test_same_seed_same_outputs(tercet: Tercet) -> None:
    runs = [tercet("run", "adder.onnx", "--seed", s, "--json").json for s in (5, 5, 6)]
    first, second, other = (run["outputs"] for run in runs)
    assert first == second != other


CANCELS = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[3] x) => (float[3] y) {
  a = Sub (x, x)
  b = Log (a)
  y = Mul (b, a)
}
"""


@pytest.mark.parametrize(
    ("x", "outputs", "expected"),
    [
        ([1, 2, 3], ("y",), "first infinities in node 'b' (Log), first NaN in node 'y' (Mul)"),
        ([1, 2, 3], ("b",), "first infinities in node 'b' (Log)"),
        ([1, np.nan, 3], ("a",), "first NaN in input 'x'"),
        ([1, 2, 3], ("a",), ""),
    ],
)
def test_what_is_not_finite_has_an_origin(
    tercet: Tercet, folder: Path, x: Any, outputs: tuple[str, ...], expected: str
) -> None:
    (folder / "cancels.onnxtxt").write_text(CANCELS)
    np.savez(folder / "x.npz", x=np.array(x, np.float32))
    command = ("run", "cancels.onnxtxt", "-i", "x.npz", "--outputs", ",".join(outputs))
    done = tercet(*command, "--repeat", 0, "--json")
    assert done.code == 0, done.err
    assert done.json["not_finite"] == expected
    if expected:
        assert expected in tercet(*command, "--repeat", 0).out.replace("\n", " ")


def test_an_origin_in_a_body_is_left_to_compare(tercet: Tercet, folder: Path) -> None:
    (folder / "body.onnxtxt").write_text("""
    <ir_version: 10, opset_import: ["" : 21]>
    g (float[3] x, bool c) => (float[3] y) {
      y = If (c) <then_branch = t () => (float[3] p) { a = Sub (x, x)  p = Div (a, a) },
                  else_branch = e () => (float[3] q) { b = Sub (x, x)  q = Div (b, b) }>
    }""")
    done = tercet("run", "body.onnxtxt", "--repeat", 0, "--json")
    assert "compare --layers" in done.json["not_finite"]
