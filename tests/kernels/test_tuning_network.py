"""What the tuner measures: candidates, and steps replaced in planned networks; no GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.algorithms import selection
from tercet.backends.cuda.algorithms.registry import Setting
from tercet.backends.cuda.algorithms.selection import Candidate
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.driver import step as stepping
from tercet.backends.cuda.driver.step import addresses, bind_launch
from tercet.backends.cuda.recipe.launch import Launch, launches_of
from tercet.backends.cuda.recipe.operands import Scratch, TensorMap
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.cuda.tuning import network as tuning_network
from tercet.backends.cuda.tuning.tuner import (
    NetworkResult,
    works_of,
)
from tercet.runtime.errors import DeviceOutOfMemory
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.options import Options
from tercet.runtime.plan.host import HOST
from tercet.runtime.plan.plan import Plan
from tercet.runtime.plan.weights import WeightStore

from .dry import DryDevice, dry_backend, normal, single
from .tuning_samples import graph, works


def silent(text: str) -> None:
    return None


# ── candidates ───────────────────────────────────────────────────────────────────────────────────


def candidates(one: Graph, **options: Any) -> list[Candidate]:
    (work,) = works(one, **options)
    formats = work.selector.pick(work.task).formats
    return list(work.selector.in_place(work.task.within(formats)))


def test_candidates_take_the_tensors_as_they_are() -> None:
    """And those that are hopeless or only chosen by name are left out."""
    found = candidates(graph(64, 56))
    assert len({each.algorithm for each in found}) > 1
    assert len({each.formats for each in found}) == 1
    assert "naive" not in {each.algorithm for each in found}


def test_candidates_are_within_the_workspace() -> None:
    found = candidates(graph(64, 56), workspace=1000)
    assert found
    assert all(each.workspace <= 1000 for each in found)
    assert len(found) < len(candidates(graph(64, 56)))


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_products_of_halves_have_forms(target: Target) -> None:
    """Every one has a separate recipe, by the name that is kept."""
    (work,) = works_of(_layers(float16, 1).nodes[:1], Setting(target, Options()))
    algorithm = work.selector.named("tensor_cores")
    assert not isinstance(algorithm, str)
    names = algorithm.variants(work.task)
    made = [work.selector.candidate(work.task, algorithm, name).recipe for name in names]
    assert len(names) == len(set(names)) > 1
    assert None not in made
    assert all(a != b for i, a in enumerate(made) for b in made[:i])
    assert work.selector.candidate(work.task, algorithm, "no such").recipe is None


# ── on a network ─────────────────────────────────────────────────────────────────────────────────


def _layers(dtype: DType, count: int = 2) -> Graph:
    """Return linear layers, each of which is followed by Relu."""
    made = Graph("layers")
    value = made.add_input("x", TensorType(dtype, (24, 64)))
    for _ in range(count):
        weights = made.constant((normal(64, 64) / np.float32(8)).astype(dtype))
        value = made.insert(MatMul(), [value, weights]).output
        value = made.insert(Relu(), [value]).output
    made.set_outputs({"y": value})
    infer(made)
    return made


@pytest.fixture
def clocked(emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The microseconds of kernels on the emulated GPU by title; 10 where none is given."""
    times: dict[str, float] = {}
    passed: list[float] = []
    bind: Any = stepping.bind_launch

    def clocking(device: Any, launch: Launch, code: Any, pointers: Any) -> Callable[[Any], None]:
        run = bind(device, launch, code, pointers)

        def timed(stream: Any) -> None:
            passed.append(times.get(launch.title, 10.0))
            run(stream)

        return timed

    def time(self: Any, run: Callable[[Any], None], stream: Any) -> float:
        passed.clear()
        run(stream)
        return sum(passed) / 1e6

    def error(device: Any, found: Any, expected: Any, type_: Any, stream: Any) -> float:
        a, b = (
            np.frombuffer((ctypes.c_char * type_.nbytes).from_address(one.pointer), type_.dtype)
            for one in (found, expected)
        )
        assert np.abs(b).max() > 0, "the network has run"
        return float(np.linalg.norm(a.astype(float) - b) / np.linalg.norm(b.astype(float)))

    device: Any = type(emulated.device)
    monkeypatch.setattr(stepping, "bind_launch", clocking)
    monkeypatch.setattr(device, "record", lambda self, run: run)
    monkeypatch.setattr(device, "time", time, raising=False)
    monkeypatch.setattr(device, "description", "an emulator", raising=False)
    monkeypatch.setattr(type(emulated.device.compiler), "announce", print, raising=False)
    monkeypatch.setattr(tuning_network, "relative_difference", error)
    return times


def test_the_choice_reaches_the_plan(
    emulated: CudaBackend,
    clocked: dict[str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is measured once, in the place of all equal steps, and only `tune` uses it."""
    monkeypatch.setattr(selection, "HOPELESS", 1.5)
    layers, options = _layers(float16), Options(cache=tmp_path, tune=True)
    clocked["mma 32x64 Relu"] = 3.0
    found = tuning_network.tuned(emulated, layers, set(layers.nodes), options, silent)
    assert found is not None
    assert (found.before, found.after) == (pytest.approx(20.0), pytest.approx(6.0))
    (group,) = found.groups
    assert (group.steps, group.kernel) == (2, "mma 32x32 Relu")
    assert group.task == "MatMul float16 24x64 64x64 constant to 24x64 then Relu"
    again = tuning_network.tuned(emulated, layers, set(layers.nodes), options, silent)
    assert again == NetworkResult(found.before, found.after, found.groups)
    assert _kernels(emulated, layers, options) == ["mma 32x64 Relu"] * 2
    assert _kernels(emulated, layers, Options(cache=tmp_path)) == ["mma 32x32 Relu"] * 2


def test_what_runs_is_no_candidate(emulated: CudaBackend, clocked: dict[str, float]) -> None:
    """Of images either, whose launches differ from those of recipes."""
    images = normal(1, 64, 8, 8).astype(float16)
    conv = single("Conv", [images, normal(16, 64, 1, 1).astype(float16)], (1,))
    network = tuning_network.ReplacedSteps(_plan(emulated, conv, Options()), emulated)
    (group,) = network.groups
    names = [_title(each) for each in group.candidates]
    assert names
    assert group.kernel not in names


def _title(candidate: Candidate) -> str:
    assert candidate.recipe is not None
    return " + ".join(launch.title for launch in launches_of(candidate.recipe))


def _plan(backend: CudaBackend, graph: Graph, options: Options) -> Plan:
    stores: Any = {device: WeightStore(device) for device in (HOST, backend.device)}
    return Plan(graph.clone(), [backend], options, stores)


def _kernels(backend: CudaBackend, graph: Graph, options: Options) -> list[str]:
    plan = _plan(backend, graph, options)
    x = normal(24, 64).astype(float16)
    (got,) = plan.run({"x": x}).values()
    want = x.astype(np.float64)
    for weights in (node.operands[1].data for node in graph.nodes if len(node.operands) > 1):
        assert weights is not None
        want = np.maximum(want @ weights.astype(np.float64), 0)
    np.testing.assert_allclose(got, want, rtol=5e-3, atol=5e-3)
    return [row.kernel for row in plan.rows if row.kind == "step"]


def test_only_what_the_backend_runs_is_planned() -> None:
    """What another backend computes in between is an input."""
    backend = dry_backend()
    layers = _layers(float16, 3)
    middle = layers.nodes[2]
    part = tuning_network._part(backend, layers, set(layers.nodes) - {middle}, Options())
    assert part is not None
    assert [node.kind for node in part.nodes] == ["MatMul", "Relu", "Relu", "MatMul", "Relu"]
    assert [value.name for value in part.inputs] == ["x", middle.output.name]
    assert set(part.outputs) == {layers.nodes[1].output.name, layers.nodes[-1].output.name}
    assert tuning_network._part(backend, layers, set(), Options()) is None


def test_a_network_without_choices_is_not_tuned(
    emulated: CudaBackend, clocked: dict[str, float], tmp_path: Path
) -> None:
    one, options = single("Relu", [normal(3)]), Options(cache=tmp_path, tune=True)
    assert tuning_network.tuned(emulated, one, set(one.nodes), options, silent) is None
    assert tuning_network.tuned(emulated, one, set(), options, silent) is None


def test_a_full_gpu_is_not_tuned(
    emulated: CudaBackend,
    clocked: dict[str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(self: Any, nbytes: int) -> Any:
        raise DeviceOutOfMemory("full")

    monkeypatch.setattr(type(emulated.device), "allocate", full)
    layers, options = _layers(float16), Options(cache=tmp_path, tune=True)
    assert tuning_network.tuned(emulated, layers, set(layers.nodes), options, silent) is None
    assert not list(tmp_path.iterdir())


def problems(launch: Launch) -> Iterator[str]:
    """What CUDA and Hopper's copy engine would refuse or, worse, fault at."""
    if launch.shared > H200.shared or not 0 < launch.block <= 1024:
        yield f"{launch.shared} bytes, {launch.block} threads"
    if launch.grid[0] >= 2**31 or max(launch.grid[1:]) >= 2**16:
        yield f"grid {launch.grid}"
    if any(blocks % size for blocks, size in zip(launch.grid, launch.cluster, strict=True)):
        yield f"grid {launch.grid} of clusters {launch.cluster}"
    for map in (argument for argument in launch.args.values() if isinstance(argument, TensorMap)):
        size, limits = map.dtype.itemsize, (256, 1024) if map.corners else (256,) * len(map.dims)
        begin = map.base.offset if isinstance(map.base, Scratch) else 0
        if map.box[0] * size not in (32, 64, 128) or begin % 16:
            yield f"box {map.box} of {map.base}"
        if any(b > limit for b, limit in zip(map.box, limits, strict=True)):
            yield f"box {map.box}"
        if any(stride * size % 16 for stride in map.strides) or max(map.dims) >= 2**32:
            yield f"dims {map.dims}, strides {map.strides}"
        if any(not -128 <= corner <= 127 for pair in map.corners or () for corner in pair):
            yield f"corners {map.corners}"


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("float32", np.float32), ("tf32", np.float32), ("float32", np.float16)],
    ids=["float32", "tf32", "float16"],
)
def test_every_form_of_every_algorithm_can_be_launched(precision: str, dtype: type) -> None:
    """The tuner launches forms that no heuristic takes."""

    def graphs() -> Iterator[Graph]:
        shapes = [((8, 64, 56, 56), (64, 64, 3, 3), 1), ((32, 3, 64, 64), (64, 3, 7, 7), 2)]
        shapes += [((1, 512, 7, 7), (2048, 512, 1, 1), 1), ((2, 96, 27, 27), (40, 96, 5, 5), 1)]
        for x, w, stride in shapes:
            arrays = [normal(*x).astype(dtype), normal(*w).astype(dtype)]
            pads = (w[-1] // 2,) * 4
            yield single("Conv", arrays, (1,), pads=pads, strides=(stride, stride))
        for x, w in (((8, 128, 768), (768, 3072)), ((1, 2048), (2048, 1000))):
            yield single("MatMul", [normal(*x).astype(dtype), normal(*w).astype(dtype)], (1,))

    tried = 0
    for work in works(*graphs(), precision=precision):
        formats = work.selector.pick(work.task).formats
        for candidate in work.selector.in_place(work.task.within(formats)):
            assert candidate.recipe is not None
            for launch in launches_of(candidate.recipe):
                assert not list(problems(launch)), (
                    f"{candidate.algorithm} {candidate.variant}: {launch.title}"
                )
                tried += 1
    assert tried > 20


def test_what_the_copy_engine_reads_has_an_address() -> None:
    """Without one a kernel of Hopper would stop the GPU for good."""
    data, weights = (
        normal(*shape).astype(np.float16) for shape in ((8, 64, 56, 56), (64, 64, 3, 3))
    )
    (work,) = works(single("Conv", [data, weights], (1,), pads=(1,) * 4))
    candidate = work.selector.pick(work.task)
    assert candidate.recipe is not None
    (launch,) = launches_of(candidate.recipe)
    maps = {name for name, argument in launch.args.items() if isinstance(argument, TensorMap)}
    assert maps
    assert maps <= addresses(launch, lambda operand: 512).keys()
    device: Any = DryDevice()
    with pytest.raises(ValueError, match="the tensor map 'a' has no address"):
        bind_launch(device, launch, Future(), {})


@pytest.mark.parametrize(
    "other", [{"workspace": 1 << 20}, {"precision": "tf32"}, {"streams": 3}], ids=str
)
def test_what_a_network_depends_on(other: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    backend = dry_backend()
    monkeypatch.setattr(DryDevice, "description", "a GPU", raising=False)
    layers = _layers(float16)
    key = tuning_network._key(backend, layers, Options())
    assert key == tuning_network._key(backend, layers.clone(), Options())
    assert key != tuning_network._key(backend, layers, Options(**other))
    assert key != tuning_network._key(backend, _layers(float16, 3), Options())
    assert key != tuning_network._key(backend, _layers(float32), Options())
    monkeypatch.setattr(DryDevice, "description", "another GPU", raising=False)
    assert key != tuning_network._key(backend, layers, Options())
