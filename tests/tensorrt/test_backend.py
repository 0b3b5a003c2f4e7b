"""The backend on the double: engines compute what numpy does, and every refusal is told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from onnx import ModelProto, helper

import tercet
from tercet.backends import tensorrt
from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.backends.regions.regions import min_nodes
from tercet.backends.tensorrt import library
from tercet.backends.tensorrt.backend import TensorrtBackend
from tercet.backends.tensorrt.engines import Engines
from tercet.backends.tensorrt.products import RTX, TENSORRT
from tercet.importers import onnx as importer
from tercet.runtime.base.cache import Cache
from tercet.runtime.errors import DeviceError, UsageError
from tercet.runtime.ir.op import OPERATORS, op_base
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import View
from tercet.runtime.session.model import Model
from tercet.tools.workshop.bench_models import bench_inputs
from tercet.tools.workshop.generated_models import Sheet, image
from tercet.tools.workshop.light_models import light_model

from ..plan.fakes import FakeBackend, FakeBuffer, FakeDevice, FakeStream
from .double import Double


class Stream(FakeStream):
    """A stream with a handle, as CUDA's have one."""

    handle = 7


class Device(FakeDevice):
    """A fake GPU with such streams."""

    def stream(self) -> Stream:
        return Stream(self)


def pointer(view: View) -> int:
    assert isinstance(view.buffer, FakeBuffer)
    return view.buffer.memory.ctypes.data + view.offset


@pytest.fixture
def trt(monkeypatch: pytest.MonkeyPatch) -> Double:
    """The double in the place of the package."""
    double = Double()
    monkeypatch.setitem(sys.modules, "tensorrt", double)
    return double


@pytest.fixture
def opened(trt: Double, tmp_path: Path) -> Callable[..., Model]:
    """Return what loads a model on the double; behind it a fake of its device, and numpy."""

    def load(proto: ModelProto, *, fake: bool = False, **options: Any) -> Model:
        device = Device()
        engines = Engines(library.opened(TENSORRT, "11.4.0", trt), "a GPU", Cache(tmp_path))
        backend = TensorrtBackend(device, engines, pointer)
        chain = (backend, *([FakeBackend(device)] if fake else ()), NumpyBackend())
        return Model(importer.load(proto).graph, chain, Options(**options), evaluate)

    return load


def small(batch: int | str = "batch") -> ModelProto:
    """Return two convolutions and a classifier."""
    sheet = Sheet("small", 0)
    x = sheet.node("Relu", sheet.conv("input", (3, 8), 3, 4))
    x = sheet.node("Relu", sheet.conv(x, (8, 8), 3, 4))
    x = sheet.node("Flatten", sheet.node("GlobalAveragePool", x), axis=1)
    return sheet.model(image(batch), (sheet.gemm(x, 8, 10), (batch, 10)), 17)


def check(model: Model, proto: ModelProto, batch: int = 1) -> None:
    feeds = bench_inputs(proto, batch=batch)
    with tercet.load(proto) as exact:
        want = exact.run(feeds)
    got = model.run(feeds)
    for name, data in want.items():
        np.testing.assert_allclose(got[name], data, rtol=1e-4, atol=1e-4 * np.abs(data).max())


def test_one_engine_for_a_whole_model(trt: Double, opened: Callable[..., Model]) -> None:
    with opened(small()) as model:
        check(model, small(), batch=2)
        (row,) = [row for row in model.placement() if row.kind == "step"]
    assert row.backend == "tensorrt"
    assert row.kernel.startswith("engine ")
    assert row.kernel.endswith(", 256 bytes of scratch")
    assert len(row.details) == 7, "a line for each layer"
    assert all(line.startswith("Gemm | ") for line in row.details)
    assert trt.builds == 1
    assert trt.of("IBuilderConfig", "clear_flag") == [(trt.BuilderFlag.TF32,)], "float32 is float32"
    assert trt.of("Builder", "create_network")[-1] == (
        1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED),
    )


@pytest.mark.parametrize("name", ["densenet121", "shufflenet", "squeezenet"])
def test_light_models_are_one_valid_section(name: str, opened: Callable[..., Model]) -> None:
    proto = light_model(name)
    with opened(proto) as model:
        check(model, proto)
        steps = [row for row in model.placement() if row.kind == "step"]
    assert [row.backend for row in steps] == ["tensorrt"]


def test_other_kernels_in_between_copy_nothing(trt: Double, opened: Callable[..., Model]) -> None:
    trt.unknown.add("Relu")
    with opened(small(), fake=True) as model:
        check(model, small())
        rows = model.placement()
        relus = [row for row in rows if row.operators == "Relu"]
    steps = [row.backend for row in rows if row.kind == "step"]
    assert steps == ["tensorrt", "fake", "tensorrt", "fake", "tensorrt"]
    assert sum(row.kind == "copy" for row in rows) == 2, "the input and the result alone"
    said = {row.reason for row in relus}
    assert said == {"tensorrt: the parser of TensorRT 11.4.0 does not know Relu"}


def test_a_custom_operator_stays_with_the_kernels(trt: Double, tmp_path: Path) -> None:
    """Engines before and behind it, and nothing is copied to the host in between."""
    proto = small()
    proto.opset_import.append(helper.make_opsetid("my.domain", 1))
    first = next(node for node in proto.graph.node if node.op_type == "Relu")
    first.domain = "my.domain"

    @op_base
    class Rectify(Relu):
        domain: ClassVar[str] = "my.domain"

    device = Device()
    engines = Engines(library.opened(TENSORRT, "11.4.0", trt), "a GPU", Cache(tmp_path))
    chain = (TensorrtBackend(device, engines, pointer), FakeBackend(device), NumpyBackend())
    known = {**OPERATORS, ("my.domain", "Relu"): Rectify}
    graph = importer.load(proto, operators=known).graph
    with Model(graph, chain, Options(), evaluate) as model:
        feeds = bench_inputs(small())
        got = model.run(feeds)
        rows = model.placement()
    with tercet.load(small()) as exact:
        for name, data in exact.run(feeds).items():
            np.testing.assert_allclose(got[name], data, rtol=1e-4, atol=1e-4 * np.abs(data).max())
    assert [row.backend for row in rows if row.kind == "step"] == ["tensorrt", "fake", "tensorrt"]
    assert sum(row.kind == "copy" for row in rows) == 2, "the input and the result alone"
    (custom,) = [row for row in rows if row.backend == "fake"]
    assert custom.reason == "tensorrt: an operator of 'my.domain'"


def test_the_parsers_no_is_a_decline(trt: Double, opened: Callable[..., Model]) -> None:
    trt.refuses.add("GlobalAveragePool")
    with opened(small()) as model:
        check(model, small())
        rows = [row for row in model.placement() if row.kind == "step"]
    (refused,) = [row for row in rows if row.operators == "GlobalAveragePool"]
    steps = [row.backend for row in rows]
    said = "tensorrt: TensorRT 11.4.0: its parser says UNSUPPORTED_NODE: no importer"
    assert refused.reason.startswith(said)
    assert steps == ["tensorrt", "numpy", "tensorrt"]


def test_the_builders_no_is_a_decline(trt: Double, opened: Callable[..., Model]) -> None:
    trt.failing.add("Builder.build_serialized_network")
    with opened(small()) as model:
        check(model, small())
        rows = [row for row in model.placement() if row.kind == "step"]
    assert "tensorrt" not in {row.backend for row in rows}
    said = "tensorrt: TensorRT 11.4.0: build_serialized_network: no reason given"
    assert any(row.reason.startswith(said) for row in rows)


@pytest.mark.parametrize(("said", "minimum"), [("", 4), ("1", 1), ("0", 0), ("few", 0)])
def test_how_small_a_region_may_be(
    said: str, minimum: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tensorrt.MIN_NODES_VARIABLE, said)
    if minimum:
        assert min_nodes(tensorrt.MIN_NODES_VARIABLE) == minimum
        return
    with pytest.raises(UsageError, match="it must be a number, 1 or greater"):
        min_nodes(tensorrt.MIN_NODES_VARIABLE)


def test_options_reach_the_builder(trt: Double, opened: Callable[..., Model]) -> None:
    with opened(small(), precision="tf32", workspace=1 << 20, tune=True) as model:
        check(model, small())
    assert trt.of("IBuilderConfig", "set_flag") == [(trt.BuilderFlag.TF32,)]
    assert trt.of("IBuilderConfig", "builder_optimization_level") == [(5,)]
    limit = (trt.MemoryPoolType.WORKSPACE, 1 << 20)
    assert trt.of("IBuilderConfig", "set_memory_pool_limit") == [limit]


def test_ranges_make_one_engine_for_all_sizes(trt: Double, opened: Callable[..., Model]) -> None:
    with opened(small(), ranges={"batch": (1, 4, 8)}) as model:
        for batch in (1, 3, 8):
            check(model, small(), batch)
        assert trt.builds == 1
        ((name, *shapes),) = trt.of("IOptimizationProfile", "set_shape")
        sizes = [dims.state["shape"] for dims in shapes]
        assert (name, sizes) == ("input", [(n, 3, 224, 224) for n in (1, 4, 8)])
        check(model, small(), batch=9)
        assert trt.builds == 2, "outside of the range it is an engine for this size"


def test_engines_are_kept(trt: Double, opened: Callable[..., Model], tmp_path: Path) -> None:
    for _ in range(2):
        with opened(small()) as model:
            check(model, small())
    assert trt.builds == 1
    (file,) = tmp_path.glob("*.engine")
    assert file.stat().st_mode & 0o077 == 0 or tmp_path.stat().st_mode & 0o077 == 0
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with opened(small()) as model:
        check(model, small())
    assert trt.builds == 2, "a damaged engine is not loaded"
    with opened(small(), workspace=0) as model:
        check(model, small())
    assert trt.builds == 3
    assert trt.of("IBuilderConfig", "create_timing_cache")[1:] == [(b"timings",)] * 2


def test_kernels_that_an_engine_compiled_are_kept(tmp_path: Path) -> None:
    """TensorRT-RTX compiles where an engine runs first, and never while a plan is recorded."""
    for seen in (0, 1):
        rtx = Double(rtx=True, version="1.7.1")
        engines = Engines(library.opened(RTX, "1.7.1", rtx), "a GPU", Cache(tmp_path))
        chain = (TensorrtBackend(Device(), engines, pointer), NumpyBackend())
        with Model(importer.load(small()).graph, chain, Options(), evaluate) as model:
            check(model, small())
        assert rtx.of("IRuntimeCache", "deserialize") == [(b"kernels",)] * seen
        assert rtx.of("IRuntimeConfig", "cuda_graph_strategy")[0][0].name == "DISABLED"
        strategy = "dynamic_shapes_kernel_specialization_strategy"
        assert rtx.of("IRuntimeConfig", strategy)[0][0].name == "EAGER"
        targets = {given[0].name for given in rtx.of("IBuilderConfig", "set_compute_capability")}
        assert targets == (set() if seen else {"CURRENT"}), "built once"
        assert rtx.of("IBuilderConfig", "create_timing_cache") == []
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".engine", ".kernels"]


def test_a_failing_run_is_typed(trt: Double, opened: Callable[..., Model]) -> None:
    trt.failing.add("IExecutionContext.execute_async_v3")
    with opened(small()) as model, pytest.raises(DeviceError, match="execute_async_v3"):
        model.run(bench_inputs(small()))


def test_dtypes_that_engines_lack(opened: Callable[..., Model]) -> None:
    sheet = Sheet("double", 0)
    x = sheet.node("Cast", "input", to=11)
    for _ in range(4):
        x = sheet.node("Add", x, x)
    x = sheet.node("Cast", x, to=1)
    proto = sheet.model(image(1), (x, (1, 3, 224, 224)), 17)
    with opened(proto) as model:
        check(model, proto)
        reasons = [row.reason for row in model.placement() if row.kind == "step"]
    assert any("has dtype float64" in reason for reason in reasons)
