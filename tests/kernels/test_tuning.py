"""The tuner, on networks whose times the test says: no GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.algorithms.selection import Candidate
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.driver import step as stepping
from tercet.backends.cuda.driver.clock import microseconds
from tercet.backends.cuda.driver.memory import pointer
from tercet.backends.cuda.driver.status import failure
from tercet.backends.cuda.recipe.setting import TunedChoice
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.cuda.tuning import judge as tuning_judge
from tercet.backends.cuda.tuning.judge import difference
from tercet.backends.cuda.tuning.records import Records
from tercet.backends.cuda.tuning.tuner import (
    NetworkResult,
    StepGroup,
    Tuner,
    digest,
)
from tercet.runtime.base.cache import Cache
from tercet.runtime.errors import DeviceError, DeviceFault
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64

from .cubins import all_compile, assert_arguments
from .dry import normal
from .tuning_samples import graph, works

#: Kernels that this module compiles, in more variants than samples.py has.
COMPILES = {"norm/squared_error.cu"}

FLOATS = (float16, bfloat16, float32, float64)


@dataclass
class Network:
    """A network of groups, each of which takes the microseconds that are said.

    Attributes:
        groups: as for the tuner.
        own: microseconds of each group as planned, by key.
        times: of the candidates, by title; 50 where none is given.
        wrong: titles of candidates whose results are wrong.
        failing: what candidates raise.
        dies: raise KeyboardInterrupt instead of the measurement of this number.
        asked: the groups and titles measured, in order.
    """

    groups: tuple[StepGroup, ...]
    own: dict[str, float]
    times: dict[str, float] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()
    failing: dict[str, Exception] = field(default_factory=dict)
    dies: int = -1
    asked: list[tuple[str, str]] = field(default_factory=list)
    taken: dict[str, str] = field(default_factory=dict)

    def prepare(self, group: StepGroup) -> None:
        assert group in self.groups

    def time(self) -> float:
        return sum(
            group.steps * self.times.get(self.taken.get(group.key, ""), self.own[group.key])
            for group in self.groups
        )

    def in_turns(self) -> tuple[float, float]:
        return sum(group.steps * self.own[group.key] for group in self.groups), self.time()

    def change(self, group: StepGroup, candidate: Candidate, rounds: int) -> float:
        if len(self.asked) == self.dies:
            raise KeyboardInterrupt
        self.asked.append((group.key, candidate.title))
        if candidate.title in self.failing:
            raise self.failing[candidate.title]
        return group.steps * (self.times.get(candidate.title, 50.0) - self.own[group.key])

    def error(self, group: StepGroup, candidate: Candidate) -> float:
        return 0.5 if candidate.title in self.wrong else 1e-7

    def take(self, group: StepGroup, candidate: Candidate) -> None:
        self.taken[group.key] = candidate.title


def network(*own: float, steps: int = 1, **told: Any) -> Network:
    """Return a network of convolutions with these times, all of which have the same candidates."""
    titles = ("direct", "winograd_f2", "winograd_f4", "implicit_gemm")
    groups = tuple(
        StepGroup(work, "by estimates", steps, tuple(Candidate(title) for title in titles))
        for work in works(*(graph(size=20 + i) for i in range(len(own))))
    )
    times = {group.key: time for group, time in zip(groups, own, strict=True)}
    return Network(groups, times, **told)


def tuner(folder: Path, key: str = "a network, kernels 1 on a GPU") -> Tuner:
    return Tuner(Records(folder), key)


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


def test_the_fastest_candidate_is_taken(tmp_path: Path) -> None:
    told = network(10.0, steps=3, times={"winograd_f2": 3.0, "implicit_gemm": 2.0})
    result = tuner(tmp_path).search(told, silent)
    (group,) = result.groups
    assert group.chosen == "implicit_gemm"
    assert (group.before, group.after) == (result.before, result.after) == (30.0, 6.0)
    assert result.choices == {told.groups[0].key: TunedChoice("implicit_gemm")}
    assert [timing.title for timing in group.timings][:2] == ["implicit_gemm", "winograd_f2"]
    assert [timing.change for timing in group.timings][:2] == [-24.0, -21.0]


def test_what_is_hardly_faster_is_not_taken(tmp_path: Path) -> None:
    """Nothing is gained by it, and it may have been chance."""
    result = tuner(tmp_path).search(network(40.0, times={"direct": 39.95}), silent)
    assert not result.choices
    assert result.groups[0].choice is None
    assert tuner(tmp_path / "other").search(network(40.0, times={"direct": 39.5}), silent).choices


def test_groups_are_measured_with_what_was_taken_before(tmp_path: Path) -> None:
    result = tuner(tmp_path).search(network(10.0, 20.0, times={"direct": 4.0}), silent)
    assert sorted((group.before, group.after) for group in result.groups) == [
        (14.0, 8.0),
        (30.0, 14.0),
    ] or [(24.0, 8.0), (30.0, 24.0)]
    assert (result.before, result.after) == (30.0, 8.0)
    first, second = result.groups
    assert first.after == second.before


def test_a_wrong_or_failing_candidate_is_not_taken(tmp_path: Path) -> None:
    told = network(
        10.0,
        times={"direct": 1.0, "winograd_f2": 2.0, "winograd_f4": 4.0},
        wrong=("direct",),
        failing={"winograd_f2": DeviceError("broken\nat once")},
    )
    (group,) = tuner(tmp_path).search(told, silent).groups
    assert group.chosen == "winograd_f4"
    reasons = {timing.algorithm: timing.reason for timing in group.timings}
    assert reasons["direct"] == "wrong by 5.0e-01"
    assert reasons["winograd_f2"] == "broken"
    assert reasons["winograd_f4"] == ""


def test_a_fault_ends_the_tuning_and_names_the_candidate(tmp_path: Path) -> None:
    """The driver answers every later call with it, so that all later ones would be blamed."""
    fault = DeviceFault("launch failed with CUDA_ERROR_ASSERT")
    with pytest.raises(DeviceFault, match=r"^measuring winograd_f2 of .*: launch failed with CUDA"):
        tuner(tmp_path).search(network(10.0, failing={"winograd_f2": fault}), silent)
    assert not list(tmp_path.iterdir()), "nothing is remembered of a group that was not finished"


@pytest.mark.parametrize(
    ("status", "final"),
    [("CUDA_ERROR_ILLEGAL_INSTRUCTION", True), ("CUDA_ERROR_INVALID_VALUE", False)],
)
def test_a_status_that_is_final_is_a_fault(status: str, final: bool) -> None:
    found = failure(f"cuStreamSynchronize failed with {status}")
    assert isinstance(found, DeviceFault) == final
    assert status in str(found)


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────


def test_a_network_is_measured_once(tmp_path: Path) -> None:
    said = list[str]()
    first = tuner(tmp_path).search(network(10.0, 20.0, times={"direct": 4.0}), said.append)
    assert [text.partition(":")[0] for text in said] == ["measuring 1 of 2", "measuring 2 of 2"]
    assert tuner(tmp_path).known() == NetworkResult(first.before, first.after, first.groups)
    assert tuner(tmp_path, "another network").known() is None
    other = network(10.0, 20.0, times={"direct": 4.0})
    again = tuner(tmp_path).search(other, silent, again=True)
    assert again.groups == first.groups
    assert len(other.asked) > 2


def test_an_interrupted_search_goes_on(tmp_path: Path) -> None:
    times = {"direct": 4.0}
    with pytest.raises(KeyboardInterrupt):
        tuner(tmp_path).search(network(10.0, 20.0, 30.0, times=times, dies=12), silent)
    assert tuner(tmp_path).known() is None
    rest = network(10.0, 20.0, 30.0, times=times)
    result = tuner(tmp_path).search(rest, silent)
    assert len(result.groups) == 3
    assert {key for key, _ in rest.asked} == {group.task for group in result.groups[2:]}
    assert (result.before, result.after) == (60.0, 12.0)
    assert len(rest.taken) == 3


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
        _without("groups"),
        _without("before"),
        _changed(version=0),
        _changed(key="another"),
        _changed(before=-1.0),
        _changed(after=0.0),
        _changed(groups=[{"task": "a"}]),
        _changed(groups={"task": "a"}),
        _changed(groups=7),
    ],
)
def test_a_damaged_entry_is_measured_again(damage: Callable[[str], str], tmp_path: Path) -> None:
    told: dict[str, Any] = {"times": {"direct": 4.0}}
    done = tuner(tmp_path).search(network(10.0, **told), silent)
    (file,) = tmp_path.iterdir()
    text = (Cache(tmp_path).read(file.name) or b"").decode()
    Cache(tmp_path).write(file.name, damage(text).encode())
    assert tuner(tmp_path).known() is None
    assert tuner(tmp_path).search(network(10.0, **told), silent).groups == done.groups
    assert tuner(tmp_path).known() is not None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    assert tuner(blocked).search(network(10.0, times={"direct": 4.0}), silent).choices


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
        sums = views[2].buffer.owner.buffer.memory.view(np.float64)[: launch.grid[0] * 2]
        apart, whole = sums.reshape(-1, 2).sum(0)
        a, b = found.astype(np.float64), want.astype(np.float64)
        np.testing.assert_allclose(apart, ((a - b) ** 2).sum(), rtol=1e-12)
        np.testing.assert_allclose(whole, (b**2).sum(), rtol=1e-12)


def test_the_digest_is_that_of_the_sources() -> None:
    assert len(digest()) == 16
    assert digest() == digest()
