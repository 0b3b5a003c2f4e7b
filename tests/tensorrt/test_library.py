"""Finding a library: which one, from where, and what is said where none will do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tercet.backends import tensorrt
from tercet.backends.regions.section import Section, section
from tercet.backends.tensorrt import library
from tercet.backends.tensorrt.build import EngineBuilder, EngineIO, EngineSettings, SectionRefused
from tercet.backends.tensorrt.claims import OPSET
from tercet.backends.tensorrt.engines import Engines
from tercet.backends.tensorrt.products import PRODUCTS, RTX, TENSORRT, LibraryProduct
from tercet.importers import onnx as importer
from tercet.runtime.base.cache import Cache
from tercet.runtime.errors import BackendUnavailable
from tercet.runtime.ir.infer import infer
from tercet.runtime.options import Options
from tercet.tools.doctor import doctor

from ..plan.fakes import FakeDevice
from .double import Double

pytestmark = pytest.mark.usefixtures("nothing_installed")


def test_neither_is_installed() -> None:
    with pytest.raises(BackendUnavailable) as caught:
        library.load()
    assert "the package tensorrt is not installed" in caught.value.missing
    assert "the package tensorrt_rtx is not installed" in caught.value.missing
    assert "pip install 'tercet[tensorrt]'" in caught.value.remedy


@pytest.mark.parametrize(
    ("installed", "named", "found"),
    [
        ({"tensorrt": "11.4.0"}, "", "TensorRT 11.4.0"),
        ({"tensorrt_bindings": "11.4.0"}, "", "TensorRT 11.4.0"),
        ({"tensorrt": "11.4.0", "tensorrt_rtx": "1.7.1"}, "", "TensorRT 11.4.0"),
        ({"tensorrt": "11.4.0", "tensorrt_rtx": "1.7.1"}, "tensorrt_rtx", "TensorRT-RTX 1.7.1"),
        ({"tensorrt": "10.3.0", "tensorrt_rtx": "1.7.1"}, "", "TensorRT-RTX 1.7.1"),
        ({"tensorrt_rtx_bindings": "1.7.1"}, "", "TensorRT-RTX 1.7.1"),
    ],
)
def test_which_is_taken(
    installed: dict[str, str], named: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in installed.items():
        double = Double(rtx="rtx" in name, version=version)
        monkeypatch.setitem(sys.modules, name, double)
    monkeypatch.setenv(library.VARIABLE, named)
    assert str(library.load()) == found


@pytest.mark.parametrize(
    ("installed", "named", "text"),
    [
        ({"tensorrt": "10.3.0"}, "", "TensorRT 11 is needed, 10.3.0 is installed"),
        ({"tensorrt_rtx": "2.0"}, "", "TensorRT-RTX 1 is needed, 2.0 is installed"),
        ({"tensorrt": "11.4.0"}, "tensorrt_rtx", "the package tensorrt_rtx is not installed"),
        ({"tensorrt": "11.4.0"}, "nowhere/at/all", "nowhere/at/all is not a folder"),
    ],
)
def test_what_will_not_do(
    installed: dict[str, str], named: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in installed.items():
        monkeypatch.setitem(sys.modules, name, Double(version=version))
    monkeypatch.setenv(library.VARIABLE, named)
    with pytest.raises(BackendUnavailable) as caught:
        library.load()
    assert text in caught.value.missing


def test_a_folder_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "python" / "tensorrt_rtx"
    package.mkdir(parents=True)
    lines = (
        "__version__ = '1.9'",
        "def init_libnvinfer_plugins(logger, name): return True",
        "class ILogger:",
        "    class Severity: INTERNAL_ERROR, ERROR, WARNING = range(3)",
    )
    (package / "__init__.py").write_text("\n".join(lines))
    monkeypatch.delitem(sys.modules, "tensorrt_rtx")
    monkeypatch.setenv(library.VARIABLE, str(tmp_path))
    before = list(sys.path)
    found = library.load()
    assert (str(found), found.file) == ("TensorRT-RTX 1.9", str(package / "__init__.py"))
    assert sys.path == before


@pytest.fixture
def rtx() -> Double:
    return Double(rtx=True, version="1.7.1")


def test_only_one_of_them_names_the_gpus_that_it_builds_for(rtx: Double) -> None:
    config = rtx.Builder(rtx.ILogger()).create_builder_config()
    assert RTX.capabilities(rtx) == ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")
    assert TENSORRT.capabilities(Double()) == ()
    assert RTX.aim(rtx, config, "8.9")
    assert RTX.aim(rtx, config, "")
    assert not RTX.aim(rtx, config, "9.0")
    names = [given[0].name for given in rtx.of("IBuilderConfig", "set_compute_capability")]
    assert names == ["SM89", "CURRENT"]


def test_a_capability_that_it_lacks(rtx: Double) -> None:
    builder = EngineBuilder(library.opened(RTX, "1.7.1", rtx), "9.0")
    with pytest.raises(
        SectionRefused, match=r"no engines for compute capability 9\.0 .*8\.9, 12\.0"
    ):
        builder.probe()


def test_plug_ins_are_registered(rtx: Double) -> None:
    library.opened(RTX, "1.7.1", rtx)
    assert len(rtx.of("", "init_libnvinfer_plugins")) == 1


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda product: product.name)
def test_a_gpu_that_is_not_served(product: LibraryProduct, tmp_path: Path) -> None:
    """The library says so of an engine that does next to nothing."""
    double = Double(rtx=product is RTX)
    engines = Engines(library.opened(product, "11", double), "a GPU", Cache(tmp_path))
    assert engines.obstacle() == ""
    double.serves = False
    assert engines.obstacle() == "no kernels for this GPU"
    assert not list(tmp_path.iterdir())


def test_an_engine_of_another_type_is_refused(tmp_path: Path) -> None:
    """float64 is parsed as float32, and would be given twice the bytes that it reads."""
    node = helper.make_node("Relu", ["x"], ["y"])
    for kind, dtype, dims, text in (
        (11, "float64", (2, 3), "'x' is float64, but is parsed as FLOAT"),
        (1, "float32", (2, 4), r"'x' has shape \(2, 4\), but is parsed as \(2, 3\)"),
    ):
        infos = [helper.make_tensor_value_info(name, kind, [2, 3]) for name in "xy"]
        graph = helper.make_graph([node], "g", infos[:1], infos[1:])
        file = tmp_path / "model.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), file)
        builder = EngineBuilder(library.opened(TENSORRT, "11.4.0", Double()))
        border = EngineIO({name: (dtype, dims) for name in "xy"}, {})
        with pytest.raises(SectionRefused, match=text) as caught:
            builder.build_file(file, border, EngineSettings())
        assert caught.value.stage == "parse"


class TestOpening:
    """`open_backends` on a GPU of the double's, with the real library's product."""

    @pytest.fixture(autouse=True)
    def gpu(
        self, nothing_installed: None, rtx: Double, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[None]:
        from tercet.backends import cuda
        from tercet.backends.cuda import device

        class Gpu(FakeDevice):
            description, ordinal = "NVIDIA X, sm_90", 0

        monkeypatch.setitem(sys.modules, "tensorrt_rtx", rtx)
        monkeypatch.setattr(cuda, "open_backends", lambda options: ())
        monkeypatch.setattr(device, "open_device", lambda *_: Gpu())
        tensorrt._engines.cache_clear()
        yield
        tensorrt._engines.cache_clear()

    def test_a_gpu_that_is_not_served_is_refused_before_anything_is_built(
        self, rtx: Double, tmp_path: Path
    ) -> None:
        rtx.serves = False
        with pytest.raises(BackendUnavailable) as caught:
            tensorrt.open_backends(Options(cache=tmp_path))
        said = "TensorRT-RTX 1.7.1 runs no engines on NVIDIA X, sm_90: no kernels for this GPU"
        assert caught.value.missing == said
        assert rtx.builds == 0
        assert not list(tmp_path.iterdir())
        assert doctor._runs_engines("TensorRT-RTX 1.7.1") == said.removeprefix(
            "TensorRT-RTX 1.7.1 "
        )

    def test_one_that_is(self, tmp_path: Path) -> None:
        (backend,) = tensorrt.open_backends(Options(cache=tmp_path))
        assert backend.name == "tensorrt"
        assert doctor._runs_engines("TensorRT-RTX 1.7.1") == "runs engines on fake:0"


def weights(seed: int) -> bytes:
    """Return those of `linear`."""
    return np.random.default_rng(seed).standard_normal((8, 8), np.float32).tobytes()


def linear(seed: int) -> Section:
    """Return a product with weights."""
    data = np.frombuffer(weights(seed), np.float32).reshape(8, 8)
    infos = [helper.make_tensor_value_info(name, 1, [2, 8]) for name in "xy"]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph(
        [node], "g", infos[:1], infos[1:], [numpy_helper.from_array(data, "w")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    found = importer.load(model).graph
    infer(found)
    return section(found, tuple(found.nodes), {}, OPSET)


def test_engines_without_their_weights(tmp_path: Path) -> None:
    """What is kept has none; whoever opens it puts in those of its own model, and of no other."""
    double = Double(rtx=False)
    flags = {"STRIP_PLAN", "REFIT_IDENTICAL"}
    for opened in (1, 2):
        engines = Engines(library.opened(TENSORRT, "11", double), "a GPU", Cache(tmp_path))
        found = linear(0)
        engine = engines.get(found, EngineSettings(strip=True))
        assert {given[0].name for given in double.of("IBuilderConfig", "set_flag")} == flags
        assert (double.builds, len(double.of("Refitter", "refit_cuda_engine"))) == (1, opened)
        core: Any = engine.core
        assert weights(0) in core.state["model"]
    (file,) = tmp_path.glob("*.engine")
    assert repr(weights(0))[2:-1].encode() not in file.read_bytes()
    assert engines.get(linear(1), EngineSettings(strip=True)).key != engine.key


@pytest.mark.parametrize(
    "failing", ["OnnxParserRefitter.refit_from_file", "Refitter.refit_cuda_engine"]
)
def test_weights_that_it_does_not_take(failing: str, tmp_path: Path) -> None:
    double = Double()
    double.failing.add(failing)
    engines = Engines(library.opened(TENSORRT, "11", double), "a GPU", Cache(tmp_path))
    with pytest.raises(SectionRefused, match="opening the engine"):
        engines.get(linear(0), EngineSettings(strip=True))
    assert not list(tmp_path.glob("*.engine"))
