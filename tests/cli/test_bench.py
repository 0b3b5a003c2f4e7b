"""`tercet bench`: phases, batches, concurrency, errors, limits, and older benchmarks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from tercet.backends.numpy import NumpyBackend
from tercet.runtime.errors import UnsupportedError, UsageError
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Relu, Sigmoid
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model
from tercet.tools.bench.bench import Schedule, bench
from tercet.tools.bench.bench_cases import Bench, BenchCase
from tercet.tools.bench.bench_check import BenchLimits, against, complaints, latency_limits, slower
from tercet.tools.common.environment import device_environment
from tercet.tools.common.measure import Timing
from tercet.tools.profile.device_time import WARM_UP, _pieces, device_times
from tercet.tools.runners import runners
from tercet.tools.verdict.accuracy import distance, exact_outputs

from ..plan.fakes import FakeBackend, FakeDevice
from . import models
from .conftest import Tercet

QUICK = ("--duration", 0.02, "--warm-up", 0)
SCHEDULE = Schedule(duration=0.02, warm_up=0)


def case(**changes: Any) -> BenchCase:
    """A case that was never measured."""
    given: dict[str, Any] = {
        "model": "m",
        "runner": "numpy",
        "about": "",
        "batch": 1,
        "precision": "float32",
        "concurrency": 1,
        "load": 1.0,
        "cold": 1.0,
        "warm": 1.0,
        "steady": Timing((0.009, 0.010, 0.011)),
        "rate": 100.0,
        "device": None,
        "error": 1e-7,
        "steps": 4,
    }
    return BenchCase(**{**given, **changes})


def test_shows_every_batch_and_stream(tercet: Tercet) -> None:
    chosen = ("-b", "numpy", "-b", "onnxruntime", "--batch", "1,3", "--concurrency", "1,2")
    done = tercet("bench", "classifier.onnx", *chosen, *QUICK)
    assert done.code == 0
    steady = done.out.split("p99")[1].splitlines()
    rows = [line.split()[:3] for line in steady if line.startswith(("numpy", "onnxruntime"))]
    assert rows == [
        [name, batch, callers]
        for batch in "13"
        for callers in "12"
        for name in ("numpy", "onnxruntime")
    ]
    assert "relative" in done.out


def test_json_has_everything(tercet: Tercet) -> None:
    chosen = ("-b", "numpy", "-b", "onnxruntime", "--batch", 2)
    found = tercet("bench", "classifier.onnx", "adder.onnx", *chosen, *QUICK, "--json").json
    assert found["ok"] is True
    keys = [(c["model"], c["runner"], c["batch"]) for c in found["cases"]]
    assert keys == [
        (model, name, 2)
        for model in ("classifier.onnx", "adder.onnx")
        for name in ("numpy", "onnxruntime")
    ]
    for each in found["cases"]:
        steady = each["steady_ms"]
        assert 0 < steady["p10"] <= steady["p50"] <= steady["p90"] <= steady["p99"]
        assert steady["runs"] >= 5
        assert each["load_ms"] > 0 < each["cold_ms"]
        assert each["error"] < 1e-5
        assert each["items_per_second"] == pytest.approx(2e3 / steady["p50"], rel=2)
    assert [c["steps"] for c in found["cases"]] == [4, None, 2, None]
    assert found["environment"]["numpy"] == np.__version__
    assert found["environment"]["threads"]


def test_what_each_pass_is_worth(tercet: Tercet) -> None:
    """A batch-norm behind a convolution is folded; without the pass it is a separate step."""
    done = tercet(
        "bench", "classifier.onnx", "-b", "numpy", "-b", "onnxruntime", "--passes", *QUICK
    )
    table = done.out.split("graph passes")[1]
    assert done.code == 0
    assert "ratio to all" in table
    assert "onnxruntime" not in table
    chosen = ("-b", "numpy", "--passes", *QUICK)
    found = tercet("bench", "classifier.onnx", *chosen, "--assert-ops", 4, "--json").json
    assert found["ok"] is True  # more steps without a pass are no complaint
    steps = {case["without"]: case["steps"] for case in found["cases"]}
    assert steps[""] == 4
    assert steps["fold_batchnorm"] == 5
    assert steps["any pass"] >= 5
    assert "fuse_attention" not in steps
    assert all(case["error"] < 1e-5 for case in found["cases"])
    Path("old.json").write_text(json.dumps(found))
    again = tercet("bench", "classifier.onnx", *chosen, "--compare", "old.json", "--json").json
    assert {each["without"] for each in again["against"]} == set(steps)


def test_passes_are_left_out(tercet: Tercet) -> None:
    model = "classifier.onnx"
    for command in (
        "run",
        "compare -b numpy -b onnxruntime",
        "bisect",
        "profile --no-peaks",
        "bench -b numpy",
    ):
        name, *more = command.split()
        quick = QUICK if name == "bench" else ("--repeat", 1) if name != "bisect" else ()
        done = tercet(name, model, *more, "--skip-passes", "fold_batchnorm,fold_pad", *quick)
        assert done.code == 0, command
    found = tercet("inspect", model, "--passes", "--skip-passes", "fold_batchnorm", "--json").json
    assert found["passes"]["operators"]["BatchNormalization"] == {"before": 1, "after": 1}
    found = tercet("export", model, "out.onnx", "--skip-passes", "fold_batchnorm", "--json").json
    assert found["operators"]["BatchNormalization"]["after"] == 1
    done = tercet("run", model, "--skip-passes", "fold_batchnorn")
    assert done.code == 2
    assert "did you mean 'fold_batchnorm'" in done.err


def test_concurrent_callers() -> None:
    schedule = Schedule(concurrency=(3,), duration=0.05, warm_up=0, accuracy=False)
    found = bench(models.classifier(), ["numpy"], schedule=schedule)
    (only,) = found.cases
    assert only.concurrency == 3
    assert len(only.steady.samples) >= 3
    assert only.error is None
    # As many items a second as there were runs, for they are of one image each.
    assert only.rate > 0.5 * len(only.steady.samples) / sum(only.steady.samples)


def test_is_one_call_in_python() -> None:
    found = bench(models.adder(), ["numpy"], schedule=SCHEDULE)
    assert str(found)
    (row,) = found.table()
    assert {type(value) for value in row.values()} <= {int, float, str, type(None)}
    assert row["error"] < 1e-6


def test_batches_that_do_not_fit(tercet: Tercet, folder: Path) -> None:
    models.write(models.unary("Relu", [2, 3]), folder / "fixed.onnx")
    done = tercet("bench", "fixed.onnx", "--batch", 4, *QUICK)
    assert done.code == 2
    assert "a batch of 4 is asked for; input 'x' has 2" in done.err
    assert tercet("bench", "fixed.onnx", "-b", "numpy", "--batch", 2, *QUICK).code == 0


def test_who_cannot_run(tercet: Tercet, folder: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "ai.onnx.preview" : 1]>
    g (float[1,2,3,4] q) => (float[1,2,3,4] y) { y = ai.onnx.preview.FlexAttention (q, q, q) }"""
    onnx.save(parse_model(text), "preview.onnx")
    chosen = ("bench", "preview.onnx", "-b", "numpy", "-b", "onnxruntime", *QUICK)
    done = tercet(*chosen, "--skip-unavailable", "--json")
    assert done.code == 0
    assert [case["runner"] for case in done.json["cases"]] == ["numpy"]
    assert any("onnxruntime" in what for what in done.json["skipped"])
    assert tercet(*chosen).code == 3
    by_default = tercet("bench", "preview.onnx", *QUICK, "--json")
    assert by_default.code == 0, by_default.err
    assert any("onnxruntime" in what for what in by_default.json["skipped"])


def test_that_no_runner_can_run_a_model_is_an_error(
    tercet: Tercet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*_: Any) -> None:
        raise UnsupportedError("no such hardware")

    monkeypatch.setattr("tercet.tools.bench.bench_series.open_runner", refusing)
    for named in ((), ("-b", "numpy")):
        done = tercet("bench", "classifier.onnx", *named, *QUICK)
        assert (done.code, "no such hardware" in done.err) == (3, True)


def test_wrong_usage(tercet: Tercet) -> None:
    Path("no.json").write_text('{"rows": 1}')
    Path("empty.json").write_text('{"cases": []}')
    Path("odd.json").write_text('{"cases": [1]}')
    one = ("bench", "adder.onnx", "-b", "numpy", *QUICK)
    for more, words in (
        (("--batch", "two"), "--batch two: expected whole numbers"),
        (("--batch", "0"), "--batch 0: expected whole numbers >= 1"),
        (("--assert-p50", "5 parsecs"), "is not a duration such as 5ms"),
        (("--assert-p50", "nump=5ms"), "did you mean 'numpy'"),
        (("--assert-ratio", "2"), "needs --compare"),
        (("--compare", "no.json"), "no.json is not a benchmark"),
        (("--compare", "none.json"), "none.json"),
        (("--compare", "odd.json"), "written by another version"),
        (("--compare", "empty.json"), "none of these cases"),
        (("-b", "cud"), "did you mean 'cuda'"),
    ):
        done = tercet(*one, *more)
        assert done.code == 2
        assert words in done.err


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


def test_limits_decide_on_the_exit_code(tercet: Tercet) -> None:
    one = ("bench", "classifier.onnx", "-b", "numpy", "-b", "onnxruntime", *QUICK)
    kept = ("--assert-p50", "10s", "--assert-ops", 4, "--assert-error", 1e-4)
    assert tercet(*one, *kept).code == 0
    done = tercet(*one, "--assert-ops", 3, "--assert-p50", "onnxruntime=0.001us")
    assert done.code == 1
    said = " ".join(done.out.split())
    assert "4 steps, more than 3" in said
    assert "classifier.onnx on onnxruntime" in said
    found = tercet(*one, "--assert-ops", 3, "--json")
    assert found.code == 1
    assert found.json["ok"] is False
    assert len(found.json["complaints"]) == 1


def test_limits_are_of_ones_own_backends() -> None:
    cases = [case(), case(runner="onnxruntime", steps=None)]
    assert len(complaints(cases, BenchLimits({"": 0.005}))) == 1
    assert len(complaints(cases, BenchLimits({"": 0.005, "onnxruntime": 0.005}))) == 2
    assert not complaints(cases, BenchLimits({"": 0.005, "numpy": 0.02}))
    assert len(complaints(cases, BenchLimits(error=1e-8))) == 1
    assert len(complaints([case(error=float("nan"))], BenchLimits(error=1e-8))) == 1


def test_times_as_text() -> None:
    assert latency_limits(["5ms", "cudnn=300us", "numpy=1.5s"]) == {
        "": 0.005,
        "cudnn": 0.0003,
        "numpy": 1.5,
    }


# ── older benchmarks ─────────────────────────────────────────────────────────────────────────────


def old(*cases: BenchCase) -> dict[str, Any]:
    return Bench(cases, {}, {}).to_dict()


@pytest.mark.parametrize(
    ("before", "verdict"), [(0.010, "same"), (0.100, "faster"), (0.001, "slower")]
)
def test_verdicts(before: float, verdict: str) -> None:
    first = case(steady=Timing((0.99 * before, before, 1.01 * before)))
    (found,) = against(old(first), [case(), case(batch=2)])
    assert found.verdict == verdict
    assert found.ratio == pytest.approx(0.010 / before)
    assert bool(slower([found], BenchLimits(ratio=2))) == (verdict == "slower")
    assert not slower([found], BenchLimits())


def test_an_older_file(tercet: Tercet) -> None:
    one = ("bench", "classifier.onnx", "-b", "numpy", *QUICK)
    first = tercet(*one, "--json").json
    Path("old.json").write_text(json.dumps(first))
    done = tercet(*one, "--compare", "old.json", "--assert-ratio", 1e6)
    assert done.code == 0
    assert "p50 of" in done.out
    for each in first["cases"]:
        each["steady_ms"] = {name: value / 1e6 for name, value in each["steady_ms"].items()}
    Path("old.json").write_text(json.dumps(first))
    done = tercet(*one, "--compare", "old.json", "--assert-ratio", 10)
    assert done.code == 1
    assert "slower" in done.out
    assert "of what it was" in " ".join(done.out.split())


# ── accuracy ─────────────────────────────────────────────────────────────────────────────────────


def test_distances() -> None:
    right = {"y": np.array([3.0, 4.0]), "z": np.zeros(2), "s": np.array(["a"], object)}
    near = {**right, "y": np.array([3.0, 4.5])}
    assert distance(right, right) == 0
    assert distance(near, right) == pytest.approx(0.1)
    assert distance({**near, "z": np.ones(2)}, right) == pytest.approx(np.sqrt(2))
    assert distance({**right, "s": np.array(["b"], object)}, right) == float("inf")
    assert distance({"y": right["y"]}, right) == float("inf")
    assert distance({**right, "y": np.zeros(3)}, right) == float("inf")


def test_float64_is_the_measure() -> None:
    x = np.full((1, 4), 1e8, np.float32)
    exact = exact_outputs(models.adder(), {"a": x, "b": np.ones_like(x)})
    assert exact["sum"].dtype == np.float64
    assert exact["sum"][0, 0] == 1e8 + 1


def test_schedules_make_sense() -> None:
    cases: tuple[dict[str, Any], ...] = (
        {"batches": (0,)},
        {"concurrency": (0,)},
        {"duration": float("nan")},
        {"warm_up": float("nan")},
        {"duration": 0},
        {"warm_up": -1},
    )
    for wrong in cases:
        with pytest.raises(UsageError):
            Schedule(**wrong)


# ── on a device ──────────────────────────────────────────────────────────────────────────────────


class TimedDevice(FakeDevice):
    """A device with events: each run takes it 2 ms."""

    __hash__ = object.__hash__

    def time(self, run: Callable[[Any], None], stream: Any) -> float:
        run(stream)
        return 0.002


def chain(device: FakeDevice, *operators: Op) -> Model:
    graph = Graph("test")
    y = graph.add_input("x", TensorType(float32, (2, 3)))
    for op in operators:
        y = graph.insert(op, [y]).output
    graph.set_outputs({"y": y})
    infer(graph)
    backends = FakeBackend(device), NumpyBackend()
    return Model(graph, backends, Options(), lambda op, arrays, outputs: None)


def test_a_device_is_timed_alone() -> None:
    device = TimedDevice()
    with chain(device, Relu(), Relu()) as model:
        before = device.replays
        found = device_times(model, model.prepare(), runs=3)
        assert found is not None
        assert found.samples == (0.002,) * 3
        assert device.replays == before + WARM_UP + 3


@pytest.mark.parametrize("stream", [0, 1])
def test_inputs_come_when_nothing_else_lies_where_they_go(stream: int) -> None:
    device = FakeDevice()
    copied: list[str] = []

    def row(kind: str, reads: int, writes: int) -> Any:
        def slot(at: int) -> Any:
            slot = SimpleNamespace(device=device, block=SimpleNamespace(offset=at, nbytes=16))
            slot.root = slot
            return slot

        run = partial(lambda name, stream: copied.append(name), f"{kind} to {writes}")
        return SimpleNamespace(
            kind=kind, stream=stream, run=run, inputs=[slot(reads)], outputs=[slot(writes)]
        )

    rows: list[Any] = [
        *(row("copy", 900, 0), row("step", 0, 64)),
        *(row("copy", 900, 32), row("step", 32, 16)),
        *(row("copy", 900, 8), row("step", 8, 128)),
    ]
    own: Any = device
    pieces = list(_pieces(rows, range(6), own))
    assert [part for _, part in pieces] == [range(4), range(4, 6)]
    for copies, _ in pieces:
        for copy in copies:
            copy(None)
    assert copied == ["copy to 0", "copy to 32", "copy to 8"]


def test_what_is_not_on_one_device_has_no_such_time() -> None:
    for model in (chain(FakeDevice(), Relu()), chain(TimedDevice(), Relu(), Sigmoid())):
        with model:
            assert device_times(model, model.prepare()) is None


class DescribedDevice(FakeDevice):
    """Has what a CUDA device has besides."""

    description = "NVIDIA H200"


def test_a_gpu_is_named_with_its_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "1980 MHz, 1980 MHz, 3201 MHz, 98.51 W, 31, 580.95.05\n"
    answer = subprocess.CompletedProcess([], 0, said, "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    assert "GPU" not in device_environment(FakeDevice(), ())
    device = DescribedDevice()
    found = device_environment(device, ())
    assert found["GPU"] == "NVIDIA H200"
    assert found["GPU now"].startswith("1980 MHz of 1980 MHz, memory 3201 MHz, 98.51 W, 31 C")
    answer.returncode = 9
    assert "GPU now" not in device_environment(device, ())


def test_a_stream_of_batches(tercet: Tercet) -> None:
    chosen = "-b", "numpy", "-b", "onnxruntime", "--pipeline", "--duration", 0.1, "--warm-up", 0
    found = tercet("bench", "classifier.onnx", *chosen, "--batch", 4, "--json").json["cases"]
    assert [case["runner"] for case in found] == ["numpy", "onnxruntime", "numpy, pipelined"]
    piped = found[2]
    assert piped["batch"] == 4
    assert piped["steady_ms"]["runs"] >= 5
    # Nine runs of ten took no less than p10, and how much longer some took is the machine's matter.
    assert 0 < piped["items_per_second"] <= 4e3 / (0.9 * piped["steady_ms"]["p10"])


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_wrong_result_is_a_complaint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    def measured(**options: Any) -> Bench:
        return bench(
            "classifier.onnx",
            ["numpy"],
            schedule=Schedule(precisions=(precision,), duration=0.02, warm_up=0, **options),
        )

    right = measured()
    assert ([each.verdict for each in right.cases], right.ok) == (["ok"], True)
    opened = runners.open_runner

    def planted(*arguments: Any) -> runners.Runner:
        runner = opened(*arguments)
        run = runner.run

        def shifted(feeds: Any) -> Any:
            return {name: np.roll(np.asarray(data), 1, -1) for name, data in run(feeds).items()}

        monkeypatch.setattr(runner, "run", shifted)
        return runner

    monkeypatch.setattr("tercet.tools.bench.bench_series.open_runner", planted)
    found = measured()
    assert ([each.verdict for each in found.cases], found.ok) == (["MISMATCH"], False)
    assert f"on numpy, batch 1, {precision}: output 'scores'" in found.complaints[0]
    assert "MISMATCH" in str(found)
    unjudged = measured(accuracy=False)
    assert ([each.verdict for each in unjudged.cases], unjudged.ok) == ([None], True)
