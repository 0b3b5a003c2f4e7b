"""Constants that are mostly zeros, written as sparse initializers."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import tercet
from tercet.importers.onnx.reading.tensors import TensorReader
from tercet.importers.onnx.source.source import FileSource
from tercet.importers.onnx.writing.encode import embedded
from tercet.importers.onnx.writing.sparse import smaller
from tercet.runtime.ir.dtypes import BY_ONNX, DType, bits_of, float8e8m0, string
from tercet.runtime.ir.types import Array

FLOAT32 = np.dtype(np.float32)
#: Elements of whole bytes that may be zero.
WHOLE = [d for d in BY_ONNX.values() if d not in (string, float8e8m0) and bits_of(d) >= 8]


def mostly_zeros(*shape: int, dtype: DType = FLOAT32) -> Array:
    """One element of a hundred is another number; the first one is a negative zero or NaN."""
    rng = np.random.default_rng(0)
    data = np.where(rng.random(shape) < 0.01, rng.integers(1, 4, shape), 0).astype(np.float32)
    found = data.astype(dtype)
    if dtype == np.float32:
        found.reshape(-1)[:2] = -0.0, np.nan
    return found


def model_of(**weights: Array) -> onnx.ModelProto:
    """One input plus each weight, and a weight inside a branch."""
    lines = [f"y_{name} = Add (x, {name})" for name in weights]
    outputs = ", ".join(f"float[n, 64] y_{name}" for name in weights)
    names = ", ".join(
        f"{onnx.TensorProto.DataType.Name(onnx.helper.np_dtype_to_tensor_dtype(w.dtype)).lower()}"
        f"[{','.join(map(str, w.shape))}] {name}"
        for name, w in weights.items()
    )
    head = f'<ir_version: 4, opset_import: ["": 9]> g (float[n, 64] x, {names}) => ({outputs})'
    model = onnx.parser.parse_model(f"{head} {{ {'  '.join(lines)} }}")
    del model.graph.input[1:]
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(data, name) for name, data in weights.items()
    )
    return model


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
def test_elements_come_back_bit_by_bit(dtype: DType) -> None:
    data = mostly_zeros(40, 30, dtype=dtype)
    form = smaller(embedded)("w", data)
    assert isinstance(form, onnx.SparseTensorProto)
    found = TensorReader(FileSource()).read_sparse(form)
    assert (found.dtype, found.shape) == (data.dtype, data.shape)
    assert found.tobytes() == data.tobytes()
    assert form.ByteSize() < data.nbytes / 2 or dtype.itemsize < 4


@pytest.mark.parametrize(
    "data",
    [
        np.ones((20, 20), np.float32),
        np.float32(0),
        np.zeros((0, 4), np.float32),
        np.array(["", "", "", "", "a"], object),
        np.eye(2, dtype=np.float32),
    ],
    ids=["dense", "scalar", "empty", "strings", "small"],
)
def test_others_stay_dense(data: Array) -> None:
    assert isinstance(smaller(embedded)("w", np.asarray(data)), onnx.TensorProto)


@pytest.mark.parametrize("external", [None, 1], ids=["embedded", "beside"])
def test_onnxruntime_reads_the_file(external: int | None, tmp_path: Path) -> None:
    dense = np.random.default_rng(1).random((1, 64), np.float32)
    weights = {"some": mostly_zeros(64, 64), "none": np.zeros((64, 64), np.float32), "all": dense}
    model, file = model_of(**weights), tmp_path / "m.onnx"
    found = tercet.export(model, file, optimise=False, sparse=True, external=external)
    written = onnx.load(file)
    onnx.checker.check_model(file)
    assert [each.values.name for each in written.graph.sparse_initializer] == ["some", "none"]
    assert [each.name for each in written.graph.initializer] == ["all"]
    assert written.ir_version == 6
    assert sum(found.nbytes) < 6000
    x = np.random.default_rng(2).random((64, 64), np.float32)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    theirs = onnxruntime.InferenceSession(file).run(None, {"x": x})
    with tercet.load(file) as loaded:
        mine = loaded(x)
    for want, other, own in zip(expected, theirs, mine, strict=True):
        np.testing.assert_array_equal(other, want)
        np.testing.assert_array_equal(own, want)


def test_constants_of_bodies_and_results_are_written() -> None:
    text = """
        <ir_version: 8, opset_import: ["": 18]>
        g (bool c, float[64, 64] x, float[64, 64] w) => (float[64, 64] y, float[64, 64] z) {
            y = If (c) <
                then_branch = t () => (float[64, 64] a) { a = Add (x, w) },
                else_branch = e () => (float[64, 64] b) { b = Mul (x, w) }
            >
            z = Identity (w)
        }
    """
    model = onnx.parser.parse_model(text)
    del model.graph.input[2]
    model.graph.initializer.append(onnx.numpy_helper.from_array(mostly_zeros(64, 64), "w"))
    found = tercet.export(model, sparse=True).proto
    onnx.checker.check_model(found)
    assert len(found.graph.sparse_initializer) == 1
    x = np.random.default_rng(0).random((64, 64), np.float32)
    for taken in (True, False):
        with tercet.load(model) as one, tercet.load(found) as two:
            for want, got in zip(one(np.array(taken), x), two(np.array(taken), x), strict=True):
                np.testing.assert_array_equal(got, want)


def test_sparse_initializers_of_a_file_may_stay_sparse() -> None:
    model = model_of(w=mostly_zeros(64, 64))
    sparse = tercet.export(model, optimise=False, sparse=True).proto
    again = tercet.export(sparse, sparse=True).proto
    assert again.graph.sparse_initializer == sparse.graph.sparse_initializer
    assert not tercet.export(sparse).proto.graph.sparse_initializer
