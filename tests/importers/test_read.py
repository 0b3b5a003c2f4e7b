"""Tensors of every type and form, and models from every kind of source."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tercet
from tercet.importers.onnx import Imported, load
from tercet.runtime.errors import InputError, ModelError, UsageError
from tercet.runtime.ir.dtypes import BY_ONNX, INTEGERS, bits_of, string
from tercet.runtime.ir.types import Array

from ..randomness import restarting

RNG = restarting(1)


def one_constant(tensor: TensorProto) -> onnx.ModelProto:
    """Return a model whose only output is an initializer."""
    tensor.name = "w"
    graph = helper.make_graph([], "g", [], [onnx.ValueInfoProto(name="w")], [tensor])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def constant(imported: Imported) -> Array:
    data = imported.graph.outputs["w"].data
    assert data is not None
    return data


def elements(number: int, count: int) -> Array:
    """Return all bit patterns of a type that has few of them, or some of one with many."""
    dtype = BY_ONNX[number]
    if dtype == string:
        return np.array([f"té{i}" for i in range(count)], object)
    if dtype == np.bool_:
        return np.arange(count) % 3 == 0
    if dtype.kind == "c":
        return (RNG.standard_normal(count) * 1j).astype(dtype)
    if bits_of(dtype) < 8:
        codes = np.arange(count, dtype=np.uint8) % (1 << bits_of(dtype))
        if dtype in (ml_dtypes.int4, ml_dtypes.int2):
            return (codes.astype(np.int8) - (1 << bits_of(dtype) - 1)).astype(dtype)
        return codes.astype(dtype) if dtype in INTEGERS else codes.view(dtype)
    return RNG.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)


def same(a: Array, b: Array) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes()


@pytest.mark.parametrize("number", BY_ONNX)
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 4), (17,)], ids=str)
def test_every_dtype_in_the_form_that_onnx_writes(number: int, shape: tuple[int, ...]) -> None:
    expected = elements(number, int(np.prod(shape))).reshape(shape)
    tensor = numpy_helper.from_array(expected)
    assert tensor.data_type == number
    found = constant(load(one_constant(tensor)))
    assert same(found, expected)
    assert not found.flags.writeable


@pytest.mark.parametrize("number", BY_ONNX)
def test_every_dtype_in_the_field_of_its_own(number: int) -> None:
    dtype, expected = BY_ONNX[number], elements(number, 7)
    tensor = TensorProto(data_type=number, dims=[7])
    match dtype.name:
        case "object":
            tensor.string_data.extend(text.encode() for text in expected)
        case "float32" | "complex64":
            tensor.float_data.extend(expected.view(np.float32).tolist())
        case "float64" | "complex128":
            tensor.double_data.extend(expected.view(np.float64).tolist())
        case "int64":
            tensor.int64_data.extend(expected.tolist())
        case "uint32" | "uint64":
            tensor.uint64_data.extend(expected.tolist())
        case "int8" | "int16" | "int32" | "uint8" | "uint16" | "bool":
            tensor.int32_data.extend(map(int, expected))
        case "float6_e2m3fn" | "float6_e3m2fn":
            tensor.int32_data.extend(expected.view(np.uint8).tolist())
        case _ if bits_of(dtype) < 8:
            tensor.int32_data.extend(numpy_helper.from_array(expected).raw_data)
        case _:
            tensor.int32_data.extend(expected.view(f"u{dtype.itemsize}").tolist())
    assert same(constant(load(one_constant(tensor))), expected)


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]], ids=["flat", "pairs"])
def test_sparse_tensors_become_dense(indices: list[int]) -> None:
    sparse = onnx.SparseTensorProto(dims=[2, 3])
    sparse.values.CopyFrom(numpy_helper.from_array(np.array([7.0, 9.0], np.float32), "w"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array(indices, np.int64)))
    model = one_constant(TensorProto(data_type=1, dims=[0]))
    model.graph.ClearField("initializer")
    model.graph.sparse_initializer.append(sparse)
    assert constant(load(model)).tolist() == [[0, 7, 0], [0, 0, 9]]


def weights_beside(folder: Path, data: bytes, dtype: int, dims: list[int], **keys: object) -> Path:
    tensor = TensorProto(data_type=dtype, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "sub/weights.bin", **keys}.items():
        tensor.external_data.add(key=key, value=str(value))
    (folder / "sub").mkdir()
    (folder / "sub" / "weights.bin").write_bytes(data)
    path = folder / "model.onnx"
    path.write_bytes(one_constant(tensor).SerializeToString())
    return path


def test_external_data_are_mapped(tmp_path: Path) -> None:
    data = np.arange(8, dtype=np.float32)
    path = weights_beside(tmp_path, data.tobytes(), 1, [2, 2], offset=8, length=16)
    found = constant(load(path))
    assert found.tolist() == [[2, 3], [4, 5]]
    assert not found.flags.writeable
    (tmp_path / "sub" / "weights.bin").unlink()
    assert found.tolist() == [[2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("dtype", "data", "keys", "expected"),
    [
        (1, b"xxxx\0\0\x80?", {"offset": 4}, [1.0]),
        (1, b"x\0\0\x80?", {"offset": 1, "length": 4, "checksum": "abc"}, [1.0]),
        (1, b"\0\0\x80?x", {"length": 4, "prepacked_0": "MatMul+1|4;1;0"}, [1.0]),
        (1, b"\0\0\x80?", {"basepath": "elsewhere"}, [1.0]),
        (22, b"\x97", {}, [7, -7]),
        (9, b"\0\1", {}, [False, True]),
        (1, b"", {"length": 0}, []),
    ],
    ids=["rest of the file", "not aligned", "prepacked", "basepath", "int4", "bool", "nothing"],
)
def test_external_data_of_all_kinds(
    tmp_path: Path, dtype: int, data: bytes, keys: dict[str, object], expected: list[float]
) -> None:
    path = weights_beside(tmp_path, data, dtype, [len(expected)], **keys)
    assert constant(load(path)).tolist() == expected


MODEL = """
    <ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3], producer_name: "me",
     producer_version: "1", metadata_props: ["author": "you"]>
    small (float[n, 3] x) => (float[n, 3] y) { y = Relu(x) }"""


def test_a_model_comes_from_a_path_bytes_or_memory(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(MODEL)
    path = tmp_path / "small.onnx"
    path.write_bytes(model.SerializeToString())
    for source in (path, str(path), path.read_bytes(), model):
        imported = load(source)
        assert imported.file == (str(path) if source in (path, str(path)) else None)
        assert imported.opsets == {"": 17, "ai.onnx.ml": 3}
        assert (imported.ir_version, imported.producer) == (8, "me 1")
        assert imported.metadata == {"author": "you"}
        assert str(imported.graph.outputs["y"].type) == "float32[n,3]"


def test_a_link_to_a_model_is_followed_but_finds_no_data_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path = weights_beside(tmp_path / "real", bytes(4), 1, [1])
    link = tmp_path / "link.onnx"
    link.symlink_to(path)
    with pytest.raises(ModelError, match="is not there; expected in"):
        load(link)


def test_a_number_is_no_model() -> None:
    with pytest.raises(UsageError, match="not int"):
        load(3)  # type: ignore[arg-type]  # that is the mistake


def test_an_initializer_among_the_inputs_is_a_constant() -> None:
    """See docs/rulings.md."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
      g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add (x, w) }"""
    x = np.ones(2, np.float32)
    with tercet.load(onnx.parser.parse_model(text)) as model:
        assert [each.name for each in model.inputs] == ["x"]
        np.testing.assert_array_equal(model.run({"x": x})["y"], [2, 3])
        with pytest.raises(InputError, match="'w' is not an input: an initializer of the file"):
            model.run({"x": x, "w": x})
