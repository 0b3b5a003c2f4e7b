"""Regions end to end: interleaved with numpy, cached, shared, refused, closed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from rich.console import Console

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'tercet[openvino]'")

import tercet
from tercet.backends.openvino import compiler as compilers
from tercet.backends.openvino import library
from tercet.backends.openvino.compiler import CompiledRegion, RegionCompiler, RegionRefused
from tercet.backends.openvino.trial import TrialRunner, TrialVerdict
from tercet.runtime.base.cache import Cache
from tercet.runtime.errors import BackendUnavailable, DeviceError, TercetError
from tercet.tools.profile.profiling import profile
from tercet.tools.profile.profiling_view import show_profile

from ..packages import needs_fork
from ..threads import together
from .conftest import on_openvino

Array = np.ndarray[Any, Any]


def small(batch: int | str = "batch") -> ModelProto:
    """Return convolutions, two nodes in float64 between them, and a classifier."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((8, 3, 3, 3)) * 0.2,
        "w2": rng.standard_normal((8, 8, 3, 3)) * 0.1,
        "w3": rng.standard_normal((8, 10)) * 0.3,
        "six": np.array(6.0),
        "zero": np.array(0.0),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="first", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Cast", ["b"], ["c"], name="widen", to=TensorProto.DOUBLE),
        helper.make_node("Sqrt", ["c"], ["d"], name="root"),
        helper.make_node("Cast", ["d"], ["e"], name="narrow", to=TensorProto.FLOAT),
        helper.make_node("Conv", ["e", "w2"], ["f"], name="second", pads=[1] * 4),
        helper.make_node("Clip", ["f", "zero", "six"], ["g"], name="clip"),
        helper.make_node("GlobalAveragePool", ["g"], ["h"], name="pool"),
        helper.make_node("Flatten", ["h"], ["i"], name="flat"),
        helper.make_node("Gemm", ["i", "w3"], ["y"], name="classes"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 10])],
        [numpy_helper.from_array(data.astype(np.float32), n) for n, data in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def pictures(batch: int = 2) -> Array:
    return np.random.default_rng(batch).standard_normal((batch, 3, 16, 16), np.float32)


def check(model: Any, x: Array) -> None:
    session = onnxruntime.InferenceSession(small().SerializeToString())
    want: Any = session.run(None, {"x": x})[0]
    np.testing.assert_allclose(model(x)[0], want, rtol=1e-4, atol=1e-5)


def engines(model: Any, batch: int = 2) -> list[str]:
    rows = model.placement({"x": (batch, 3, 16, 16)})
    return [row.kernel for row in rows if row.backend == "openvino"]


def test_regions_alternate_with_numpy_in_one_memory(opened: Callable[..., Any]) -> None:
    model = opened(small(), minimum=4)
    check(model, pictures())
    rows = model.placement({"x": (2, 3, 16, 16)})
    steps = [row.backend for row in rows if row.kind == "step"]
    assert (steps[0], steps[-1]) == ("openvino", "openvino")
    assert "numpy" in steps
    assert not rows.copies
    assert "float64" in rows["root"].reason
    assert on_openvino(model, x=(2, 3, 16, 16)).startswith("Conv + Relu, Conv + Clip")


def test_layers_are_shown_by_placement_and_profile(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(small(2).SerializeToString())
    with tercet.load(tmp_path / "m.onnx", backend="openvino", cache=tmp_path / "cache") as model:
        placed = [row for row in model.placement() if row.backend == "openvino"]
    (first,) = [line for line in placed[0].details if line.startswith("Convolution | ")]
    assert "first" in first
    found = profile(
        tmp_path / "m.onnx", "openvino", repeat=2, peaks=False, cache=tmp_path / "cache"
    )
    rows = [row for row in found.rows if row.backend == "openvino"]
    assert [row.details for row in rows] == [row.details for row in placed]
    assert rows[0].to_dict()["details"] == placed[0].details
    shown = StringIO()
    show_profile(Console(file=shown, width=200), found)
    assert f"  {first}" in shown.getvalue()


def test_arrays_are_shared_not_copied(opened: Callable[..., Any], compiler: RegionCompiler) -> None:
    seen: list[Any] = []
    shared = compilers.as_tensor

    def watched(vendor: Any, data: Array) -> Any:
        tensor = shared(vendor, data)
        seen.append(tensor.data.ctypes.data == data.ctypes.data)
        return tensor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compilers, "as_tensor", watched)
        model = opened(small())
        x = pictures()
        x.flags.writeable = False
        check(model, x)
    assert seen
    assert all(seen)


def test_small_regions_are_not_worth_a_call(
    opened: Callable[..., Any], parsed: Callable[[str], Any]
) -> None:
    model = opened(parsed("g (float[8] x) => (float[8] y) { y = Neg(x) }"), minimum=4)
    assert "too small for a call" in str(model.placement())
    large = opened(parsed("g (float[512, 512] x) => (float[512, 512] y) { y = Neg(x) }"), minimum=4)
    assert on_openvino(large) == "Neg"


class TestCache:
    def test_a_later_process_compiles_and_tries_nothing(
        self,
        opened: Callable[..., Any],
        compiler: RegionCompiler,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        check(opened(small()), pictures())

        def never(*_: object) -> Any:
            raise AssertionError("compiled again")

        later = RegionCompiler(compiler.vendor, compiler.store)
        monkeypatch.setattr(later, "compile", never)
        check(opened(small(), own=later), pictures())

    def test_names_that_it_cuts_are_whole(
        self, opened: Callable[..., Any], compiler: RegionCompiler
    ) -> None:
        model = small()
        model.graph.input[0].name = model.graph.node[0].input[0] = "picture\0of a dog"
        for _ in range(2):  # OpenVINO reads less of them from its files
            later = RegionCompiler(compiler.vendor, compiler.store)
            check(opened(model, own=later), pictures())

    @pytest.mark.parametrize("damage", ["cut", "garbage", "another user's"])
    def test_what_is_damaged_is_made_again(
        self, opened: Callable[..., Any], compiler: RegionCompiler, tmp_path: Path, damage: str
    ) -> None:
        store = Cache(tmp_path / "openvino", tmp_path / "key")
        check(opened(small(), own=RegionCompiler(compiler.vendor, store)), pictures())
        files = sorted(store.folder.iterdir())
        assert {file.suffix for file in files} >= {".blob", ".verdict"}
        other = Cache(store.folder, tmp_path / "other")
        for file in files:
            if damage == "cut":
                file.write_bytes(file.read_bytes()[:40])
            else:
                (store if damage == "garbage" else other).write(file.name, b"garbage")
        check(opened(small(), own=RegionCompiler(compiler.vendor, store)), pictures())

    def test_engines_are_shared_and_go_with_the_last_model(
        self, opened: Callable[..., Any], compiler: RegionCompiler
    ) -> None:
        own = RegionCompiler(compiler.vendor, compiler.store)
        first, second = opened(small(), own=own), opened(small(), own=own)
        check(first, pictures())
        check(second, pictures())
        kept = [weakref.ref(engine) for engine in own._known.values()]
        assert len(kept) == len(set(engines(first)))
        first.close()
        gc.collect()
        assert all(ref() for ref in kept)
        second.close()
        del first, second
        gc.collect()
        assert not any(ref() for ref in kept)


def test_one_engine_serves_a_range(opened: Callable[..., Any]) -> None:
    model = opened(small(), ranges={"batch": (1, 2, 8)})
    for batch in (1, 2, 5):
        check(model, pictures(batch))
    assert engines(model, 1) == engines(model, 5)
    alone = opened(small())
    assert engines(alone, 1) != engines(alone, 5)


def test_what_is_wrong_once_fused_is_declined(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node alone is right; what the vendor makes of two is tried, too."""
    group = TrialRunner.group

    def harsh(judge: TrialRunner, graph: Any, nodes: Any, *rest: Any) -> TrialVerdict:
        is_pair = [node.kind for node in nodes] == ["Conv", "Relu"]
        return TrialVerdict("1, not 2") if is_pair else group(judge, graph, nodes, *rest)

    monkeypatch.setattr(TrialRunner, "group", harsh)
    monkeypatch.setattr(RegionCompiler, "_stored", lambda *_: None)
    model = opened(small())
    check(model, pictures())
    row = model.placement({"x": (2, 3, 16, 16)})["relu"]
    assert row.backend == "numpy"
    assert "1, not 2 (fused: Conv + Relu)" in row.reason


def test_a_fault_names_the_engine(
    opened: Callable[..., Any],
    compiler: RegionCompiler,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def faulty(*_: object) -> Callable[[], object]:
        def call() -> object:
            raise RuntimeError("Exception from src/x.cpp:1:\nCheck 'a' failed at b\nout of luck")

        return call

    own = RegionCompiler(compiler.vendor, Cache(tmp_path / "openvino", tmp_path / "key"))
    monkeypatch.setattr(TrialRunner, "group", lambda *_: TrialVerdict())
    monkeypatch.setattr(CompiledRegion, "request", faulty)
    with pytest.raises(DeviceError, match=r"OpenVINO .*, engine \w+: .* layers: out of luck"):
        opened(small(), own=own)(pictures(3))


@pytest.mark.parametrize("name", ["absent", "old", "no CPU"])
def test_openvino_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def version(_: str) -> str:
        if name == "absent":
            raise library.PackageNotFoundError("openvino")
        return "2023.1.0" if name == "old" else "2026.4.1"

    class Core:
        available_devices = ("NPU",)

    monkeypatch.setattr(library, "version", version)
    monkeypatch.setattr(library.import_module("openvino"), "Core", Core)
    said = {"absent": "not installed", "old": "2023.1.0 is installed", "no CPU": "no CPU plugin"}
    with pytest.raises(BackendUnavailable, match=said[name]) as caught:
        library.load.__wrapped__()
    assert "pip install" in caught.value.remedy


def test_engines_are_kept_by_all_that_they_are_compiled_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of another CPU would end in an instruction that this one lacks."""
    usual = {"version": "2026.4.1", "cpu": "a CPU", "threads": 2, "digest": "a section"}
    keys: list[str] = []

    def compiled(own: RegionCompiler, section: Any, key: str = "") -> Any:
        keys.append(key)
        raise RegionRefused("", "no matter")

    monkeypatch.setattr(RegionCompiler, "compile", compiled)
    others = {"version": "2027.1", "cpu": "another", "threads": 3, "digest": "another"}
    for changed in ({}, {}, *({name: value} for name, value in others.items())):
        with_ = usual | changed
        vendor: Any = SimpleNamespace(version=with_["version"], cpu=with_["cpu"])
        monkeypatch.setattr(compilers.blas, "threads", lambda with_=with_: with_["threads"])
        section: Any = SimpleNamespace(digest=with_["digest"])
        own = RegionCompiler(vendor, Cache(tmp_path / "openvino", tmp_path / "key"))
        with pytest.raises(RegionRefused, match="no matter"):
            own.get(section, lambda _: None)
    assert len(set(keys)) == len(keys) - 1
    assert keys[0] == keys[1]


def test_callers_at_one_time(opened: Callable[..., Any]) -> None:
    model = opened(small())
    found: list[Any] = [None] * 4

    def work(number: int) -> None:
        for _ in range(5):
            found[number] = model(pictures(number + 1))[0]

    together(work, 4)
    for number in range(4):
        np.testing.assert_array_equal(model(pictures(number + 1))[0], found[number])


@needs_fork
@pytest.mark.parametrize("others", [0, 2], ids=["alone", "while other threads run"])
def test_a_forked_process_is_told_at_once_and_ends(others: int, tmp_path: Path) -> None:
    """Also where no `os._exit` ends it, so that all that it has of OpenVINO would be destroyed.

    A library's destructor that waits for a thread may wait forever.
    """
    (tmp_path / "m.onnx").write_bytes(small().SerializeToString())
    source = """
import ctypes, os, sys, threading
import numpy as np
import tercet

def run(batch):
    return model(np.ones((batch, 3, 16, 16), np.float32))[0]

def refused(call):
    try:
        call()
    except tercet.DeviceError as error:
        return "forked" in str(error) and "spawn" in str(error)
    return False

model = tercet.load(sys.argv[1], backend="openvino")
run(2)
run(3)
libc = ctypes.CDLL(None)
if hasattr(libc, "on_exit"):
    libc.__cxa_atexit(libc.pause, None, None)
left = threading.Event()
def work():
    while not left.is_set():
        run(3)
threads = [threading.Thread(target=work) for _ in range(int(sys.argv[2]))]
for thread in threads:
    thread.start()
child = os.fork()
if child == 0:
    told = [refused(lambda: run(batch)) for batch in (2, 3, 4)]
    model.placement()
    model.close()
    sys.exit(0 if all(told) else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
left.set()
for thread in threads:
    thread.join()
run(2)
print(code, flush=True)
os._exit(0)
"""
    command = [sys.executable, "-c", source, str(tmp_path / "m.onnx"), str(others)]
    environment = {**os.environ, "TERCET_CACHE": str(tmp_path / "cache")}
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert found.stdout == "0\n", found.stderr


def test_backends_are_compared(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(small(2).SerializeToString())
    found = tercet.compare(tmp_path / "m.onnx", ["numpy", "openvino"], cache=tmp_path / "cache")
    assert found.ok


def test_a_time_limit_ends_the_trials(parsed: Callable[[str], Any], tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(small(2).SerializeToString())
    with pytest.raises(TercetError, match="time"):
        tercet.load(
            tmp_path / "m.onnx", backend="openvino", cache=tmp_path / "cache", timeout=1e-9
        ).run({"x": pictures()})
