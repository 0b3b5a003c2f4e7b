"""Every type that ONNX can declare, through a file and back, and as inputs and results."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, TypeProto, helper

import tercet
from tercet.importers.onnx import load
from tercet.importers.onnx.writing.encode import type_proto
from tercet.tools.common.nested import flat

FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 3])
KEYS = [
    TensorProto.STRING,
    TensorProto.INT8,
    TensorProto.INT16,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.UINT8,
    TensorProto.UINT16,
    TensorProto.UINT32,
    TensorProto.UINT64,
]


def sequence(element: TypeProto) -> TypeProto:
    return helper.make_sequence_type_proto(element)


def optional(element: TypeProto) -> TypeProto:
    return helper.make_optional_type_proto(element)


def mapping(key: int, element: TypeProto) -> TypeProto:
    return helper.make_map_type_proto(key, element)


TYPES = {
    "sequence(map)": sequence(mapping(TensorProto.INT64, FLOATS)),
    "sequence(sequence)": sequence(sequence(FLOATS)),
    "sequence(optional)": sequence(optional(FLOATS)),
    "optional(sequence)": optional(sequence(FLOATS)),
    "optional(optional)": optional(optional(FLOATS)),
    "optional(map)": optional(mapping(TensorProto.STRING, FLOATS)),
    "map(sequence)": mapping(TensorProto.STRING, sequence(FLOATS)),
    "map(map)": mapping(TensorProto.INT64, mapping(TensorProto.STRING, FLOATS)),
    "deep": sequence(optional(mapping(TensorProto.INT64, sequence(sequence(FLOATS))))),
    **{f"map({key})": mapping(key, FLOATS) for key in KEYS},
    **{
        f"map(string, {dtype})": mapping(
            TensorProto.STRING, helper.make_tensor_type_proto(dtype, [])
        )
        for dtype in TensorProto.DataType.values()
        if dtype
    },
}

VALUES = {
    "sequence(map)": [{1: np.ones((2, 3), np.float32)}, {}],
    "sequence(sequence)": [[np.ones((2, 3), np.float32)], []],
    "sequence(optional)": [None, np.ones((2, 3), np.float32)],
    "optional(sequence)": [np.ones((1, 3), np.float32)],
    "optional(optional)": None,
    "optional(map)": {"a": np.ones((1, 3), np.float32)},
    "map(sequence)": {"a": [np.ones((1, 3), np.float32)]},
    "map(map)": {1: {"b": np.ones((1, 3), np.float32)}},
    "deep": [None, {3: [[np.ones((1, 3), np.float32)], []]}],
}


def passing(type_: TypeProto) -> onnx.ModelProto:
    """Return a model that gives back an input of a type, and declares another value of it."""
    x, y = (helper.make_value_info(name, type_) for name in "xy")
    graph = helper.make_graph([], "types", [x], [x], value_info=[y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


@pytest.mark.parametrize("name", TYPES)
def test_a_type_survives_the_way_in_and_out(name):
    (value,) = load(passing(TYPES[name])).graph.inputs
    assert type_proto(value.type) == TYPES[name]


@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_a_nested_type_runs_through_a_model(name):
    with tercet.load(passing(TYPES[name])) as model:
        (found,) = model(VALUES[name])
    np.testing.assert_equal(found, VALUES[name])


@pytest.mark.parametrize("key", [TensorProto.FLOAT, TensorProto.BOOL])
def test_keys_are_integers_or_strings(key):
    with pytest.raises(tercet.ModelError, match="keys of"):
        load(passing(mapping(key, FLOATS)))


@pytest.mark.parametrize("kind", ["sparse_tensor_type", "opaque_type"])
def test_a_type_without_values_is_unsupported_not_damage(kind):
    type_ = TypeProto()
    getattr(type_, kind).SetInParent()
    with pytest.raises(tercet.UnsupportedError, match=kind.replace("_", " ")):
        load(passing(type_))


def classifier(labels: str, classes: list[int] | list[str]) -> onnx.ModelProto:
    """Return the end of every classifier of skl2onnx."""
    attributes: dict[str, Any] = {labels: classes}
    node = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    key = TensorProto.STRING if "strings" in labels else TensorProto.INT64
    number = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, len(classes)])
    y = helper.make_value_info("y", sequence(mapping(key, number)))
    imports = [helper.make_opsetid("ai.onnx.ml", 1), helper.make_opsetid("", 17)]
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [y]), opset_imports=imports, ir_version=8
    )
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize(
    ("labels", "classes"),
    [("classlabels_int64s", [7, -1, 3]), ("classlabels_strings", ["b", "a", "é"])],
)
def test_a_classifier_gives_a_list_of_dictionaries(labels, classes, tmp_path):
    model = classifier(labels, classes)
    x = np.random.default_rng(0).random((4, 3), np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"x": x})
    with tercet.load(model) as loaded:
        (found,) = loaded(x)
    assert found == expected
    smaller = tercet.simplify(model, tmp_path / "smaller.onnx", inputs={"x": x})
    assert smaller.ok
    compared = tercet.compare(model, ["numpy", "onnxruntime"], {"x": x}, repeat=1)
    assert compared.ok
    assert set(compared["onnxruntime"].outputs) == {"y", "y[keys]"}


def test_scores_of_float64_need_a_cast():
    model = classifier("classlabels_int64s", [0, 1])
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    said = r"x of ZipMap is float64; .*Cast to float32 in front of it; skl2onnx.*'zipmap': False"
    with pytest.raises(tercet.ModelError, match=said):
        tercet.load(model)


def test_a_list_of_dictionaries_is_a_table():
    rows = [{"b": 1.0, "a": 2.0}, {"b": 3.0, "a": 4.0}]
    found = flat({"y": rows, "z": [{"a": 1.0}, {"b": 1.0}], "none": None, "empty": []})
    np.testing.assert_array_equal(found["y"], np.array([[2, 1], [4, 3]], np.float32))
    assert list(found["y[keys]"]) == ["a", "b"]
    assert set(found) == {"y", "y[keys]", "z[0]['a']", "z[1]['b']"}
