"""The tuner, with a clock that says what the test wants: no GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda import backend
from tercet.backends.cuda.algorithms.registry import Setting
from tercet.backends.cuda.algorithms.selection import Candidate, Task
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.driver import step as stepping
from tercet.backends.cuda.driver.clock import microseconds
from tercet.backends.cuda.driver.memory import pointer
from tercet.backends.cuda.driver.status import failure
from tercet.backends.cuda.driver.step import addresses, bind_launch
from tercet.backends.cuda.recipe.launch import Launch, launches_of
from tercet.backends.cuda.recipe.operands import Scratch, TensorMap
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.cuda.tuning import judge as tuning_judge
from tercet.backends.cuda.tuning import tuner as tuning
from tercet.backends.cuda.tuning.judge import difference
from tercet.backends.cuda.tuning.records import Records
from tercet.backends.cuda.tuning.tuner import Tuner, TuningTask, digest, works_of
from tercet.runtime.base.cache import Cache
from tercet.runtime.errors import DeviceError, DeviceFault, DeviceOutOfMemory
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.options import Options

from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, launches, normal, planned, single

#: Kernels that this module compiles, in more variants than samples.py has.
COMPILES = {"norm/squared_error.cu"}

FLOATS = (float16, bfloat16, float32, float64)


@dataclass
class Clock:
    """Says how long algorithms take, and counts how often it is asked.

    Attributes:
        times: microseconds by algorithm; 50 where none is given, whatever its form.
        wrong: algorithms whose results are wrong.
        failing: what algorithms raise.
        full: whether there is no memory for the tensors.
        dies: raise KeyboardInterrupt instead of the measurement of this number.
    """

    times: dict[str, float] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()
    failing: dict[str, Exception] = field(default_factory=dict)
    full: bool = False
    dies: int = -1
    begun: int = 0
    asked: list[str] = field(default_factory=list)

    def prepare(self, candidates: Sequence[Candidate]) -> None:
        assert all(candidate.algorithm for candidate in candidates)

    def begin(self, task: Task, reference: Candidate) -> None:
        if self.begun == self.dies:
            raise KeyboardInterrupt
        if self.full:
            raise DeviceOutOfMemory("full")
        self.begun += 1

    def judge(self, candidate: Candidate, minimum: float) -> tuple[float, float]:
        self.asked.append(f"{candidate.algorithm} {candidate.variant}".strip())
        if candidate.algorithm in self.failing:
            raise self.failing[candidate.algorithm]
        return self.times.get(
            candidate.algorithm, 50.0
        ), 0.5 if candidate.algorithm in self.wrong else 1e-7

    def end(self) -> None:
        return None


def graph(channels: int = 16, size: int = 20) -> Graph:
    arrays = [normal(1, channels, size, size), normal(16, channels, 3, 3)]
    return single("Conv", arrays, (1,), pads=(1,) * 4)


def works(*graphs: Graph, **options: Any) -> list[TuningTask]:
    setting = Setting(H200, Options(**options))
    return [work for one in graphs for work in works_of(one.nodes, setting)]


def tuner(folder: Path, clock: Clock | None, context: str = "kernels 1 on a GPU") -> Tuner:
    return Tuner(Records(folder), context, clock)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all algorithms be tried, whatever is expected of them."""
    monkeypatch.setattr(tuning, "HOPELESS", inf)


def silent(text: str) -> None:
    return None


# ── the clock ────────────────────────────────────────────────────────────────────────────────────


class LateHost:
    """A GPU whose host launches kernels late unless they are recorded; all times in seconds."""

    def __init__(self, work: float, gap: float) -> None:
        self.work, self.gap, self.timed = work, gap, 0

    def record(self, run: Callable[[Any], None]) -> Callable[[Any], float]:
        calls: list[None] = []
        run(lambda: calls.append(None))
        return lambda stream: len(calls) * self.work

    def time(self, run: Callable[[Any], Any], stream: Any) -> float:
        self.timed += 1
        recorded = run(lambda: None)
        return self.work + self.gap if recorded is None else recorded


def launched(stream: Any) -> None:
    """Launch a kernel: the streams of `LateHost` are calls."""
    stream()


def idle() -> Any:
    """Return a stream on which nothing happens."""
    return lambda: None


@pytest.mark.parametrize(("work", "minimum"), [(11e-6, inf), (11e-6, 11.0), (11e-6, 30.0)])
@pytest.mark.parametrize("gap", [0, 5e-6, 800e-6])
def test_a_host_that_launches_late_makes_nothing_slow(
    work: float, minimum: float, gap: float
) -> None:
    device: Any = LateHost(work, gap)
    found = microseconds(device, launched, idle(), minimum)
    assert found == pytest.approx(1e6 * work)


def test_what_is_far_from_the_best_is_not_measured_well() -> None:
    device: Any = LateHost(5e-3, 0)
    found = microseconds(device, launched, idle(), 10.0)
    assert found == pytest.approx(5e3)
    assert device.timed == 4


# ── choice ───────────────────────────────────────────────────────────────────────────────────────


def test_the_fastest_algorithm_is_kept(tmp_path: Path) -> None:
    clock = Clock({"winograd_f2": 3.0, "implicit_gemm": 2.0})
    (result,) = tuner(tmp_path, clock).results(works(graph()), silent)
    assert (result.best.algorithm, result.best.microseconds) == ("implicit_gemm", 2.0)
    assert result.regret == result.chosen.microseconds / 2.0 - 1
    assert [t.microseconds for t in result.timings] == sorted(
        t.microseconds for t in result.timings
    )


def test_a_wrong_or_failing_algorithm_is_not_taken(tmp_path: Path) -> None:
    clock = Clock(
        {"direct": 1.0, "winograd_f2": 2.0, "explicit_gemm": 3.0, "winograd_f4": 4.0},
        wrong=("direct",),
        failing={
            "winograd_f2": DeviceError("broken\nat once"),
            "explicit_gemm": DeviceOutOfMemory("x"),
        },
    )
    (result,) = tuner(tmp_path, clock).results(works(graph()), silent)
    assert result.best.algorithm == "winograd_f4"
    reasons = {timing.algorithm: timing.reason for timing in result.timings}
    assert reasons["direct"] == "wrong by 5.0e-01"
    assert reasons["winograd_f2"] == "broken"
    assert reasons["explicit_gemm"] == "x"


def test_a_fault_ends_the_tuning_and_names_the_algorithm(tmp_path: Path) -> None:
    """The driver answers every later call with it, so that all later algorithms would be blamed."""
    clock = Clock(failing={"winograd_f2": DeviceFault("launch failed with CUDA_ERROR_ASSERT")})
    with pytest.raises(DeviceFault, match=r"^measuring winograd_f2 of .*: launch failed with CUDA"):
        tuner(tmp_path, clock).results(works(graph()), silent)
    assert not list(tmp_path.iterdir()), "nothing is remembered of a task that was not finished"


@pytest.mark.parametrize(
    ("status", "final"),
    [("CUDA_ERROR_ILLEGAL_INSTRUCTION", True), ("CUDA_ERROR_INVALID_VALUE", False)],
)
def test_a_status_that_is_final_is_a_fault(status: str, final: bool) -> None:
    found = failure(f"cuStreamSynchronize failed with {status}")
    assert isinstance(found, DeviceFault) == final
    assert status in str(found)


def test_what_is_hopeless_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "HOPELESS", 8.0)
    clock = Clock({"naive": 1.0})
    (result,) = tuner(tmp_path, clock).results(works(graph(64, 56)), silent)
    assert "naive" not in clock.asked
    (naive,) = [timing for timing in result.timings if timing.algorithm == "naive"]
    assert naive.reason.startswith("expected to take ")


def test_algorithms_over_the_workspace_are_not_tried(tmp_path: Path) -> None:
    clock = Clock({"explicit_gemm": 1.0})
    (result,) = tuner(tmp_path, clock).results(works(graph(), workspace=1000), silent)
    assert result.best.algorithm != "explicit_gemm"
    assert not any(title.startswith("explicit_gemm") for title in clock.asked)
    assert all(timing.workspace <= 1000 for timing in result.timings if not timing.reason)


def test_forms_of_a_algorithm_are_tried_too(tmp_path: Path) -> None:
    clock = Clock()
    tuner(tmp_path, clock).results(works(graph(64, 56)), silent)
    assert len([title for title in clock.asked if title.startswith("implicit_precomp_gemm ")]) > 1


def test_the_choice_reaches_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock({"direct": 1.0})
    monkeypatch.setattr(backend, "tuner_of", lambda *_, **__: tuner(tmp_path, clock))
    device = DryDevice(compiler=Announcing())
    (launch,) = launches(planned(graph(), device, tune=True))
    assert launch.entry == "direct"
    assert clock.begun == 1
    (launch,) = launches(planned(graph(), device, tune=True))
    assert clock.begun == 1
    assert launches(planned(graph(), device))[0].entry != "direct"


class Announcing(DryCompiler):
    """A compiler that is told what is measured."""

    def announce(self, measuring: str) -> None:
        assert measuring == "" or measuring.startswith("measuring ")


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────


def test_equal_tasks_are_measured_once(tmp_path: Path) -> None:
    """The key is the shape, not the node or the model."""
    clock, said = Clock(), list[str]()
    wanted = works(graph(), graph(), graph(size=21))
    tuner(tmp_path, clock).results(wanted, said.append)
    assert clock.begun == 2
    assert [text.partition(":")[0] for text in said] == ["measuring 1 of 2", "measuring 2 of 2"]
    later = Clock()
    again = tuner(tmp_path, later)
    assert len(again.results(wanted, silent)) == 2
    assert (later.begun, again.measured) == (0, 0)
    assert again.results(wanted, silent) == tuner(tmp_path, None).results(wanted, silent)


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    wanted = works(graph(), graph(size=21), graph(size=22))
    with pytest.raises(KeyboardInterrupt):
        tuner(tmp_path, Clock(dies=2)).results(wanted, silent)
    rest = Clock()
    assert len(tuner(tmp_path, rest).results(wanted, silent)) == 3
    assert rest.begun == 1


@pytest.mark.parametrize(
    "other",
    [
        {"context": "kernels 2 on a GPU"},
        {"context": "kernels 1 on another GPU"},
        {"workspace": 1 << 20},
        {"precision": "tf32"},
    ],
    ids=str,
)
def test_what_a_result_depends_on(other: dict[str, Any], tmp_path: Path) -> None:
    tuner(tmp_path, Clock()).results(works(graph()), silent)
    later = Clock()
    context = other.pop("context", "kernels 1 on a GPU")
    tuner(tmp_path, later, context).results(works(graph(), **other), silent)
    assert later.begun == 1


def _truncated(text: str) -> str:
    return text[: len(text) // 2]


def _without(key: str) -> Callable[[str], str]:
    return lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != key})


def _changed(**changes: Any) -> Callable[[str], str]:
    return lambda text: json.dumps(json.loads(text) | changes)


@pytest.mark.parametrize(
    "damage",
    [
        _truncated,
        lambda text: "",
        lambda text: "[]",
        lambda text: "\x00\xff",
        lambda text: "[" * 100_000,
        _without("timings"),
        _without("task"),
        _changed(version=0),
        _changed(key="another"),
        _changed(timings=[]),
        _changed(timings=[{"algorithm": "direct", "microseconds": -1.0}]),
        _changed(timings=[{"algorithm": "direct", "unknown": 1}]),
        _changed(timings={"algorithm": "direct"}),
    ],
)
def test_a_damaged_entry_is_measured_again(damage: Callable[[str], str], tmp_path: Path) -> None:
    tuner(tmp_path, Clock()).results(works(graph()), silent)
    (file,) = tmp_path.iterdir()
    text = (Cache(tmp_path).read(file.name) or b"").decode()
    Cache(tmp_path).write(file.name, damage(text).encode())
    later = Clock()
    assert len(tuner(tmp_path, later).results(works(graph()), silent)) == 1
    assert later.begun == 1
    assert tuner(tmp_path, None).results(works(graph()), silent)


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    assert tuner(blocked, Clock()).results(works(graph()), silent)


def test_nothing_is_kept_where_nothing_can_be_measured(tmp_path: Path) -> None:
    assert tuner(tmp_path, Clock(full=True)).choices(works(graph()), silent) == {}
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
        for candidate, reason in tuning._trials(work):
            if candidate.recipe is None or reason:
                continue
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


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_what_compares_results_compiles(target: Target, cache: Path) -> None:
    launches = [difference(dtype, count) for dtype in FLOATS for count in (5, 2**31)]
    all_compile([launch.source for launch in launches], target, cache, COMPILES)
    assert_arguments(launches, target, cache)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("count", [1, 33, 1000, 5000])
def test_results_are_compared_on_the_gpu(
    count: int, dtype: DType, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_judge, "BLOCKS", 3)  # of 256 threads: most add up several
    device: Any = emulated.device
    want = normal(count).astype(dtype)
    for found in (want, (want * dtype.type(1.25)).astype(dtype), np.full_like(want, np.nan)):
        launch = difference(dtype, count)
        views = [device.upload(array) for array in (found, want, np.zeros((launch.grid[0], 2)))]
        names = ("found", "expected", "sums")
        at = {name: pointer(view) for name, view in zip(names, views, strict=True)}
        run: Any = stepping.bind_launch(device, launch, device.compiler.submit(launch.source), at)
        run(None)
        sums = views[2].buffer.core.buffer.memory.view(np.float64)[: launch.grid[0] * 2]
        apart, whole = sums.reshape(-1, 2).sum(0)
        a, b = found.astype(np.float64), want.astype(np.float64)
        np.testing.assert_allclose(apart, ((a - b) ** 2).sum(), rtol=1e-12)
        np.testing.assert_allclose(whole, (b**2).sum(), rtol=1e-12)


def test_the_digest_is_that_of_the_sources() -> None:
    assert len(digest()) == 16
    assert digest() == digest()
