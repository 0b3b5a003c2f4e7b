"""Other weights for the same graph, by name, from files of three kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import tercet as api
from tercet.tools.common.weight_files import read_safetensors

from .conftest import Tercet

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[n, 3] x) => (float[n, 1, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, int64[1] axis = {1}>
{ b = Constant <value: tensor = float[2] {0.5, 0.25}> ()
  p = MatMul(x, w)  s = Add(p, b)  y = Unsqueeze(s, axis) }
"""
GIVEN = {
    "w": np.arange(6, dtype=np.float32).reshape(3, 2) - 2,
    "b": np.array([3, -4], np.float32),
    "axis": np.array([0]),  # no weight by its dtype, so ignored, as are PyTorch's counters
}
X = np.array([[1, 2, 3], [-1, 0, 2]], np.float32)


@pytest.fixture
def expected(folder: Path) -> np.ndarray:
    """What onnx's evaluator gives for m.onnx with these weights, and the files of weights."""
    model = onnx.parser.parse_model(MODEL)
    onnx.save(model, folder / "m.onnx")
    np.save("x.npy", X)
    np.savez("given.npz", **GIVEN)
    Path("given.safetensors").write_bytes(safetensors(GIVEN))
    del model.graph.initializer[0], model.graph.node[0]
    model.graph.initializer.extend(numpy_helper.from_array(GIVEN[n], n) for n in "wb")
    onnx.save(model, folder / "given.onnx")
    return computed(model)


def computed(model: onnx.ModelProto | str) -> np.ndarray:
    """Return what a model computes, by ONNX's own evaluator."""
    evaluator: Any = ReferenceEvaluator(model)
    return evaluator.run(None, {"x": X})[0]


def safetensors(arrays: dict[str, np.ndarray], **changed: object) -> bytes:
    """The file's text, from the description of the format."""
    begin, header, data = 0, {"__metadata__": {"format": "pt"}}, b""
    for name, array in arrays.items():
        kind = {"float32": "F32", "int64": "I64"}[array.dtype.name]
        offsets = [begin, begin := begin + array.nbytes]
        entry = {"dtype": kind, "shape": list(array.shape), "data_offsets": offsets, **changed}
        header, data = {**header, name: entry}, data + array.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_python(expected: np.ndarray) -> None:
    with api.load("m.onnx", weights=GIVEN) as model:
        np.testing.assert_array_equal(model(X)[0], expected)
    with api.load("m.onnx") as model:
        assert not np.array_equal(model(X)[0], expected)
    with api.load(api.export("m.onnx", weights=GIVEN).proto) as model:
        np.testing.assert_array_equal(model(X)[0], expected)


@pytest.mark.parametrize("kind", ["npz", "safetensors", "onnx"])
def test_every_runner_gets_them(tercet: Tercet, expected: np.ndarray, kind: str) -> None:
    given = "m.onnx", "--weights", f"given.{kind}"
    np.savez("y.npz", y=expected)
    runners = [f"-b{name}" for name in ("y.npz", "numpy", "onnxruntime", "onnx.reference")]
    done = tercet("compare", *given, "-i", "x.npy", *runners, "--repeat", 0, "--json")
    assert done.code == 0, done.out
    assert len(done.json["runners"]) == 4
    assert tercet("export", "m.onnx", "out.onnx", *given[1:]).code == 0
    np.testing.assert_array_equal(computed("out.onnx"), expected)


@pytest.mark.usefixtures("expected")
@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"W": GIVEN["w"], "b": GIVEN["b"]}, "1 of 2 arrays are not weights of the model: W"),
        ({"x": X}, "1 of 1 arrays are not weights of the model: x"),
        ({"w": GIVEN["w"].T}, "'w' is float32[2,3]; the model's is float32[3,2]"),
        ({"w": GIVEN["w"].astype(np.float64)}, "'w' is float64[3,2]; the model's is float32[3,2]"),
    ],
)
def test_what_does_not_fit(arrays: dict[str, np.ndarray], text: str) -> None:
    """An array without a place would be ignored, and results be wrong."""
    with pytest.raises(api.InputError) as caught:
        api.load("m.onnx", weights=arrays)
    assert text in str(caught.value)


def test_the_package_s_files(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy")
    arrays = {**GIVEN, "h": np.array([[1, 2]], np.float16), "empty": np.empty((0, 4), np.uint8)}
    package.save_file(arrays, tmp_path / "f.safetensors")
    found = read_safetensors(tmp_path / "f.safetensors")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


WHOLE = safetensors(GIVEN)
DAMAGED = {
    "empty": b"",
    "short": WHOLE[:100],
    "long header": b"\xff" * 16,
    "no JSON": (4).to_bytes(8, "little") + b"{{}}",
    "no object": (2).to_bytes(8, "little") + b"[]",
    "cut": WHOLE[:-1],
    "beyond": safetensors(GIVEN, data_offsets=[1 << 40, (1 << 40) + 24]),
    "before": safetensors(GIVEN, data_offsets=[-24, 0]),
    "negative": safetensors(GIVEN, shape=[-1, -6]),
    "huge": safetensors(GIVEN, shape=[1 << 62, 1 << 62]),
    "type": safetensors(GIVEN, dtype="F1"),
    "deep": (200_000).to_bytes(8, "little") + b"[" * 200_000,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "f.safetensors").write_bytes(DAMAGED[name])
    with pytest.raises(api.InputError, match=r"damaged|not a safetensors file"):
        read_safetensors(tmp_path / "f.safetensors")
