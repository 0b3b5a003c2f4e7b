"""Files whose large tensors are read apart give what protobuf gives, damaged ones as well."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tercet.importers.onnx import Imported, load
from tercet.importers.onnx.reading import large_tensors, read
from tercet.runtime.base import file_parts
from tercet.runtime.errors import ModelError, ModelFileError
from tercet.runtime.ir.types import Array


@pytest.fixture(autouse=True)
def all_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "LARGE_FILE", 1)
    monkeypatch.setattr(large_tensors, "LARGE", 40)
    monkeypatch.setattr(file_parts, "_PART", 100)
    monkeypatch.setattr(large_tensors, "_WINDOW", 7)


def arrays() -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {
        "f": rng.standard_normal((5, 13)).astype(np.float32),
        "h": rng.standard_normal((31, 1)).astype(np.float16),
        "i": rng.integers(-9, 9, (4, 4, 4)),
        "b": rng.integers(0, 2, 77).astype(bool),
        "small": np.array([3.0], np.float32),
    }


def model() -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(data, name) for name, data in arrays().items()]
    tensors.append(helper.make_tensor("list", TensorProto.FLOAT, [50], np.arange(50)))
    outputs = [onnx.ValueInfoProto(name=tensor.name) for tensor in tensors]
    graph = helper.make_graph([], "g", [], outputs, tensors)
    return helper.make_model(graph, ir_version=10, producer_name="behind the graph")


def saved(folder: Path, data: bytes) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(data)
    return path


def check(found: Imported) -> None:
    for name, data in {**arrays(), "list": np.arange(50, dtype=np.float32)}.items():
        made = found.graph.outputs[name].data
        assert made is not None
        assert made.dtype == data.dtype
        assert np.array_equal(made, data)
        assert not made.flags.writeable


def parts_of(path: Path) -> int:
    """Return how many tensors are read apart."""
    with path.open("rb") as file:
        found = large_tensors.split(file, path.stat().st_size)
    return len(found[1]) if found else 0


def test_large_tensors_are_in_one_array(tmp_path: Path) -> None:
    path = saved(tmp_path, model().SerializeToString())
    with path.open("rb") as file:
        found = large_tensors.split(file, path.stat().st_size)
    assert found is not None
    starts: dict[int, Array] = {}
    for data in (block.data for block in found[1].values()):
        assert data.base is not None
        starts[data.ctypes.data - data.base.ctypes.data] = data
    assert len(starts) == len(found[1]) > 3
    assert len({id(data.base) for data in starts.values()}) == 1
    assert not [start for start in starts if start % 64]


def test_elements_are_those_of_the_file(tmp_path: Path) -> None:
    path = saved(tmp_path, model().SerializeToString())
    assert parts_of(path) == 4
    found = load(path)
    check(found)
    assert found.producer == "behind the graph"


def test_the_rest_of_the_message_is_the_same(tmp_path: Path) -> None:
    path = saved(tmp_path, model().SerializeToString())
    with path.open("rb") as file:
        found = large_tensors.split(file, path.stat().st_size)
    assert found is not None
    for block in found[1].values():
        at = block.offset
        assert path.read_bytes()[at : at + len(block.data)] == block.data.tobytes()
    message = onnx.ModelProto.FromString(found[0])
    for tensor in message.graph.initializer:
        if tensor.raw_data in found[1]:
            tensor.raw_data = found[1][tensor.raw_data].data.tobytes()
    assert message == model()


def test_without_positioned_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "preadv", raising=False)
    check(load(saved(tmp_path, model().SerializeToString())))


def test_raw_data_twice_are_the_last(tmp_path: Path) -> None:
    whole, other = model(), onnx.TensorProto(raw_data=bytes(260))
    doubled = whole.graph.initializer[0].SerializeToString() + other.SerializeToString()
    del whole.graph.initializer[0]
    field = bytes([5 << 3 | 2, len(doubled) & 0x7F | 0x80, len(doubled) >> 7]) + doubled
    graph = whole.graph.SerializeToString() + field
    whole.ClearField("graph")
    start = bytes([7 << 3 | 2, len(graph) & 0x7F | 0x80, len(graph) >> 7])
    path = saved(tmp_path, start + graph + whole.SerializeToString())
    made = load(path).graph.outputs["f"].data
    assert made is not None
    assert not made.any()


def test_two_graphs_are_merged_as_protobuf_does(tmp_path: Path) -> None:
    data = model().SerializeToString()
    path = saved(
        tmp_path, data + onnx.ModelProto(graph=onnx.GraphProto(name="h")).SerializeToString()
    )
    assert parts_of(path) == 0
    check(load(path))


def test_damage_is_described_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = model().SerializeToString()

    def answer(path: Path) -> str:
        try:
            load(path)
        except ModelError as error:
            return f"{type(error).__name__} {error}"
        return "none"

    rng = np.random.default_rng(2)
    for number in range(60):
        damaged = bytearray(data[: rng.integers(1, len(data))] if number % 2 else data)
        for place in rng.integers(0, min(len(damaged), 60), number % 3):
            damaged[place] = rng.integers(256)
        path = saved(tmp_path, bytes(damaged))
        with monkeypatch.context() as plain:
            plain.setattr(read, "LARGE_FILE", 1 << 60)
            expected = answer(path)
        assert answer(path) == expected


def test_a_file_that_shrinks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, model().SerializeToString())
    scanned = large_tensors._graph

    def shrink(*args: Any) -> bytes:
        found = scanned(*args)
        os.truncate(path, 30)
        return found

    monkeypatch.setattr(large_tensors, "_graph", shrink)
    monkeypatch.setattr(large_tensors._Message, "ended", lambda self, end: b"".join(self.parts))
    with pytest.raises(ModelFileError, match=r"model\.onnx: has become shorter"):
        load(path)


def test_texts_are_not_scanned(tmp_path: Path) -> None:
    path = tmp_path / "model.textproto"
    onnx.save(model(), path)
    assert read.format_of(path.read_bytes()) == "textproto"
    check(load(path))
