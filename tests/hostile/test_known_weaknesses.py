"""The known vulnerabilities of other runtimes, one model each: none of them is one here."""

import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tercet
from tercet.importers import onnx as importer
from tercet.importers.onnx.writing.save import save
from tercet.runtime.errors import TercetError

FLOAT = TensorProto.FLOAT
SECRET = b"SECRET" * 100


def network(*nodes: onnx.NodeProto, constants: Any = (), **more: Any) -> ModelProto:
    """A model of x: float[2, 3] and y, with these nodes and constants."""
    inputs = [helper.make_tensor_value_info("x", FLOAT, [2, 3])]
    outputs = [helper.make_tensor_value_info("y", FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(constants))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **more)


def node(operator: str, inputs: str = "x", outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), outputs.split(), name="culprit", **attributes)


def ints(name: str, *values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def outside(location: str, **entries: int | str) -> Callable[[Path], ModelProto]:
    """A model whose weight is in another file."""

    def build(folder: Path) -> ModelProto:
        tensor = TensorProto(name="w", data_type=FLOAT, dims=[2, 3])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": location, **entries}.items():
            tensor.external_data.add(key=key, value=str(value).format(folder=folder.parent))
        return network(node("Add", "x w"), constants=[tensor])

    return build


def linked(
    make: Callable[[Path, Path], object], location: str = "w.bin"
) -> Callable[[Path], ModelProto]:
    """The same, once a link to a file outside is there."""

    def build(folder: Path) -> ModelProto:
        make(folder.parent / "secret", folder)
        return outside(location)(folder)

    return build


def plain(*nodes: onnx.NodeProto, constants: Any = ()) -> Callable[[Path], ModelProto]:
    return lambda folder: network(*nodes, constants=constants)


def raw(size: int, dims: list[int], kind: int = FLOAT) -> TensorProto:
    return TensorProto(name="w", data_type=kind, dims=dims, raw_data=bytes(size))


def calls_itself(folder: Path) -> ModelProto:
    inner = [helper.make_node(f, ["a"], ["b"], domain="own") for f in ("two", "one")]
    opsets = [helper.make_opsetid("own", 1)]
    functions = [
        helper.make_function("own", name, ["a"], ["b"], [call], opsets)
        for name, call in zip(("one", "two"), inner, strict=True)
    ]
    return network(node("one", domain="own"), functions=functions)


@dataclass(frozen=True)
class Weakness:
    """A vulnerability, as an advisory or a change of the project that had it names it."""

    name: str
    build: Callable[[Path], ModelProto]


WEAKNESSES = (
    Weakness("CVE-2022-25882 parent folder", outside("../secret")),
    Weakness("CVE-2024-27318 parent folder further in", outside("a/../../secret")),
    Weakness("CVE-2024-27318 absolute path", outside("{folder}/secret")),
    Weakness("CVE-2024-27319 text of an assert", plain(
        node("Reshape", "x w"), constants=[raw(8, [2**40])]
    )),
    Weakness("CVE-2026-27489 link to a file", linked(lambda to, at: (at / "w.bin").symlink_to(to))),
    Weakness(
        "CVE-2026-27489 link to a folder",
        linked(lambda to, at: (at / "in").symlink_to(to.parent), "in/secret"),
    ),
    Weakness("CVE-2026-34446 link in a chain", linked(
        lambda to, at: ((at / "b").symlink_to(to), (at / "w.bin").symlink_to("b"))
    )),
    Weakness("CVE-2026-34445 petabytes", outside("w.bin", length=2**50)),
    Weakness("CVE-2026-34445 foreign key", outside("w.bin", __class__="x")),
    Weakness("OpenVINO 34070 wrapping around", outside("w.bin", offset=2**64 - 8, length=16)),
    Weakness("external data, negative offset", outside("w.bin", offset=-8)),
    Weakness("external data, negative length", outside("w.bin", length=-1)),
    Weakness("GHSA-7w46-vvrh-m8q5 functions in a cycle", calls_itself),
    Weakness("onnx 8321 a shape as long as its rank", plain(
        node("ConstantOfShape", "s"), constants=[TensorProto(name="s", data_type=7, dims=[2**40])]
    )),
    Weakness("onnx 8031 too few raw bytes", plain(node("Add", "x w"), constants=[raw(4, [2, 3])])),
    Weakness("onnx 8031 too many raw bytes", plain(
        node("Add", "x w"), constants=[raw(40, [2, 3])]
    )),
    Weakness("onnx 8277 sizes that wrap", plain(
        node("Add", "x w"), constants=[raw(0, [2**32, 2**32, 2**32])]
    )),
    Weakness("onnx 7822 recurrence of the wrong rank", plain(node("RNN", "x x x", hidden_size=3))),
    Weakness("onnxruntime 28730 a bomb of a constant", plain(
        node("ConstantOfShape", "s"), constants=[ints("s", 2**29, 2**29)]
    )),
    Weakness("onnxruntime 28731 weights of another rank", plain(
        node("Conv", "x w"), constants=[raw(24, [2, 3])]
    )),
    Weakness("onnxruntime 21507 windows of another rank", plain(
        node("MaxPool", kernel_shape=[2, 2, 2, 2, 2])
    )),
    Weakness("TensorRT a node without outputs", plain(
        helper.make_node("Relu", ["x"], [], name="culprit")
    )),
    Weakness("TensorRT sizes of 32 bits", plain(
        node("EyeLike", "w"), constants=[TensorProto(name="w", data_type=6, dims=[65537, 65537])]
    )),
    Weakness("an index beyond the end", plain(node("Gather", "x i"), constants=[ints("i", 2**40)])),
    Weakness("an axis beyond the rank", plain(node("Softmax", axis=2**31))),
    Weakness("a permutation that repeats", plain(node("Transpose", perm=[0, 0]))),
)  # fmt: skip


@pytest.mark.parametrize("weakness", WEAKNESSES, ids=lambda weakness: weakness.name)
def test_it_ends_in_an_error_and_reads_nothing_outside(weakness: Weakness, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(SECRET)
    file = folder / "model.onnx"
    file.write_bytes(weakness.build(folder).SerializeToString())
    if not (folder / "w.bin").is_symlink():
        (folder / "w.bin").write_bytes(bytes(24))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TercetError) as caught, tercet.load(file, max_bytes=1 << 30) as model:
        model.run({"x": np.zeros((2, 3), np.float32)})
    said = str(caught.value)
    assert "SECRET" not in said
    assert any(word in said for word in ("'culprit'", "'w'", "'s'", "own::one")), said
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256_000  # kB


def test_a_hard_link_beside_the_model_is_the_users_own_doing(tmp_path: Path) -> None:
    """A hard link is the file itself: who could make it could read the file (CVE-2026-34447)."""
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "other").write_bytes(bytes(24))
    os.link(tmp_path / "other", folder / "w.bin")
    (folder / "model.onnx").write_bytes(outside("w.bin")(folder).SerializeToString())
    tercet.load(folder / "model.onnx").close()


def test_saving_overwrites_nothing_behind_a_link(tmp_path: Path) -> None:
    """CVE-2025-51480 and GHSA-q56x-g2fj-4rj6: a link where the model or its data are written."""
    victim = tmp_path / "victim"
    victim.write_bytes(SECRET)
    for name in ("out.onnx", "out.onnx.data", f".out.onnx.{os.getpid()}.part"):
        (tmp_path / name).symlink_to(victim)
    weights = numpy_helper.from_array(np.ones((2, 3), np.float32), "w")
    graph = importer.load(network(node("Add", "x w"), constants=[weights])).graph
    save(graph, tmp_path / "out.onnx", external=1)
    assert victim.read_bytes() == SECRET
    with tercet.load(tmp_path / "out.onnx") as model:
        (y,) = model(np.zeros((2, 3), np.float32))
    assert (y == 1).all()


def test_nothing_is_unpacked_or_fetched(tmp_path: Path) -> None:
    """CVE-2024-5187 and CVE-2026-28500: archives of models, and a hub that was trusted."""
    import tarfile

    file = tmp_path / "model.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        archive.add(__file__, "../../overwritten")
    for name in (str(file), "https://example.com/model.onnx", "hub:resnet50"):
        with pytest.raises(TercetError):
            tercet.load(name)
    assert not (tmp_path.parent.parent / "overwritten").exists()
