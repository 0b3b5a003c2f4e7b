"""What tercet is held against shares no code with what it judges."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tercet
from tercet.importers.onnx.reading import bind, read, texts
from tercet.importers.onnx.reading.external import ExternalData
from tercet.importers.onnx.reading.order import distinct
from tercet.importers.onnx.reading.tensors import TensorReader
from tercet.tools.runners.onnx_files import OnnxFile, numbered

ROOT = Path(__file__).parents[2]
#: What runs and reads models other than tercet, and what reads what is expected of it.
OTHERS = (
    "tools/runners/fatal_node.py",
    "tools/runners/onnx_files.py",
    "tools/runners/onnxruntime_process.py",
    "tools/runners/onnxruntime_runner.py",
    "tools/runners/onnxruntime_server.py",
    "tools/runners/reference_runner.py",
    "tools/common/arrays.py",
    "tools/conformance/suite.py",
    "tools/workshop/onnxruntime_process.py",
)
#: What they may have of tercet: its errors, names of types, and what the user has set.
NEUTRAL = {
    "api": {"Loadable"},
    "backends.numpy.numerics": {"blas"},
    "runtime.base.arguments": {"refused"},
    "runtime.base.parallel": {"usable_cpus"},
    "runtime.errors": {"*"},
    "runtime.ir.mapped": {"external_data_dir"},
    "runtime.ir.types": {"Array", "HostValue"},
    "runtime.session.freeze": {"FROZEN"},
    "runtime.session.refit": {"WEIGHTS"},
}


@pytest.mark.parametrize("file", OTHERS)
def test_other_programs_are_run_without_code_of_tercet(file: str) -> None:
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 3:
            names = {alias.name for alias in node.names}
            allowed = NEUTRAL.get(node.module or "", set[str]())
            assert names <= allowed or "*" in allowed, f"{file}: {node.module}: {names - allowed}"
        assert not isinstance(node, ast.ImportFrom) or node.level <= 3
        assert not isinstance(node, ast.Import) or "tercet" not in str(ast.dump(node))


@pytest.mark.parametrize("seed", range(20))
def test_outputs_that_recur_have_the_names_that_tercet_gives_them(seed: int) -> None:
    """Written down twice, for neither is right if they differ."""
    names = Random(seed).choices(["y", "y.1", "y.2", "y.1.1", "z", ""], k=8)
    assert numbered(names) == distinct(names)
    assert numbered(["y", "y", "y.1", "y"]) == ["y", "y.2", "y.1", "y.3"]


# ── planted errors ───────────────────────────────────────────────────────────────────────────────

Plant = Callable[[pytest.MonkeyPatch], None]
LAYER = """<ir_version: 9, opset_import: ["" : 18]>
g (float[4, 64] x) => (float[4, 64] y) { h = MatMul (x, w) y = Neg (h) }"""


def layer() -> ModelProto:
    proto = onnx.parser.parse_model(LAYER)
    data = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(data, "w"))
    proto.graph.initializer.append(numpy_helper.from_array(data[:1], "last"))
    return proto


def saved(folder: Path, suffix: str = ".onnx", *, external: bool = False) -> str:
    file = folder / f"model{suffix}"
    if external:
        options = {"save_as_external_data": True, "location": "data", "size_threshold": 0}
        onnx.save_model(layer(), file, **options)
    else:
        onnx.save_model(layer(), file)
    return str(file)


def other_bytes(patch: pytest.MonkeyPatch) -> None:
    """Read one tensor from the bytes behind its first element."""
    number = ExternalData._number

    def later(data: ExternalData, fields: Any, key: str, *rest: Any) -> int:
        return number(data, fields, key, *rest) + 4 * (key == "offset" and "'w'" in rest[-1])

    patch.setattr(ExternalData, "_number", later)


def other_elements(patch: pytest.MonkeyPatch) -> None:
    """Read elements in the wrong order."""
    right = TensorReader.read

    def reversed_(reader: TensorReader, proto: TensorProto, where: str | None = None) -> Any:
        found = right(reader, proto, where)
        return found[::-1].copy() if found.ndim > 1 else found

    patch.setattr(TensorReader, "read", reversed_)


def other_text(patch: pytest.MonkeyPatch) -> None:
    """Lose an operator of a text."""
    right = texts.parsed

    def without(data: bytes, *rest: Any) -> ModelProto:
        return right(data.replace(b'"Neg"', b'"Abs"'), *rest)

    patch.setattr(read, "parsed", without)


def other_names(patch: pytest.MonkeyPatch) -> None:
    """Name outputs by the one in front of them."""
    patch.setattr(bind, "distinct", lambda names: distinct(names)[::-1])


#: An error, and what would show it: the tensors that are compared, and how the file is written.
PLANTED: dict[str, tuple[Plant, tuple[str, ...], dict[str, Any]]] = {
    "external data": (other_bytes, (), {"external": True}),
    "external data, for a tensor in the middle": (other_bytes, ("h",), {"external": True}),
    "elements": (other_elements, (), {}),
    "elements, for a tensor in the middle": (other_elements, ("h", "y"), {}),
    "a text": (other_text, (), {"suffix": ".textproto"}),
    "a text, for a tensor in the middle": (other_text, ("h", "y"), {"suffix": ".json"}),
}


@pytest.mark.parametrize("runner", ["onnxruntime", "onnx.reference"])
@pytest.mark.parametrize("name", PLANTED)
def test_an_error_of_reading_is_on_one_side(
    name: str, runner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    plant, outputs, form = PLANTED[name]
    file = saved(tmp_path, **form)

    def verdict() -> str:
        found = tercet.compare(file, [runner, "numpy"], outputs=outputs, repeat=0)
        return found.verdict

    assert verdict() == "ok"
    plant(monkeypatch)
    assert verdict() == "MISMATCH"


def test_outputs_under_each_others_names_are_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    proto = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        g (float[4] x) => (float[4] y, float[4] z) { y = Neg (x) z = Abs (x) }"""
    )
    assert tercet.compare(proto, ["numpy", "onnxruntime"], repeat=0).ok
    other_names(monkeypatch)
    assert tercet.compare(proto, ["numpy", "onnxruntime"], repeat=0).verdict == "MISMATCH"


def test_expected_outputs_are_not_read_as_constants_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that passes on a constant would have the same error as the file of its result."""
    data = np.arange(6, dtype=np.float32).reshape(3, 2)
    node = helper.make_node("Identity", ["w"], ["y"])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, (3, 2))
    graph = helper.make_graph([node], "g", [], [output], [numpy_helper.from_array(data, "w")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    file = tmp_path / "output_0.pb"
    file.write_bytes(numpy_helper.from_array(data, "y").SerializeToString())
    assert tercet.compare(proto, ["numpy", str(tmp_path)], repeat=0).ok
    other_elements(monkeypatch)
    found = tercet.compare(proto, ["numpy", str(tmp_path)], repeat=0)
    assert found.verdict == "MISMATCH"


# ── files ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", ["path", "bytes", "message", "language", "textproto", "json"])
def test_every_form_is_the_same_model(form: str, tmp_path: Path) -> None:
    proto = layer()
    if form in ("textproto", "json"):
        source: Any = saved(tmp_path, f".{form}")
    elif form == "path":
        source = Path(saved(tmp_path))
    else:
        given = {"bytes": proto.SerializeToString(), "message": proto, "language": LAYER}
        source = given[form]
    found = OnnxFile(source).message()
    assert [node.op_type for node in found.graph.node] == ["MatMul", "Neg"]
    if form != "language":
        ours, theirs = (numpy_helper.to_array(each.graph.initializer[0]) for each in (found, proto))
        np.testing.assert_array_equal(ours, theirs)


def test_data_behind_links_as_in_the_caches_of_hubs(tmp_path: Path) -> None:
    """Neither onnx nor onnxruntime follows them for a model in memory."""
    pytest.importorskip("onnxruntime")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    saved(tmp_path / "snapshot", external=True)
    for name in ("model.onnx", "data"):
        path = tmp_path / "snapshot" / name
        path.rename(tmp_path / "blobs" / name[0])
        path.symlink_to(Path("..") / "blobs" / name[0])
    file = tmp_path / "snapshot" / "model.onnx"
    for outputs in ((), ("h",)):
        runners = ["numpy", "onnxruntime", "onnx.reference"]
        assert tercet.compare(file, runners, outputs=outputs, repeat=0).ok
