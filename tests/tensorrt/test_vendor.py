"""Finding a library: which one, from where, and what is said where none will do."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest
from onnx import helper

from tercet.backends.tensorrt import vendor
from tercet.backends.tensorrt.build import Border, Builder, Refused, Settings
from tercet.backends.tensorrt.engine import Engines
from tercet.backends.tensorrt.products import PRODUCTS, RTX, TENSORRT, Product
from tercet.runtime.cache import Cache
from tercet.runtime.errors import BackendUnavailable

from .double import Double

pytestmark = pytest.mark.usefixtures("nothing_installed")


def test_neither_is_installed() -> None:
    with pytest.raises(BackendUnavailable) as caught:
        vendor.load()
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
    monkeypatch.setenv(vendor.VARIABLE, named)
    assert str(vendor.load()) == found


@pytest.mark.parametrize(
    ("installed", "named", "text"),
    [
        ({"tensorrt": "10.3.0"}, "", "TensorRT 11 is needed, 10.3.0 is installed"),
        ({"tensorrt_rtx": "2.0"}, "", "TensorRT-RTX 1 is needed, 2.0 is installed"),
        ({"tensorrt": "11.4.0"}, "tensorrt_rtx", "the package tensorrt_rtx is not installed"),
        ({"tensorrt": "11.4.0"}, "nowhere/at/all", "nowhere/at/all names no folder"),
    ],
)
def test_what_will_not_do(
    installed: dict[str, str], named: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in installed.items():
        monkeypatch.setitem(sys.modules, name, Double(version=version))
    monkeypatch.setenv(vendor.VARIABLE, named)
    with pytest.raises(BackendUnavailable) as caught:
        vendor.load()
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
    monkeypatch.setenv(vendor.VARIABLE, str(tmp_path))
    before = list(sys.path)
    found = vendor.load()
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
    builder = Builder(vendor.opened(RTX, "1.7.1", rtx), "9.0")
    with pytest.raises(Refused, match=r"no engines for compute capability 9\.0 .*8\.9, 12\.0"):
        builder.probe()


def test_plug_ins_are_registered(rtx: Double) -> None:
    vendor.opened(RTX, "1.7.1", rtx)
    assert len(rtx.of("", "init_libnvinfer_plugins")) == 1


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda product: product.name)
def test_a_gpu_that_is_not_served(product: Product, tmp_path: Path) -> None:
    """The library says so of an engine that does next to nothing."""
    double = Double(rtx=product is RTX)
    engines = Engines(vendor.opened(product, "11", double), "a GPU", Cache(tmp_path))
    assert engines.obstacle() == ""
    double.serves = False
    assert engines.obstacle() == "no kernels for this GPU"
    assert not list(tmp_path.iterdir())


def test_an_engine_of_another_type_is_refused(tmp_path: Path) -> None:
    """float64 is parsed as float32, and would be given twice the bytes that it reads."""
    node = helper.make_node("Relu", ["x"], ["y"])
    for kind, dtype, dims, text in (
        (11, "float64", (2, 3), "'x' is float64, and is parsed as FLOAT"),
        (1, "float32", (2, 4), r"'x' has shape \(2, 4\), and is parsed as \(2, 3\)"),
    ):
        infos = [helper.make_tensor_value_info(name, kind, [2, 3]) for name in "xy"]
        graph = helper.make_graph([node], "g", infos[:1], infos[1:])
        file = tmp_path / "model.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), file)
        builder = Builder(vendor.opened(TENSORRT, "11.4.0", Double()))
        border = Border({name: (dtype, dims) for name in "xy"}, {})
        with pytest.raises(Refused, match=text) as caught:
            builder.build_file(file, border, Settings())
        assert caught.value.stage == "parse"
