"""Models as texts, and as the objects that exporters return."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

import tercet
from tercet.importers.onnx import load
from tercet.importers.onnx.reading.texts import FORMATS, text_of
from tercet.importers.onnx.writing.export import export

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 2] x) => (float[n, 2] y) <float[2] w = {1, -2}> { h = Mul (x, w)  y = Relu (h) }
"""
X = np.array([[1, -1], [2, 3]], np.float32)
Y = np.array([[1, 2], [2, 0]], np.float32)


@pytest.fixture
def model() -> ModelProto:
    return parser.parse_model(TEXT)


@pytest.mark.parametrize(
    "source", [TEXT, TEXT.encode(), TEXT.lstrip(), b"\xef\xbb\xbf" + TEXT.encode()]
)
def test_a_text_is_a_model(source: str | bytes) -> None:
    with tercet.load(source) as loaded:
        np.testing.assert_array_equal(loaded(X)[0], Y)


@pytest.mark.filterwarnings("ignore:The onnxtxt format is experimental")
@pytest.mark.parametrize("ending", FORMATS)
def test_files_that_onnx_writes_and_reads(model: ModelProto, tmp_path: Path, ending: str) -> None:
    theirs, ours = tmp_path / f"theirs{ending}", tmp_path / f"ours{ending}"
    onnx.save(model, theirs)
    with tercet.load(theirs) as loaded:
        np.testing.assert_array_equal(loaded(X)[0], Y)
    tercet.export(model, ours)
    found = onnx.load(ours)
    onnx.checker.check_model(found, full_check=True)
    np.testing.assert_array_equal(numpy_helper.to_array(found.graph.initializer[0]), [1, -2])
    with tercet.load(ours) as loaded:
        np.testing.assert_array_equal(loaded(X)[0], Y)
    assert tercet.compare(ours, ["numpy", "onnxruntime"], {"x": X}, repeat=1).ok


@pytest.mark.parametrize("form", ["onnxtxt", "textproto", "json"])
@pytest.mark.parametrize("dtype", [*range(1, 14), 16])
def test_constants_of_every_dtype_survive_or_are_refused(form: str, dtype: int) -> None:
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    data = np.array(['ä"\\', "b\n"], object) if dtype == 8 else np.array([1, 0, 3]).astype(kind)
    tensor = numpy_helper.from_array(data, "w")
    info = helper.make_tensor_value_info("w", dtype, data.shape)
    graph = load(helper.make_model(helper.make_graph([], "g", [], [info], [tensor]))).graph
    written = export(graph, opsets={"": 21})
    try:
        text = text_of(written, form)
    except tercet.UnsupportedError:
        assert form == "onnxtxt"
        return
    found = load(text).graph.outputs["w"].data
    assert found is not None
    assert found.tolist() == data.tolist()


WRONG = {
    "an operator without inputs": (
        '<ir_version: 8, opset_import: ["" : 17]> g (',
        tercet.ModelError,
    ),
    "no opset": ("<ir_version: 8> g (float[2] x) => (y) { y = Relu (x) }", tercet.ModelError),
    "a word": ("<ir_version: eight>", tercet.ModelError),
    "protobuf's text": ("ir_version: 8\ngraph { nodes { } }", tercet.ModelError),
    "JSON": ('{"irVersion": "8", "graph": 3}', tercet.ModelError),
    "other JSON": ('{"a": 3}', tercet.ModelError),
    "deep": (
        '<ir_version: 8, opset_import: ["" : 17]> g (bool c) => (y) { '
        + 'y = If (c) <s = ">>>>})", then_branch = t () => (y) { ' * 5000,
        tercet.LimitError,
    ),
    "deep JSON": ('{"irVersion": 8, "graph": ' + '{"node": [' * 5000, tercet.LimitError),
    "not UTF-8": (b"<ir_version: 8> \xff\xfe", tercet.ModelError),
}


@pytest.mark.parametrize("name", WRONG)
def test_texts_that_are_no_models(name: str) -> None:
    text, kind = WRONG[name]
    with pytest.raises(kind):
        load(text if isinstance(text, bytes) else text.encode())


def test_what_the_language_cannot_say_is_refused(tmp_path: Path) -> None:
    tensor = helper.make_tensor("w", TensorProto.INT4, [3], [1, -2, 3])
    info = helper.make_tensor_value_info("w", TensorProto.INT4, [3])
    model = helper.make_model(helper.make_graph([], "g", [], [info], [tensor]))
    with pytest.raises(tercet.UnsupportedError, match="textproto"):
        tercet.export(model, tmp_path / "m.onnxtxt")
    assert not list(tmp_path.iterdir())


class Program:
    """What torch.onnx.export(..., dynamo=True) returns, as far as it matters."""

    def __init__(self, proto: ModelProto) -> None:
        self.model_proto = proto


def test_what_torch_returns(model: ModelProto, tmp_path: Path) -> None:
    program = Program(model)
    with tercet.load(program) as loaded:
        np.testing.assert_array_equal(loaded(X)[0], Y)
    assert tercet.compare(program, ["numpy", "onnxruntime"], {"x": X}, repeat=1).ok
    assert tercet.inspect(program).operators
    assert tercet.export(program, tmp_path / "m.onnx").file


@pytest.mark.parametrize("form", ["a text", "a program"])
def test_every_runner_and_list_takes_them(model: ModelProto, form: str) -> None:
    source = TEXT if form == "a text" else Program(model)
    runs: dict[str, Any] = {"duration": 0.01, "warm_up": 0.0}
    everybody = ["numpy", "onnxruntime", "onnx.reference"]
    for given in (source, [source, source]):
        found = tercet.bench(given, everybody, {"x": X}, **runs)
        assert {case.model for case in found.cases} == {"model"}
        assert {case.runner for case in found.cases} == set(everybody)
    layers = tercet.compare_layers(source, ["numpy", "onnxruntime"], {"x": X}, other=source)
    assert (layers.model, layers.other) == ("model", "model")
    assert tercet.inspect(source).nbytes == parser.parse_model(TEXT).ByteSize()


class Model:
    """What onnx_ir's models are known by."""

    __module__ = "onnx_ir._core"

    def __init__(self) -> None:
        self.ir_version, self.opset_imports = 8, {"": 17}


def test_a_model_of_onnx_ir(model: ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    package, serde = ModuleType("onnx_ir"), ModuleType("onnx_ir.serde")
    held = Model()
    vars(serde)["serialize_model"] = lambda given: model if given is held else None
    for module in (package, serde):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    with tercet.load(held) as loaded:
        np.testing.assert_array_equal(loaded(X)[0], Y)


def test_real_objects_of_onnx_ir(model: ModelProto) -> None:
    ir = pytest.importorskip("onnx_ir", reason="onnx_ir is not installed")
    with tercet.load(ir.serde.deserialize_model(model)) as loaded:
        np.testing.assert_array_equal(loaded(X)[0], Y)


@pytest.mark.parametrize("source", [3, None, [TEXT], object()])
def test_anything_else_is_refused(source: Any) -> None:
    with pytest.raises(tercet.UsageError, match="a model is a path, bytes"):
        tercet.load(source)
