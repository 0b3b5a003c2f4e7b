"""Files that are no model, or lie: each ends in one typed error that says what was found."""

import gzip
import io
import json
import os
import pickle
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from tercet.importers.onnx import Limits, load
from tercet.runtime.errors import (
    LimitError,
    ModelError,
    ModelFileError,
    TercetError,
    UnsupportedError,
)
from tercet.runtime.ir.verify import verify

from .files import EXTERNAL, changed, small, tensor

# ── not a model ──────────────────────────────────────────────────────────────────────────────


def archive(kind: str) -> bytes:
    buffer = io.BytesIO()
    if kind == "tar":
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("model.onnx"))
        return buffer.getvalue()
    if kind == "npz":
        np.savez(buffer, x=np.ones(3))
        return buffer.getvalue()
    inside = {
        "zip": ["model.onnx"],
        "torch": ["archive/data.pkl"],
        "torch-export": ["g/data/weights/model_weights_config.json", "g/archive_format"],
        "keras": ["config.json"],
    }
    with zipfile.ZipFile(buffer, "w") as file:
        for name in inside[kind]:
            file.writestr(name, b"x")
    return buffer.getvalue()


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 1\n"
#: How files of torch.save begin with `_use_new_zipfile_serialization=False`.
TORCH = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2) + pickle.dumps(1001, protocol=2) + bytes(9)
OTHERS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "lfs": (LFS, "git lfs pull"),
    "html": (b"<!DOCTYPE html><html><body>404</body></html>", "HTML page"),
    "html-later": (b"\n\n <!-- x --><html></html>", "HTML page"),
    "xml": (b"<?xml version='1.0'?><Error/>", "XML"),
    "openvino": (b"<?xml version='1.0'?><net name='g' version='11'/>", "an OpenVINO model"),
    "gzip": (gzip.compress(b"model"), "gzip"),
    "zip": (archive("zip"), "zip archive"),
    "tar": (archive("tar"), "tar archive"),
    "torch-zip": (archive("torch"), "torch.onnx.export"),
    "torch-export": (archive("torch-export"), "program of torch.export"),
    "torch-magic": (TORCH, "an old PyTorch checkpoint"),
    "torch-pickle": (pickle.dumps({"w": [1.0]}, protocol=2), "pickle"),
    "estimator": (pickle.dumps(b"sklearn.svm._classes", protocol=4), "convert them with skl2onnx"),
    "catboost": (b'CBM1\x08"\0\0\x14\0\0\0', "a CatBoost model"),
    "xgboost": (b'{"learner":{"attributes":{}}}', "an XGBoost model; convert it with onnxmltools"),
    "xgboost-ubj": (b"{L\0\0\0\0\0\0\0\x07learner{L\0\0\0\0\0\0\0\n", "an XGBoost model"),
    "lightgbm": (b"tree\nversion=v4\nnum_class=1\n", "a LightGBM model"),
    "keras-zip": (archive("keras"), "Keras"),
    "keras-h5": (b"\x89HDF\r\n\x1a\n" + bytes(64), "HDF5"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(64), "TensorFlow Lite"),
    "safetensors": (safetensors(), "safetensors"),
    "ort": (b"\x1c\0\0\0ORTM" + bytes(64), "onnxruntime"),
    "numpy": (b"\x93NUMPY\1\0", "numpy array"),
    "png": (b"\x89PNG\r\n\x1a\n", "PNG"),
    "npz": (archive("npz"), "numpy archive"),
    "json": (b'{"error": "Repository not found"}', 'JSON file that begins \'{"error"'),
    "text": (b"Invalid username or password.", "text file that begins 'Invalid username or"),
    "as-utf-8": (bytes(range(256)).decode("latin-1").encode(), "converted to text"),
    "with-a-mark": (b"\xef\xbb\xbf" + bytes(range(256)), "converted to text"),
    "tf-graph": (b"\n\x13\n\1x\x12\x0bPlaceholder\x1a\1y", "TensorFlow graph"),
    "tf-saved": (b"\x08\1\x12\x14\n\x12saved_model_main_op", "SavedModel"),
    "tensor": (numpy_helper.from_array(np.ones(3), "x").SerializeToString(), "one ONNX tensor"),
    "paddle": (b'\n\x0e\n\4feed\x12\6fetch1"\2\x08\0', "a Paddle program"),
    "core-ml": (b"\x08\5\x12\2\n\0\xb2\x1f\2\n\0", "a Core ML model"),
    "other-protobuf": (b"\n\x7f\n\4some", "is not an ONNX model, or is damaged"),
    "noise": (bytes(range(255, 0, -1)), "not an ONNX model"),
    "zeros": (bytes(100), "nothing but zeros"),
    "line-ends": (b"\x08\x0a\xff\0".replace(b"\n", b"\r\n") * 9, "line ends were converted"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_model_is_called_by_its_name(kind: str, tmp_path: Path) -> None:
    data, reason = OTHERS[kind]
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=reason) as caught:
        load(path)
    assert caught.value.file == str(path)
    with pytest.raises(ModelError, match=f"^the model .*{reason}"):
        load(data)


def test_a_name_with_a_slip_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(small().SerializeToString())
    with pytest.raises(ModelFileError, match=r"no such file; did you mean 'model\.onnx'\?"):
        load(tmp_path / "modle.onnx")


@pytest.mark.parametrize("suffix", [".data", "_data", "_data_1"])
def test_weights_are_told_from_models_by_the_model_beside_them(tmp_path: Path, suffix: str) -> None:
    weights = tmp_path / f"model.onnx{suffix}"
    weights.write_bytes(np.linspace(-1, 1, 999, dtype=np.float32).tobytes())
    with pytest.raises(ModelError) as alone:
        load(weights)
    assert "by its name" not in str(alone.value)
    (tmp_path / "model.onnx").write_bytes(small().SerializeToString())
    with pytest.raises(ModelError, match=r"the weights of .*model\.onnx; give that$"):
        load(weights)


def test_a_link_to_a_file_that_is_gone(tmp_path: Path) -> None:
    """As in a cache of downloads that was cleaned up."""
    path = tmp_path / "model.onnx"
    path.symlink_to("blobs/1")
    with pytest.raises(ModelFileError, match=r"model\.onnx: is a link to 'blobs/1', which is not"):
        load(path)


def test_a_folder_lists_its_models(tmp_path: Path) -> None:
    for name in ("config.json", "unet/model.onnx", "model.onnx", "onnx/model_q4.onnx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    listed = r"file in it \(model\.onnx, onnx/model_q4\.onnx, unet/model\.onnx\)$"
    with pytest.raises(ModelFileError, match=listed):
        load(tmp_path)


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    locked = tmp_path / "locked"
    locked.touch(mode=0)
    cases = {
        str(tmp_path / "absent.onnx"): "there is no such file",
        str(tmp_path): r"is a folder; there is no \.onnx file in it",
        str(fifo): "not a plain file",
        "/dev/zero": "not a plain file",
        "a\0b": "cannot be read",
        "x" * 5000: "cannot be read",
    }
    if os.geteuid() != 0:
        cases[str(locked)] = "Permission denied"
    for path, reason in cases.items():
        with pytest.raises(ModelFileError, match=reason) as caught:
            load(path)
        assert caught.value.file == path


def test_a_file_beyond_what_protobuf_holds(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(ModelError, match="external data"):
        load(path)


def test_every_truncation_is_noticed() -> None:
    data = small().SerializeToString()
    for end in range(1, len(data)):
        with pytest.raises(ModelError):
            load(data[:end])
    with pytest.raises(ModelError, match="is truncated: at least 1 byte is missing"):
        load(data[:-1])


HEADERS: dict[str, tuple[Callable[[ModelProto], object], type[TercetError], str]] = {
    "no graph": (lambda m: m.ClearField("graph"), ModelError, "no graph"),
    "no opset": (lambda m: m.ClearField("opset_import"), ModelError, "imports no opset"),
    "no IR version": (lambda m: m.ClearField("ir_version"), ModelError, "no IR version"),
    "new IR version": (lambda m: setattr(m, "ir_version", 99), UnsupportedError, "IR version 99"),
    "new opset": (
        lambda m: setattr(m.opset_import[0], "version", 999),
        UnsupportedError,
        "imports version 999 of domain 'ai.onnx'; tercet knows it up to",
    ),
    "new opset in a function": (
        lambda m: m.functions.add(name="f").opset_import.add(version=999),
        UnsupportedError,
        "function '::f': imports version 999",
    ),
    "opset 0": (lambda m: setattr(m.opset_import[0], "version", 0), ModelError, "version 0"),
    "two opsets": (lambda m: m.opset_import.add(version=9), ModelError, "two versions"),
    "other domain": (
        lambda m: setattr(m.opset_import[0], "domain", "com.me"),
        ModelError,
        "does not import",
    ),
    "long name": (lambda m: setattr(m.graph.node[0], "name", "x" * 70000), LimitError, "70000"),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_headers(kind: str) -> None:
    change, error, reason = HEADERS[kind]
    with pytest.raises(error, match=reason):
        load(changed(change))


def test_names_that_are_not_utf8() -> None:
    data = changed(lambda m: setattr(m.graph.node[0], "name", "QQQQ")).SerializeToString()
    with pytest.raises(ModelError, match="not UTF-8"):
        load(data.replace(b"QQQQ", b"\xff\xfe\xfd\xfc"))


# ── tensors that lie ─────────────────────────────────────────────────────────────────────────


TENSORS: dict[str, tuple[TensorProto, type[TercetError], str]] = {
    "raw too short": (tensor(raw_data=bytes(31)), ModelError, r"\[4, 2\] takes 32 bytes; found 31"),
    "raw too long": (tensor(raw_data=bytes(33)), ModelError, "found 33"),
    "too few floats": (tensor(float_data=[1.0]), ModelError, "takes 32 bytes; found 4"),
    "nothing": (tensor(), ModelError, "takes 32 bytes; found 0"),
    "wrong field": (tensor(int32_data=[1] * 8), ModelError, "found int32_data"),
    "two fields": (tensor(float_data=[1], int64_data=[1]), ModelError, "float_data and int64"),
    "raw and floats": (tensor(raw_data=bytes(32), float_data=[1]), ModelError, "raw_data and"),
    "no type": (tensor(data_type=0), ModelError, "no element type"),
    "unknown type": (tensor(data_type=99), ModelError, "unknown element type 99"),
    "negative size": (tensor(dims=[-4, 2]), ModelError, "negative dimension"),
    "overflow": (tensor(dims=[1 << 62, 1 << 62]), LimitError, "too large"),
    "overflow, empty": (tensor(dims=[0, 1 << 62, 4]), LimitError, "too large"),
    "bomb": (tensor(dims=[1 << 44]), ModelError, "found 0"),
    "rank": (tensor(dims=[1] * 1000000), LimitError, "1000000 axes"),
    "segment": (tensor(segment=TensorProto.Segment(begin=0)), ModelError, "segments"),
    "range": (tensor(data_type=2, dims=[1], int32_data=[256]), ModelError, "holds 256, no uint8"),
    "uint32": (tensor(data_type=12, dims=[1], uint64_data=[1 << 40]), ModelError, "no uint32"),
    "raw strings": (tensor(data_type=8, raw_data=b"x"), ModelError, "strings cannot be stored"),
    "few strings": (tensor(data_type=8, string_data=[b"x"]), ModelError, "1 strings for shape"),
    "bad string": (tensor(data_type=8, dims=[1], string_data=[b"\xff"]), ModelError, "UTF-8"),
    "far strings": (tensor(data_type=8, data_location=EXTERNAL), ModelError, "strings cannot"),
    "int4": (tensor(data_type=22, dims=[3], raw_data=bytes(1)), ModelError, "takes 2 bytes"),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_that_lie(kind: str) -> None:
    proto, error, reason = TENSORS[kind]
    model = changed(lambda m: m.graph.initializer[0].CopyFrom(proto))
    with pytest.raises(error, match=reason) as caught:
        load(model)
    assert "tensor 'w'" in str(caught.value)


def sparse(values: list[float], indices: np.ndarray, dims: list[int]) -> onnx.SparseTensorProto:
    proto = onnx.SparseTensorProto(dims=dims)
    proto.values.CopyFrom(numpy_helper.from_array(np.array(values, np.float32), "s"))
    proto.indices.CopyFrom(numpy_helper.from_array(indices, "i"))
    return proto


SPARSE: dict[str, tuple[onnx.SparseTensorProto, type[TercetError], str]] = {
    "outside": (sparse([1], np.array([8]), [4, 2]), ModelError, "outside its shape"),
    "negative": (sparse([1], np.array([-1]), [4, 2]), ModelError, "outside its shape"),
    "count": (sparse([1, 2], np.array([1]), [4, 2]), ModelError, "2 values"),
    "type": (sparse([1], np.array([1.0]), [4, 2]), ModelError, "int64 indices"),
    "no axes": (sparse([1, 2], np.zeros((2, 0), np.int64), []), ModelError, "no dims"),
    "bomb": (sparse([1], np.array([1]), [1 << 40]), LimitError, "1073741824 allowed"),
}


@pytest.mark.parametrize("kind", SPARSE)
def test_sparse_tensors_that_lie(kind: str) -> None:
    proto, error, reason = SPARSE[kind]
    with pytest.raises(error, match=reason):
        load(changed(lambda m: m.graph.sparse_initializer.append(proto)))


# ── depth and size ───────────────────────────────────────────────────────────────────────────


def nested(depth: int) -> ModelProto:
    """Return a model of If inside If inside If, each in the first branch of the one before."""
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[2] x, bool c) => (float[2] y) { y = Relu(x) }""")
    graph = model.graph
    for i in range(depth):  # in place, because protobuf copies nothing that is deeper than 100
        node = graph.node[-1]
        node.op_type, node.input[0] = "If", "c"
        deep = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g
        flat = node.attribute.add(name="else_branch", type=onnx.AttributeProto.GRAPH).g
        for graph in (flat, deep):
            graph.node.add(op_type="Relu", input=["x"], output=[f"y{i}"])
            graph.output.add(name=f"y{i}")
    return model


def _value(name: str) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name)


def test_bodies_inside_bodies() -> None:
    assert len(list(load(nested(30)).graph.walk())) == 61
    with pytest.raises(LimitError, match="bodies inside one another"):
        load(nested(200))
    with pytest.raises(ModelError):  # deeper than protobuf reads
        load(b"\x08\x08" + deep_bytes(5000))


def deep_bytes(depth: int) -> bytes:
    """Return graph { node { attribute { g { node { … } } } } } as protobuf has it."""
    data = b""
    for key in (*(b"\x0a", b"\x2a", b"\x32") * depth, b"\x3a"):
        size, length = len(data), b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        data = key + length + bytes([size]) + data
    return data


def test_types_inside_types() -> None:
    def deepen(model: ModelProto) -> None:
        type_ = model.graph.input[0].type
        type_.Clear()
        for i in range(200):
            inner = type_.sequence_type if i % 2 else type_.optional_type
            type_ = inner.elem_type
        type_.tensor_type.elem_type = 1

    with pytest.raises(LimitError, match="levels"):
        load(changed(deepen))


def with_functions(count: int, calls: Callable[[int], list[int]]) -> ModelProto:
    """Return a model of functions f0, f1, … of which each calls some others, in order."""
    functions = [
        helper.make_function(
            "me",
            f"f{i}",
            ["x"],
            ["y"],
            [
                helper.make_node(f"f{k}", ["x" if n == 0 else f"t{n}"], [f"t{n + 1}"], domain="me")
                for n, k in enumerate(calls(i))
            ]
            + [helper.make_node("Relu", [f"t{len(calls(i))}" if calls(i) else "x"], ["y"])],
            [helper.make_opsetid("", 17), helper.make_opsetid("me", 1)],
        )
        for i in range(count)
    ]
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    node = helper.make_node("f0", ["x"], ["y"], domain="me")
    graph = helper.make_graph([node], "g", [value], [_value("y")])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("me", 1)]
    return helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=8)


def test_functions_that_call_themselves() -> None:
    with pytest.raises(ModelError, match=r"function 'me::f0' calls itself"):
        load(with_functions(1, lambda i: [0]))
    with pytest.raises(ModelError, match="calls itself"):
        load(with_functions(5, lambda i: [(i + 1) % 5]))


def test_functions_that_grow() -> None:
    def chain(i: int, last: int) -> list[int]:
        return [i + 1] if i < last else []

    assert len(load(with_functions(60, lambda i: chain(i, 59))).graph.nodes) == 60
    with pytest.raises(LimitError, match="deep"):
        load(with_functions(1000, lambda i: chain(i, 999)))
    with pytest.raises(LimitError, match="nodes once its functions are inlined"):
        load(with_functions(40, lambda i: chain(i, 39) * 2))


def test_limits_can_be_chosen() -> None:
    with pytest.raises(LimitError, match="more than 2 nodes"):
        load(small(), limits=Limits(nodes=2))


# ── mutants ──────────────────────────────────────────────────────────────────────────────────


def seeds() -> list[bytes]:
    function = with_functions(3, lambda i: [i + 1] if i < 2 else [])
    return [m.SerializeToString() for m in (small(), nested(3), function)]


def mutant(data: bytes, rng: random.Random) -> bytes:
    mutated = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(mutated))
        match rng.randrange(5):
            case 0:
                mutated[at] ^= 1 << rng.randrange(8)
            case 1:
                mutated[at] = rng.randrange(256)
            case 2:
                del mutated[at : at + rng.randrange(1, 5)]
            case 3:
                mutated[at:at] = rng.randbytes(rng.randrange(1, 5))
            case _:
                mutated[at : at + 8] = mutated[rng.randrange(len(mutated)) :][:8]
        mutated = mutated or bytearray(1)
    return bytes(mutated)


def test_mutants_end_in_a_graph_or_in_an_error_of_tercet() -> None:
    rng, originals = random.Random(7), seeds()
    loaded = 0
    for _ in range(3000):
        data = mutant(rng.choice(originals), rng)
        try:
            graph = load(data).graph
        except TercetError:
            continue
        verify(graph)
        loaded += 1
    assert loaded > 100
